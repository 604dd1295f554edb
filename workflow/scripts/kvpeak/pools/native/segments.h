// A pool that hands out parts of larger segments: blocks are cut, neighbours that are free merge,
// and a segment may be expandable: addresses for all the memory there is, mapped page by page.
#pragma once
#include "policy.h"

namespace kvpeak {

class Segments : public Policy {
 public:
  using Policy::Policy;
  bool splits() const override { return true; }

 protected:
  struct Pool {
    std::uint8_t number;
    Size page;  // how much of an expandable segment is mapped at once
    Free<BySize> free{};
    Free<BySize> whole{}, paged{};  // of the free ones, what can be given back: segments, pages
    Free<ByAddress> unmapped{};
    Size clock = 0;  // for the age of free blocks
    void insert(Block* block) {
      block->age = clock, free.insert(block);
      if (auto* kind = given_back(block)) kind->add(block);
    }
    void erase(Block* block) {
      if (auto* kind = given_back(block)) kind->remove(block);
      free.erase(block);
    }

   private:
    // The set of what can be given back that a free block is in; null: none. While it is free, its
    // size and whether it has neighbours stay as they are.
    Free<BySize>* given_back(const Block* block) {
      if (block->expandable && !pages(block, page).bytes) return nullptr;
      return !is_split(block) ? &whole : block->expandable ? &paged : nullptr;
    }
  };
  struct Range { Size address, bytes; };
  // The whole pages of a part of an expandable segment.
  static Range pages(const Block* block, Size page) {
    const Size from = block->segment + round_up(block->address - block->segment, page);
    const Size to = block->segment + (block->address + block->size - block->segment) / page * page;
    return {from, from < to ? to - from : 0};
  }
  static bool is_free(const Block* block) { return block && !block->held; }
  static bool is_split(const Block* block) { return block->before || block->after; }

  template <class At>
  static Block* take(Pool& pool, At at) {
    Block* block = at->block;
    return pool.erase(block), block;
  }
  // The size of a block with the unmapped addresses behind it.
  static Size reach(const Block* block) {
    return block->size + (block->after && !block->after->mapped ? block->after->size : 0);
  }

  Block* make(Pool& pool, Size address, Size size, std::uint32_t stream) {
    Block* block = blocks_.make();
    block->address = block->segment = address, block->size = size;
    block->stream = stream, block->pool = pool.number;
    return block;
  }
  // Leave `size` bytes in the block and return the rest, which comes behind it.
  Block* cut(Pool& pool, Block* block, Size size) {
    Block* rest = make(pool, block->address + size, block->size - size, block->stream);
    rest->expandable = block->expandable, rest->mapped = block->mapped;
    rest->segment = block->segment, block->size = size;
    rest->before = block, rest->after = block->after, block->after = rest;
    if (rest->after) rest->after->before = rest;
    return rest;
  }
  // Take in the neighbours that are free, and as mapped as the block is.
  void merge(Pool& pool, Block* block) {
    for (Block* other : {block->before, block->after}) {
      if (!is_free(other) || other->mapped != block->mapped) continue;
      other->mapped ? pool.erase(other) : pool.unmapped.erase(other);
      if (other == block->before) block->address = other->address, block->before = other->before;
      else block->after = other->after;
      if (block->before) block->before->after = block;
      if (block->after) block->after->before = block;
      block->size += other->size, blocks_.drop(other);
    }
  }
  // Give the memory of a free block that is a whole segment back.
  void release(Pool& pool, Block* block) {
    pool.erase(block), source.give(block->address, block->size), blocks_.drop(block);
  }
  // Give back all that can be: whole segments, and whole pages of expandable ones. What cannot be is
  // not looked at: a pool may be emptied again and again.
  void release_all(Pool& pool) {
    for (auto* kind : {&pool.whole, &pool.paged})
      while (!kind->empty()) {
        Block* block = kind->begin()->block;
        if (block->expandable) unmap(pool, block);
        else release(pool, block);
      }
  }
  // Give back the one whole segment of at least `wanted` bytes, or the largest, none smaller than
  // `least`, until together they have as much; expandable ones stay. Returns whether they do.
  bool release_some(Pool& pool, Size wanted, Size least, std::uint32_t stream) {
    auto at = pool.whole.first(stream, wanted);
    if (at != pool.whole.end() && at->stream == stream && !at->block->expandable)
      return release(pool, at->block), true;
    Size freed = 0;
    while (freed < wanted && at != pool.whole.begin()) {
      Block* block = std::prev(at)->block;
      if (block->stream != stream || block->size < least) break;
      if (block->expandable) --at;
      else freed += block->size, release(pool, block);
    }
    return freed >= wanted;
  }
  // Give back whole segments, those unused for longer than the average first, until no more than
  // `goal` bytes are reserved.
  void release_oldest(Pool& pool, double goal) {
    for (bool freed = true; freed && double(source.reserved) > goal;) {
      std::vector<Block*> whole;
      for (auto& place : pool.whole) whole.push_back(place.block);
      double ages = freed = false;
      for (Block* block : whole) ages += double(pool.clock - block->age);
      for (Block* block : whole)
        if (double(pool.clock - block->age) * double(whole.size()) >= ages)
          release(pool, block), freed = true;
    }
  }

