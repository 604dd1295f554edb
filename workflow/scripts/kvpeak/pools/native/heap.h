// A range of memory in which buffers are placed at the lowest gap that is large enough.
#pragma once
#include "policy.h"

namespace kvpeak {

class Heap {
 public:
  Size address = 0, size = 0;
  Heap() = default;
  Heap(Size address, Size size) : address(address), size(size), gaps_{{address, size}} {}

  // The largest gap.
  Size room() const {
    Size most = 0;
    for (auto& gap : gaps_) most = std::max(most, gap.second);
    return most;
  }
  // The address of a place for `bytes`, which fit.
  Size place(Size bytes) {
    auto gap = std::find_if(gaps_.begin(), gaps_.end(), [&](auto& g) { return g.second >= bytes; });
    const auto [at, length] = *gap;
    gaps_.erase(gap);
    if (length > bytes) gaps_[at + bytes] = length - bytes;
    return at;
  }
  // Make a place a gap again, one with the gaps beside it.
  void clear(Size at, Size bytes) {
    auto gap = gaps_.emplace(at, bytes).first, next = std::next(gap);
    if (next != gaps_.end() && at + bytes == next->first)
      gap->second += next->second, gaps_.erase(next);
    if (gap == gaps_.begin()) return;
    auto before = std::prev(gap);
    if (before->first + before->second == at) before->second += gap->second, gaps_.erase(gap);
  }

 private:
  std::map<Size, Size> gaps_;  // address and size
};

}  // namespace kvpeak
