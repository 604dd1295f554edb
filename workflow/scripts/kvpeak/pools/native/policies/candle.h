// Candle 0.11.0 on Metal: new buffers are powers of two, the smallest free one that fits is taken,
// and a wait of the host for the device gives all free ones back. Two heaps do not mix: stream 0 is
// the private one, 1 the shared one. Host data has a buffer of exactly its size.
//
// `cap` is pull request 3851's: a free buffer serves at most so many times the request's class
// (4x: two classes above it); `none` is Candle as released. The limit saturates.
#pragma once
#include "policy.h"

namespace kvpeak {

class Candle : public WholeBuffers {
 public:
  Candle(Source& source, Parameters& given) : WholeBuffers(source) {
    const std::string cap = given.text("cap", "none");
    if (cap == "none") return;
    char* end = nullptr;
    times_ = std::strtoull(cap.c_str(), &end, 10);
    if (*end != 'x' || end[1] || !times_ || (times_ & (times_ - 1)))
      throw std::invalid_argument("cap: expected none or a power of two and x, as 4x; got " + cap);
  }
  Size new_size(Size bytes) const override { return power_of_two(bytes); }
  Size largest(Size bytes) const override {
    const Size of_its_class = power_of_two(bytes);
    return times_ > NO_LIMIT / of_its_class ? NO_LIMIT : of_its_class * times_;
  }
  void wait() override { trim(); }

 private:
  Size times_ = NO_LIMIT;
};
KVPEAK_POLICY("candle", Candle, "powers of two, the smallest free buffer that fits",
              "cap: 1x 2x 4x 8x 16x");

}  // namespace kvpeak
