// PyTorch's CUDA allocator (c10/cuda/CUDACachingAllocator.cpp, 2.11), with its own settings.
// Requests are rounded to 512 bytes and cut from segments of 2 MiB (requests up to 1 MiB), 20 MiB, or
// from 10 MiB of whole 2 MiB. The smallest free block of the stream that fits is split; free
// neighbours merge. Short of memory, free segments go back, and the request is tried again.
#pragma once
#include "segments.h"

namespace kvpeak {

class Torch : public Segments {
 public:
  Torch(Source& source, Parameters& given)
      : Segments(source), divisions_(given.divisions("roundup_power2_divisions")),
        expandable_(given.flag("expandable_segments")), max_split_(given.mib("max_split_size_mb")),
        rounding_(given.mib("max_non_split_rounding_mb", 20)),
        threshold_(given.number("garbage_collection_threshold", 0)) {
    if (max_split_ < 20 * MIB) throw std::invalid_argument("max_split_size_mb: at least 20");
    if (!(threshold_ >= 0 && threshold_ < 1))
      throw std::invalid_argument("garbage_collection_threshold: expected at least 0, below 1");
  }
  Block* allocate(Size bytes, std::uint32_t stream) override {
    const Size size = rounded(bytes);
    Pool& pool = size > MIB ? large_ : small_;
    Block* block = find(pool, size, stream);
    if (!block && threshold_ && source.limit != NO_LIMIT)
      release_oldest(large_, std::floor(threshold_ * double(source.limit)));
    if (!block) block = fresh(pool, size, stream);
    if (!block && max_split_ != NO_LIMIT &&
        release_some(pool, std::max(size, max_split_), max_split_, stream))
      block = fresh(pool, size, stream);
    if (!block) ++retries, trim(), block = fresh(pool, size, stream);
    const Size rest = block ? block->size - size : 0;
    if (block && (&pool == &small_ || expandable_ ? rest >= 512 : size < max_split_ && rest > MIB))
      pool.insert(cut(pool, block, size));
    return block;
  }
  void free(Block* block) override {
    Pool& pool = block->pool ? large_ : small_;
    merge(pool, block), pool.insert(block);
  }
  void trim() override { settle(), release_all(large_), release_all(small_); }
  void adopt(Size bytes, std::uint32_t stream, const std::vector<Part>& parts) override {
    if (expandable_) return Policy::adopt(bytes, stream, parts);
    Segments::adopt(bytes > 2 * MIB ? large_ : small_, bytes, stream, parts);
  }

 private:
  Size rounded(Size n) const {
    const Size parts = n < 512 ? 0 : divisions_[std::min(std::max(log2_floor(n) - 20, 0), 15)];
    if (parts > 1 && n > 512 * parts) return round_to_part(n, parts);
    return std::max<Size>(512, round_up(n, 512));
  }
  Block* find(Pool& pool, Size size, std::uint32_t stream) {
    ++pool.clock;
    auto at = pool.free.first(stream, size);
    auto is_there = [&](auto it) { return it != pool.free.end() && it->stream == stream; };
    if (!is_there(at)) return nullptr;
    if (expandable_)
      for (auto next = std::next(at); is_there(next) && reach(next->block) < reach(at->block);) at = next++;
    const Size most = size < max_split_ ? max_split_ : size + rounding_;
    return at->block->size < most || most == NO_LIMIT ? take(pool, at) : nullptr;
  }
  Block* fresh(Pool& pool, Size size, std::uint32_t stream) {
    const Size bytes = size <= MIB ? 2 * MIB : size < 10 * MIB ? 20 * MIB : round_up(size, 2 * MIB);
    if (expandable_) return source.fits(bytes) ? grow(pool, size, stream) : nullptr;
    const Size address = source.take(bytes);
    return address ? make(pool, address, bytes, stream) : nullptr;
  }

  const std::array<Size, 16> divisions_;
  const bool expandable_;
  const Size max_split_, rounding_;
  const double threshold_;
  Pool small_{0, 2 * MIB}, large_{1, 20 * MIB};
};
KVPEAK_POLICY("torch", Torch, "PyTorch on CUDA, with the settings of PYTORCH_CUDA_ALLOC_CONF",
              "expandable_segments: True; max_split_size_mb: 20 32 64 128 256 512 1024; "
              "roundup_power2_divisions: 2 4 8 16; garbage_collection_threshold: 0.6 0.8");

}  // namespace kvpeak
