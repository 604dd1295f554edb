// PyTorch on Metal (aten/src/ATen/mps/MPSAllocator.mm): buffers are placed in heaps and stay there,
// free or held, until memory is short. Heaps have 8 MiB (requests up to 1 MiB), 32 MiB (below
// 10 MiB), 1 GiB (below 512 MiB), or are made for one buffer. A free buffer serves requests down to
// 32 MiB below its size; a larger one makes room in its heap, unless another heap has room.
// Where Metal places a buffer in a heap is not documented: here at the lowest gap that fits.
// `align` is what sizes are rounded to; `high_watermark` the most that may be taken.
#pragma once
#include "heap.h"

namespace kvpeak {

class TorchMps : public Policy {
 public:
  TorchMps(Source& source, Parameters& given)
      : Policy(source), align_(given.bytes("align", "256")) {
    if (!align_ || align_ > MIB) throw std::invalid_argument("align: expected 1 to 1MiB");
    const Size high = given.bytes("high_watermark", "none");
    if (high < source.limit) source.limit = high;
  }
  bool splits() const override { return true; }

  Block* allocate(Size bytes, std::uint32_t stream) override {
    const Size size = round_up(std::max<Size>(bytes, 1), align_);
    Kind& kind = kinds_[{stream, size > MIB}];
    auto at = kind.free.first(stream, size);
    if (at != kind.free.end()) {
      Block* block = at->block;
      if (block->size <= size + 32 * MIB) return kind.free.erase(block), block;
      if (!kind.heaps.with_room(size)) drop(kind, block);
    }
    Block* block = place(kind, size, stream);
    if (!block) ++retries, trim(), block = place(kind, size, stream);
    return block;
  }
  void free(Block* block) override { kinds_[{block->stream, block->pool}].free.insert(block); }
  void trim() override {
    settle();
    for (auto& [key, kind] : kinds_)
      while (!kind.free.empty()) drop(kind, kind.free.begin()->block);
  }

 private:
  struct Kind { Free<BySize> free; Heaps heaps; };

  Block* place(Kind& kind, Size size, std::uint32_t stream) {
    Heap* heap = kind.heaps.with_room(size);
    if (!heap) {
      const Size all = size <= MIB ? 8 * MIB : size < 10 * MIB ? 32 * MIB
                       : size < 512 * MIB ? GIB : round_up(size, 2 * MIB);
      const Size address = source.take(all);
      if (!address) return nullptr;
      heap = kind.heaps.add(address, all);
    }
    Block* block = blocks_.make();
    block->address = kind.heaps.place(*heap, size), block->size = size, block->stream = stream, block->pool = size > MIB;
    return block->home = heap, block;
  }
  void drop(Kind& kind, Block* block) {
    Heap& heap = *static_cast<Heap*>(block->home);
    kind.free.erase(block);
    kind.heaps.clear(heap, block->address, block->size);
    blocks_.drop(block);
    if (heap.room() == heap.size) source.give(heap.address, heap.size), kind.heaps.remove(heap);
  }

  const Size align_;
  std::map<std::pair<std::uint32_t, bool>, Kind> kinds_;
  Blocks blocks_;
};
KVPEAK_POLICY("torch-mps", TorchMps, "PyTorch on Metal: buffers placed in heaps", "");

}  // namespace kvpeak
