// What a buffer pool is made of: where memory comes from (Source), a buffer (Block), and
// the rule between them (Policy). A policy is written once and used in two places: replay.cpp drives
// it with a recorded trace over numbers that stand for addresses, live_mlx.cpp with MLX's own
// requests over real memory. All sizes are in bytes. docs/pools.md says how to add a policy.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvpeak {

using Size = std::uint64_t;
constexpr Size NO_LIMIT = std::numeric_limits<Size>::max();
constexpr Size KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;

inline Size round_up(Size n, Size to) { return (n + to - 1) / to * to; }
inline int log2_floor(Size n) { return 63 - __builtin_clzll(n); }  // n > 0
// The smallest power of two that is at least n.
inline Size power_of_two(Size n) { return n <= 1 ? 1 : Size{1} << (log2_floor(n - 1) + 1); }
// Up to the next of `parts` equal steps between the powers of two around n.
inline Size round_to_part(Size n, Size parts) {
  const Size floor = Size{1} << log2_floor(n), step = floor >> log2_floor(parts);
  return n == floor ? n : step ? round_up(n, step) : 2 * floor;
}

// Nodes of sets and maps, used again and again: a free list is several times faster than the C
// library. One a set, so no locks.
template <class T>
struct NodeAllocator {
  using value_type = T;
  union Node {
    Node* next;
    alignas(T) unsigned char bytes[sizeof(T)];
  };
  struct Store {
    std::vector<std::unique_ptr<Node[]>> slabs;
    Node* free = nullptr;
  };
  std::shared_ptr<Store> store = std::make_shared<Store>();
  NodeAllocator() = default;
  template <class U>
  NodeAllocator(const NodeAllocator<U>&) {}
  T* allocate(std::size_t n) {
    if (n != 1) return static_cast<T*>(::operator new(n * sizeof(T)));
    if (!store->free) {
      store->slabs.emplace_back(new Node[64]);
      for (int i = 63; i >= 0; --i) put(&store->slabs.back()[std::size_t(i)]);
    }
    return reinterpret_cast<T*>(std::exchange(store->free, store->free->next));
  }
  void deallocate(T* node, std::size_t n) {
    if (n == 1) put(reinterpret_cast<Node*>(node));
    else ::operator delete(node);
  }
  bool operator==(const NodeAllocator& other) const { return store == other.store; }
  bool operator!=(const NodeAllocator& other) const { return store != other.store; }

 private:
  void put(Node* node) { node->next = store->free, store->free = node; }
};

// Where a free block stands among others: by stream, then by two numbers. They are here, not looked
// up in the block: that would be a cache line more for every comparison.
struct Block;
struct Place {
  std::uint32_t stream;
  Size number, then;
  Block* block;
  bool operator<(const Place& other) const {
    if (stream != other.stream) return stream < other.stream;
    return number != other.number ? number < other.number : then < other.then;
  }
};
using Places = std::multiset<Place, std::less<Place>, NodeAllocator<Place>>;

// One buffer: a range of addresses, held by a tensor or free.
struct Block {
  Size address = 0;
  Size size = 0;       // what it takes
  Size requested = 0;  // what was asked for, while a tensor holds it
  std::uint32_t stream = 0;
  bool held = false;
  bool mapped = true;       // memory stands behind it (false only in expandable segments)
  bool expandable = false;  // part of an expandable segment
  std::uint8_t pool = 0;    // the policy's own: which of its pools it belongs to
  Size segment = 0;         // the address of the segment that it is a part of
  Size age = 0;             // the policy's own clock when it was freed
  void* home = nullptr;     // the policy's own; in a pool of whole buffers the queue that it is in
  Block *before = nullptr, *after = nullptr;  // its neighbours in a split segment, or in its queue
  Places::iterator place{};                   // where it is in its Free
  Size known = 0;           // live: the address that `pointer` is of
  void* pointer = nullptr;  // live: what the engine is given
};

