// Buffers of the size asked for, used again only for the same size. `cap` limits the free ones.
#pragma once
#include "policy.h"

namespace kvpeak {

class Exact : public WholeBuffers {
 public:
  Exact(Source& source, Parameters& given)
      : WholeBuffers(source), cap_(given.bytes("cap", "none")) {}
  Size largest(Size bytes) const override { return bytes; }
  bool keeps(Size size) const override { return size <= cap_ && free_bytes <= cap_ - size; }

 private:
  const Size cap_;
};
KVPEAK_POLICY("exact", Exact, "a buffer serves only requests of its own size",
              "cap: 0 32MiB 128MiB 512MiB");

}  // namespace kvpeak
