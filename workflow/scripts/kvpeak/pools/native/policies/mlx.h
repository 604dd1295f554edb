// MLX 0.32: a free buffer serves a request of n bytes if its size is in [n, min(2n, n + 2 pages)),
// the smallest first; so a cache that grows never gets back what it freed. `cap` is
// mx.set_cache_limit. Back ends differ in rounding, in pages and in what they keep:
// - cpu: sizes as asked for, 4 KiB pages; one that would take the free ones over the cap is not kept
//   (mlx/backend/no_gpu/allocator.cpp).
// - metal: above a page rounded up to pages of 16 KiB; kept while less than the cap is free; after
//   each request the least recently freed go until the cap holds; before a new buffer that would
//   take the sum over `gc_limit`, as many go as are missing (mlx/backend/metal/allocator.cpp).
// - cuda: below a page powers of two, from 8; the rest as metal, with the device's `gc_limit`
//   (mlx/backend/cuda/allocator.cpp).
#pragma once
#include "policy.h"

namespace kvpeak {

class Mlx : public WholeBuffers {
 public:
  Mlx(Source& source, Parameters& given)
      : Mlx(source, given, given.text("backend", "metal")) {}
  Size new_size(Size bytes) const override {
    if (cpu_) return bytes;
    if (bytes > page_ || (bytes == page_ && cuda_)) return round_up(bytes, page_);
    return cuda_ ? std::max<Size>(8, power_of_two(bytes)) : bytes;
  }
  Size largest(Size bytes) const override {
    const Size n = new_size(bytes);
    return n ? std::min(2 * n, n + 2 * page_) - 1 : 0;
  }
  bool keeps(Size size) const override {
    if (cpu_) return size && size <= cap_ && free_bytes <= cap_ - size;
    return free_bytes < cap_;
  }
  Block* allocate(Size bytes, std::uint32_t stream) override {
    Block* block = WholeBuffers::allocate(bytes, stream);
    if (!cpu_ && free_bytes > cap_) collect(free_bytes - cap_);
    return block;
  }
  void free(Block* block) override {
    const Size before = free_bytes;
    WholeBuffers::free(block);
    if (!cpu_ && free_bytes != before) oldest_.emplace_hint(oldest_.end(), clock_, block);
  }

 protected:
  Size at_least(Size bytes) const override { return new_size(bytes); }
  void take(Block* block) override {
    if (!cpu_) oldest_.erase(block->age);
    WholeBuffers::take(block);
  }
  void before_making(Size size) override {
    const Size needed = active + free_bytes + size;
    if (!cpu_ && needed >= gc_limit_) collect(needed - gc_limit_);
  }

 private:
  Mlx(Source& source, Parameters& given, const std::string& backend)
      : WholeBuffers(source), cpu_(backend == "cpu"), cuda_(backend == "cuda"),
        page_(cpu_ ? 4 * KIB : 16 * KIB), cap_(given.bytes("cap", cpu_ ? "32MiB" : "none")),
        gc_limit_(given.bytes("gc_limit", "none")) {
    if (!cpu_ && !cuda_ && backend != "metal")
      throw std::invalid_argument("backend: expected cpu, metal or cuda; got " + backend);
  }
  // Free at least so many bytes, the least recently freed first; nine tenths of all: all.
  void collect(Size bytes) {
    if (double(bytes) >= 0.9 * double(free_bytes)) return trim();
    for (Size freed = 0; freed < bytes && !oldest_.empty();) {
      Block* block = oldest_.begin()->second;
      freed += block->size, evict(block);
    }
  }

  const bool cpu_, cuda_;
  const Size page_, cap_, gc_limit_;
  // Free blocks by age; on a CPU none ever has to go for another.
  std::map<Size, Block*, std::less<Size>, NodeAllocator<std::pair<const Size, Block*>>> oldest_;
};
KVPEAK_POLICY("mlx", Mlx, "MLX: a narrow window of sizes, a cap on what is kept",
              "backend: cpu cuda; cap: 0 32MiB 128MiB 512MiB none");

}  // namespace kvpeak
