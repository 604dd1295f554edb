// Size classes: each is `growth` times the one before, from `smallest`, in steps of `smallest`. A
// buffer serves the requests of its own class. `cap` limits the free ones.
#pragma once
#include "policy.h"

namespace kvpeak {

class Bucket : public WholeBuffers {
 public:
  Bucket(Source& source, Parameters& given)
      : WholeBuffers(source), smallest_(given.bytes("smallest", "512")),
        cap_(given.bytes("cap", "none")) {
    const double growth = given.number("growth", 1.25);
    if (!(growth >= 1.01 && growth <= 16)) throw std::invalid_argument("growth: expected 1.01 to 16");
    if (!smallest_ || smallest_ > GIB) throw std::invalid_argument("smallest: expected 1 to 1GiB");
    for (double size = double(smallest_); size < 0x1p62; size *= growth) {
      const Size rounded = round_up(Size(size), smallest_);
      if (classes_.empty() || rounded > classes_.back()) classes_.push_back(rounded);
    }
  }
  Size new_size(Size bytes) const override {
    auto found = std::lower_bound(classes_.begin(), classes_.end(), bytes);
    return found == classes_.end() ? bytes : *found;
  }
  Size largest(Size bytes) const override { return new_size(bytes); }
  bool keeps(Size size) const override { return size <= cap_ && free_bytes <= cap_ - size; }

 private:
  const Size smallest_, cap_;
  std::vector<Size> classes_;
};
KVPEAK_POLICY("bucket", Bucket, "size classes, each `growth` times the one before",
              "growth: 1.0625 1.125 1.5 2; cap: 0 64MiB 512MiB");

}  // namespace kvpeak