// Where memory comes from, and how much of it was taken. `limit` is all there is.
class Source {
 public:
  Size limit = NO_LIMIT, reserved = 0, reserved_peak = 0, made = 0, returned = 0, returned_bytes = 0;
  virtual ~Source() = default;

  bool fits(Size bytes) const { return bytes <= limit && reserved <= limit - bytes; }
  // A new range of memory; 0 if it would go over the limit.
  Size take(Size bytes) {
    if (!fits(bytes)) return 0;
    Size address = get(bytes);
    if (address) count(bytes);
    return address;
  }
  void give(Size address, Size bytes) { put(address, bytes), uncount(bytes); }

  // Addresses without memory, and memory behind a part of them (expandable segments).
  virtual Size room() const { return 52429 * 20 * MIB; }  // of one segment: 1 TiB, in whole pages
  virtual Size reserve(Size bytes) = 0;
  virtual void forget(Size address, Size bytes) = 0;
  bool map(Size address, Size bytes) {
    if (!fits(bytes) || !back(address, bytes)) return false;
    return count(bytes), true;
  }
  void unmap(Size address, Size bytes) { unback(address, bytes), uncount(bytes); }

 protected:
  virtual Size get(Size bytes) = 0;
  virtual void put(Size address, Size bytes) = 0;
  virtual bool back(Size address, Size bytes) = 0;
  virtual void unback(Size address, Size bytes) = 0;

 private:
  void count(Size bytes) {
    reserved += bytes, ++made;
    reserved_peak = std::max(reserved_peak, reserved);
  }
  void uncount(Size bytes) { reserved -= bytes, ++returned, returned_bytes += bytes; }
};

// Addresses that are numbers only, one range after another: with them a rule that prefers the lower
// of two addresses does the same in a replay and live, wherever the system puts real memory. No
// address is given twice, so all that is ever taken is bounded.
class Numbered : public Source {
 public:
  Size reserve(Size bytes) override { return number(bytes); }
  void forget(Size, Size) override {}

 protected:
  Size number(Size bytes) {
    const Size address = next_, most = Size{1} << 62;
    if (bytes > most || next_ > most - bytes)
      throw std::length_error("takes more than 2^62 bytes, one after another");
    return next_ += round_up(std::max<Size>(bytes, 1), 2 * MIB), address;
  }
  Size get(Size bytes) override { return number(bytes); }
  void put(Size, Size) override {}
  bool back(Size, Size) override { return true; }
  void unback(Size, Size) override {}

 private:
  Size next_ = Size{1} << 32;
};

// A setting: `key:value,key:value`, as in PYTORCH_CUDA_ALLOC_CONF; a value may be a [list].
// What a policy asks for is what it knows: check() refuses the other keys.
class Parameters {
 public:
  explicit Parameters(const std::string& text);
  std::string text(const std::string& key, const std::string& otherwise);
  double number(const std::string& key, double otherwise);
  // Bytes: 0, 4096, 64MiB; `none`: NO_LIMIT.
  Size bytes(const std::string& key, const std::string& otherwise);
  Size mib(const std::string& key, double otherwise = INFINITY);
  // For sizes from 1 MiB, 2 MiB, ... 32 GiB: a number, or [MiB:number,...,>:number] as PyTorch has it.
  std::array<Size, 16> divisions(const std::string& key);
  bool flag(const std::string& key);  // True or False
  void check() const;

 private:
  std::map<std::string, std::string> given_;
  std::set<std::string> asked_;
};

// A part of a segment that was there before a recording began: held by a tensor, or free.
struct Part {
  Size size, requested;
  Block** slot;  // null: free
};

