// Ranges of memory in which buffers are placed at the lowest gap that is large enough.
#pragma once
#include "policy.h"

namespace kvpeak {

class Heap {
 public:
  Size address = 0, size = 0;
  Heap() = default;
  Heap(Size address, Size size) : address(address), size(size) { add(address, size); }

  // The largest gap.
  Size room() const { return lengths_.empty() ? 0 : *lengths_.rbegin(); }
  // The address of a place for `bytes`, which fit.
  Size place(Size bytes) {
    auto gap = std::find_if(gaps_.begin(), gaps_.end(), [&](auto& g) { return g.second >= bytes; });
    const auto [at, length] = *gap;
    remove(gap);
    if (length > bytes) add(at + bytes, length - bytes);
    return at;
  }
  // Make a place a gap again, one with the gaps beside it.
  void clear(Size at, Size bytes) {
    const auto next = gaps_.lower_bound(at);
    const auto before = next == gaps_.begin() ? gaps_.end() : std::prev(next);
    if (next != gaps_.end() && at + bytes == next->first) bytes += next->second, remove(next);
    if (before != gaps_.end() && before->first + before->second == at)
      at = before->first, bytes += before->second, remove(before);
    add(at, bytes);
  }

 private:
  using Gaps = std::map<Size, Size>;  // address and size
  void add(Size at, Size bytes) { gaps_.emplace(at, bytes), lengths_.insert(bytes); }
  void remove(Gaps::iterator gap) { lengths_.erase(lengths_.find(gap->second)), gaps_.erase(gap); }

  Gaps gaps_;
  std::multiset<Size> lengths_;  // of the gaps
};

// Heaps, found by their room without looking at all of them.
class Heaps {
 public:
  // The one with the least room that is enough, of several the one at the lowest address; or null.
  Heap* with_room(Size bytes) {
    const auto found = by_room_.lower_bound({bytes, 0});
    return found == by_room_.end() ? nullptr : &heaps_.at(found->second);
  }
  Heap* add(Size address, Size size) {
    const auto [made, is_new] = heaps_.emplace(address, Heap(address, size));
    if (!is_new) throw std::logic_error("two heaps at one address");
    return by_room_.emplace(size, address), &made->second;
  }
  Size place(Heap& heap, Size bytes) {
    by_room_.erase({heap.room(), heap.address});
    const Size at = heap.place(bytes);
    return by_room_.emplace(heap.room(), heap.address), at;
  }
  void clear(Heap& heap, Size at, Size bytes) {
    by_room_.erase({heap.room(), heap.address});
    heap.clear(at, bytes), by_room_.emplace(heap.room(), heap.address);
  }
  void remove(Heap& heap) { by_room_.erase({heap.room(), heap.address}), heaps_.erase(heap.address); }

 private:
  std::map<Size, Heap> heaps_;                // by address
  std::set<std::pair<Size, Size>> by_room_;  // their room and address
};

}  // namespace kvpeak
