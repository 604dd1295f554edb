// No pool: what is freed goes back at once.
#pragma once
#include "policy.h"

namespace kvpeak {

class None : public WholeBuffers {
 public:
  None(Source& source, Parameters&) : WholeBuffers(source) {}
  Size largest(Size) const override { return 0; }
  bool keeps(Size) const override { return false; }
};
KVPEAK_POLICY("none", None, "no pool: what is freed goes back at once", "");

}  // namespace kvpeak