class Policy {
 public:
  explicit Policy(Source& source) : source(source) {}
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // Serve a request; null if there is not enough memory. `stream` keeps apart what may not be
  // mixed: CUDA's streams, Candle's heaps (0 private, 1 shared).
  virtual Block* allocate(Size bytes, std::uint32_t stream) = 0;
  virtual void free(Block* block) = 0;
  // Host data (Candle): an own buffer of exactly its size.
  virtual Block* upload(Size bytes, std::uint32_t stream) { return allocate(bytes, stream); }
  virtual void wait() {}      // the host waits for the device
  virtual void trim() = 0;    // give back all that is free
  virtual bool splits() const { return false; }  // hands out parts of what it takes

  // A segment as it was when the recording began. A policy with other segments asks for the buffers.
  virtual void adopt(Size, std::uint32_t stream, const std::vector<Part>& parts) {
    for (const Part& part : parts)
      if (part.slot) *part.slot = request(part.requested, stream);
  }

  // Freed by the program while another stream still uses it: `slot` is emptied when it is free.
  void release(Block** slot) { pending_.push_back(slot); }
  void settle() {
    for (Block** slot : pending_)
      if (*slot) give_back(*slot), *slot = nullptr;
    pending_.clear();
  }

  // The two doors of every request, with the counters behind them.
  Block* request(Size bytes, std::uint32_t stream, bool exactly = false) {
    const Size made = source.made;
    Block* block = exactly ? upload(bytes, stream) : allocate(bytes, stream);
    if (block) hold(block, bytes), hits += source.made == made;
    return block;
  }
  void give_back(Block* block) {
    active -= block->size, requested -= block->requested;
    block->held = false, block->requested = 0;
    free(block);
  }

  Source& source;
  Size active = 0, active_peak = 0, requested = 0, requested_peak = 0, hits = 0, retries = 0;

 protected:
  void hold(Block* block, Size bytes) {
    block->requested = bytes, block->held = true;
    active += block->size, requested += bytes;
    active_peak = std::max(active_peak, active);
    requested_peak = std::max(requested_peak, requested);
  }

 private:
  std::vector<Block**> pending_;
};

// Free parts of segments, in an order; `first` finds the smallest of a stream with at least so much.
template <class Order>
class Free {
 public:
  using Iterator = Places::const_iterator;
  Iterator begin() const { return places_.begin(); }
  Iterator end() const { return places_.end(); }
  bool empty() const { return places_.empty(); }
  Iterator first(std::uint32_t stream, Size size) const {
    return places_.lower_bound({stream, size, 0, nullptr});
  }
  void insert(Block* block) { block->place = places_.insert(Order::place(block)); }
  void erase(const Block* block) { places_.erase(block->place); }
  // The same for a block that is in another one, too.
  void add(Block* block) { places_.insert(Order::place(block)); }
  void remove(Block* block) { places_.erase(places_.find(Order::place(block))); }

 private:
  Places places_;
};
struct BySize {
  static Place place(Block* b) { return {b->stream, b->size, b->address, b}; }
};
struct ByAddress {
  static Place place(Block* b) { return {b->stream, b->address, 0, b}; }
};

// Free whole buffers: a queue for each size, the one freed first at its head.
class Queues {
 public:
  // The smallest of a stream with at least so much; or null.
  Block* first(std::uint32_t stream, Size size) {
    auto at = queues_.lower_bound({stream, size});
    while (at != queues_.end() && !at->second.head) at = queues_.erase(at);  // so each is met once
    return at != queues_.end() && at->first.first == stream ? at->second.head : nullptr;
  }
  void insert(Block* block) {
    Queue& queue = queues_[{block->stream, block->size}];
    block->home = &queue, block->before = queue.tail, block->after = nullptr;
    (queue.tail ? queue.tail->after : queue.head) = block, queue.tail = block;
  }
  void erase(Block* block) {
    Queue& queue = *static_cast<Queue*>(block->home);
    (block->before ? block->before->after : queue.head) = block->after;
    (block->after ? block->after->before : queue.tail) = block->before;
  }
  template <class Each>
  void clear(Each evict) {  // in order, by a function that erases the block
    for (auto& [key, queue] : queues_)
      while (queue.head) evict(queue.head);
    queues_.clear();
  }