  // A free block of at least `size` bytes at the lowest place of an expandable segment that has
  // room, mapped as far as needed; null if there is not enough memory.
  Block* grow(Pool& pool, Size size, std::uint32_t stream) {
    if (size > source.room()) return nullptr;
    Block* block = with_room(pool, size, stream);
    if (!block->mapped && !map(pool, block, std::min(block->size, size))) return nullptr;
    while (block->size < size) {
      Block* next = block->after;
      if (!map(pool, next, std::min(size - block->size, next->size))) return nullptr;
      block = next;  // it took the part before it in
    }
    return pool.erase(block), block;
  }
  // Unmap the whole pages of a free block that has some; what is left on its sides stays free.
  void unmap(Pool& pool, Block* block) {
    const auto [from, bytes] = pages(block, pool.page);
    pool.erase(block);
    if (from + bytes < block->address + block->size)
      pool.insert(cut(pool, block, from + bytes - block->address));
    if (from > block->address) {
      Block* rest = cut(pool, block, from - block->address);
      pool.insert(block), block = rest;
    }
    source.unmap(block->address, block->size);
    block->mapped = false, merge(pool, block);
    if (is_split(block)) pool.unmapped.insert(block);
    else source.forget(block->address, block->size), blocks_.drop(block);
  }
  // Lay a segment out as it was.
  void adopt(Pool& pool, Size bytes, std::uint32_t stream, const std::vector<Part>& parts) {
    const Size address = source.take(bytes);
    Block* block = address ? make(pool, address, bytes, stream) : nullptr;
    for (const Part& part : parts) {
      if (!block || part.size > block->size) throw std::invalid_argument("segment: too many parts");
      Block* rest = part.size < block->size ? cut(pool, block, part.size) : nullptr;
      if (part.slot) hold(*part.slot = block, part.requested);
      else pool.insert(block);
      block = rest;
    }
    if (block) pool.insert(block);
  }

 private:
  Block* with_room(Pool& pool, Size size, std::uint32_t stream) {
    for (auto at = pool.unmapped.first(stream, 0); at != pool.unmapped.end(); ++at) {
      if (at->stream != stream) break;
      Block* block = is_free(at->block->before) ? at->block->before : at->block;
      Size bytes = 0;
      for (Block* b = block; bytes < size && is_free(b); b = b->after) bytes += b->size;
      if (bytes >= size) return block;
    }
    const Size room = source.room();
    Block* block = make(pool, source.reserve(room), room, stream);
    block->expandable = true, block->mapped = false;
    return pool.unmapped.insert(block), block;
  }
  bool map(Pool& pool, Block* block, Size bytes) {
    const Size mapped = round_up(bytes, pool.page);
    if (!source.map(block->address, mapped)) return false;
    pool.unmapped.erase(block);
    if (mapped < block->size) pool.unmapped.insert(cut(pool, block, mapped));
    block->mapped = true, merge(pool, block), pool.insert(block);
    return true;
  }

  Blocks blocks_;
};

}  // namespace kvpeak