 private:
  struct Queue { Block *head = nullptr, *tail = nullptr; };
  std::map<std::pair<std::uint32_t, Size>, Queue> queues_;
};

// Blocks themselves, likewise used again; all are deleted with the policy.
class Blocks {
 public:
  Block* make() {
    if (free_.empty()) {
      slabs_.emplace_back(new Block[256]);
      for (int i = 255; i >= 0; --i) free_.push_back(slabs_.back().get() + i);
    }
    Block* block = free_.back();
    return free_.pop_back(), *block = Block{}, block;
  }
  void drop(Block* block) { free_.push_back(block); }

 private:
  std::vector<std::unique_ptr<Block[]>> slabs_;
  std::vector<Block*> free_;
};

// A pool of whole buffers, as most engines have one: no splitting, the smallest free one that fits.
// A policy says how large a new buffer is, which free one may serve, and which is kept.
class WholeBuffers : public Policy {
 public:
  using Policy::Policy;
  virtual Size new_size(Size bytes) const { return bytes; }
  virtual Size largest(Size bytes) const = 0;  // the largest free buffer that may serve a request
  virtual bool keeps(Size) const { return true; }

  Block* allocate(Size bytes, std::uint32_t stream) override {
    Block* block = free_.first(stream, at_least(bytes));
    if (block && block->size <= largest(bytes)) return take(block), block;
    before_making(new_size(bytes));
    return make(new_size(bytes), stream);
  }
  Block* upload(Size bytes, std::uint32_t stream) override { return make(bytes, stream); }
  void free(Block* block) override {
    if (!keeps(block->size)) return drop(block);
    block->age = ++clock_;
    free_bytes += block->size;
    free_.insert(block);
  }
  void trim() override {
    free_.clear([this](Block* block) { evict(block); });
  }

  Size free_bytes = 0;

 protected:
  virtual Size at_least(Size bytes) const { return bytes; }
  virtual void before_making(Size) {}
  virtual void take(Block* block) { free_.erase(block), free_bytes -= block->size; }
  Block* make(Size size, std::uint32_t stream) {
    Size address = source.take(size);
    if (!address && (++retries, settle(), trim(), !(address = source.take(size)))) return nullptr;
    Block* block = blocks_.make();
    return block->address = address, block->size = size, block->stream = stream, block;
  }
  void evict(Block* block) { take(block), drop(block); }
  void drop(Block* block) { source.give(block->address, block->size), blocks_.drop(block); }

  Queues free_;
  Blocks blocks_;
  Size clock_ = 0;
};

// The policies that were compiled in, by name. `search` names the settings worth trying: for each
// key the values, `key: value value; key: value`.
struct Entry {
  std::string meaning, search;
  std::unique_ptr<Policy> (*make)(Source&, Parameters&);
  bool twice = false;  // a second policy has the same name: neither is used
};
inline std::map<std::string, Entry>& registry() {
  static std::map<std::string, Entry> entries;
  return entries;
}
std::unique_ptr<Policy> make_policy(const std::string& name, const std::string& setting, Source&);

// Whether the name was free.
inline bool enter(const std::string& name, Entry entry) {
  auto [place, is_new] = registry().emplace(name, std::move(entry));
  return place->second.twice = !is_new, is_new;
}

#define KVPEAK_POLICY(NAME, CLASS, MEANING, SEARCH)                                              \
  static const bool CLASS##_is_registered = kvpeak::enter(                                       \
      NAME, kvpeak::Entry{MEANING, SEARCH,                                                       \
                          [](kvpeak::Source& source, kvpeak::Parameters& given) {                \
                            return std::unique_ptr<kvpeak::Policy>(                              \
                                std::make_unique<CLASS>(source, given));                         \
                          }})

}  // namespace kvpeak
