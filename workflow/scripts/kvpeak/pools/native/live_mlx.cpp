// A policy between MLX and its allocator. MLX has one allocator object of an abstract class; its
// table of functions is replaced by that of a class here, which serves requests from the policy and
// asks the original, by its own functions, for what the policy does not have. Built against the
// headers of the MLX wheel that it is loaded into, with the C++ ABI of Itanium (clang, g++): the
// functions of the table are malloc, free, size, make_buffer, release, in that order.
//
// MLX's own limit has to be 0 meanwhile (mx.set_cache_limit), so that there is one pool, not two.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "mlx/allocator.h"
#include "mlx/scheduler.h"
#include "mlx/stream.h"
#include "policy.h"
#include "policies.inc"

namespace kvpeak {
namespace {

using mlx::core::allocator::Allocator;
using mlx::core::allocator::Buffer;

// The functions of the original, which is the object that `self` points to.
struct Original {
  Allocator* self = nullptr;
  void** table = nullptr;
  Buffer malloc(Size bytes) const {
    return reinterpret_cast<Buffer (*)(Allocator*, std::size_t)>(table[0])(self, bytes);
  }
  void free(Buffer buffer) const { reinterpret_cast<void (*)(Allocator*, Buffer)>(table[1])(self, buffer); }
  Size size(Buffer buffer) const {
    return reinterpret_cast<std::size_t (*)(const Allocator*, Buffer)>(table[2])(self, buffer);
  }
  Buffer make_buffer(void* ptr, Size bytes) const {
    return reinterpret_cast<Buffer (*)(Allocator*, void*, std::size_t)>(table[3])(self, ptr, bytes);
  }
  void release(Buffer buffer) const {
    reinterpret_cast<void (*)(Allocator*, Buffer)>(table[4])(self, buffer);
  }
};

// While the policy asks the original for memory. The original asks this object for the sizes of its own
// buffers, in the thread that has the lock already.
struct InOriginal {
  static inline thread_local bool here = false;
  InOriginal() { here = true; }
  ~InOriginal() { here = false; }
};

// Memory of the original's buffers behind numbered addresses. A real address is that of the data
// where the policy hands out parts (on a CPU data lie `shift` bytes behind what a Buffer points to),
// else what the Buffer points to.
class Buffers : public Numbered {
 public:
  Original original;
  Size shift = 0;
  // As PyTorch has it: an eighth more than the machine's memory.
  Size room() const override {
    const Size memory = Size(sysconf(_SC_PHYS_PAGES)) * Size(sysconf(_SC_PAGESIZE));
    return round_up(memory + memory / 8, 20 * MIB);
  }
  Size reserve(Size bytes) override {
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no addresses for an expandable segment");
    return add(reinterpret_cast<Size>(at), bytes);
  }
  void forget(Size address, Size bytes) override {
    munmap(real(address), bytes), real_.erase(address);
  }
  void* real(Size address) const {
    auto range = std::prev(real_.upper_bound(address));
    return reinterpret_cast<void*>(range->second + (address - range->first));
  }
  // What MLX is given for a block, looked up once an address: no two ranges have the same.
  void* pointer(Block* block) const {
    if (block->known != block->address)
      block->known = block->address, block->pointer = pointer(block->address);
    return block->pointer;
  }

 protected:
  Size get(Size bytes) override {
    InOriginal within;
    void* buffer = original.malloc(bytes).ptr();
    return buffer ? add(reinterpret_cast<Size>(buffer) + shift, bytes) : 0;
  }
  void put(Size address, Size) override {
    InOriginal within;
    original.free(Buffer{pointer(address)}), real_.erase(address);
  }
  bool back(Size address, Size bytes) override {
    return !mprotect(real(address), bytes, PROT_READ | PROT_WRITE);
  }
  void unback(Size address, Size bytes) override {
    const int how = MAP_PRIVATE | MAP_ANON | MAP_NORESERVE | MAP_FIXED;
    mmap(real(address), bytes, PROT_NONE, how, -1, 0);
  }

 private:
  void* pointer(Size address) const { return static_cast<char*>(real(address)) - shift; }
  Size add(Size real, Size bytes) {
    const Size address = number(bytes);
    return real_.emplace(address, real), address;
  }
  std::map<Size, Size, std::less<Size>, NodeAllocator<std::pair<const Size, Size>>> real_;
};

// What is recorded, in the order in which threads took a place for it. No thread waits for another:
// where there are more threads than cores, one that holds a lock is often not running.
class Recording {
 public:
  enum Op : std::uint8_t { ALLOC = 0, FREE = 1, CLEAR = 5 };
  std::atomic<std::uint8_t> phase{0};

  bool on = false;

  // Called before the memory goes, and after it has come: so events of one address are in order.
  void note(Op op, const void* pointer = nullptr, Size bytes = 0) {
    if (!on) return;
    const std::uint64_t place = taken_.fetch_add(1, std::memory_order_relaxed);
    Chunk& chunk = chunk_of(place);
    if (place % A_TIME == 0) chunk.times[place % EACH / A_TIME] = now();
    Event& event = chunk.events[place % EACH];
    event.pointer = pointer;
    event.what.store(bytes << 16 | Size(phase) << 8 | WRITTEN | op, std::memory_order_release);
  }
  std::uint64_t count() const { return taken_; }
  // Columns of the first `count` events; returns how many. Ids are numbers of births. What was
  // there before the recording is not in it.
  std::uint64_t copy(std::uint64_t count, std::int64_t* time, std::uint8_t* op, std::uint32_t* id,
                     std::uint64_t* bytes, std::uint16_t* phase) {
    std::unordered_map<const void*, std::uint32_t> ids;
    std::uint32_t births = 0;
    std::uint64_t to = 0;
    for (std::uint64_t from = 0; from < count; ++from) {
      const Chunk& chunk = chunk_of(from);
      const Event& event = chunk.events[from % EACH];
      Size what;
      while (!(what = event.what.load(std::memory_order_acquire))) std::this_thread::yield();
      op[to] = what & ~WRITTEN & 0xff, id[to] = 0;
      if (op[to] == ALLOC) ids[event.pointer] = id[to] = births++;
      if (op[to] == FREE) {
        const auto found = ids.find(event.pointer);
        if (found == ids.end()) continue;
        id[to] = found->second, ids.erase(found);
      }
      time[to] = chunk.times[from % EACH / A_TIME];
      bytes[to] = what >> 16, phase[to++] = what >> 8 & 0xff;
    }
    return to;
  }

 private:
  struct Event {
    const void* pointer;
    std::atomic<Size> what;  // bytes, phase and operation; 0: not written yet
  };
  static constexpr Size EACH = 1 << 16, CHUNKS = 1 << 14, A_TIME = 16, WRITTEN = 0x80;
  // The clock is read for one event in A_TIME: read for each it would cost more than all else here.
  struct Chunk {
    Event events[EACH];
    std::int64_t times[EACH / A_TIME];  // microseconds
  };
  static std::int64_t now() {
    using namespace std::chrono;
    return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
  }
  // The chunk of a place; whoever needs it first makes it. Memory is taken as it is written to.
  Chunk& chunk_of(std::uint64_t place) {
    if (place >= EACH * CHUNKS) throw std::length_error("a recording of more than 2^30 events");
    std::atomic<Chunk*>& chunk = chunks_[place / EACH];
    Chunk* found = chunk.load(std::memory_order_acquire);
    if (!found) {
      auto made = static_cast<Chunk*>(std::calloc(1, sizeof(Chunk)));
      if (!made) throw std::bad_alloc();
      if (chunk.compare_exchange_strong(found, made)) found = made;
      else std::free(made);
    }
    return *found;
  }

  std::array<std::atomic<Chunk*>, CHUNKS> chunks_{};
  std::atomic<std::uint64_t> taken_{0};
};

// The blocks that MLX holds, by the pointer that it has: at most half full, each as near behind the
// place of its hash as is free.
class Held {
 public:
  Block* find(const void* pointer) const { return entries_[place(pointer)].block; }
  void insert(const void* pointer, Block* block) {
    if (2 * ++count_ > entries_.size()) grow();
    entries_[place(pointer)] = {pointer, block};
  }
  // Take a block out; null if there is none.
  Block* take(const void* pointer) {
    std::size_t gap = place(pointer);
    Block* block = entries_[gap].block;
    if (!block) return nullptr;
    --count_;
    entries_[gap] = {};
    for (std::size_t at = next(gap); entries_[at].block; at = next(at)) {  // what has to move up
      const Entry entry = std::exchange(entries_[at], Entry{});
      entries_[place(entry.pointer)] = entry;
    }
    return block;
  }

 private:
  struct Entry {
    const void* pointer = nullptr;
    Block* block = nullptr;
  };
  std::size_t next(std::size_t at) const { return (at + 1) & (entries_.size() - 1); }
  // Where the pointer is, or the gap where it would be.
  std::size_t place(const void* pointer) const {
    const Size hash = reinterpret_cast<Size>(pointer) * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    std::size_t at = hash >> 32 & (entries_.size() - 1);
    while (entries_[at].block && entries_[at].pointer != pointer) at = next(at);
    return at;
  }
  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old)
      if (entry.block) entries_[place(entry.pointer)] = entry;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(1024);
  std::size_t count_ = 0;
};

struct State {
  std::mutex mutex;  // of what follows
  Buffers source;
  std::unique_ptr<Policy> policy;  // null: everything passes through, to be recorded
  Held held;
  Recording recording;
  bool waits = false;
  std::thread::id program;  // the thread that installed the pool
};
State* state = nullptr;  // never deleted: arrays outlive everything at exit

// On a CPU the program's thread asks for the buffers of operations that another thread runs a moment
// later, and frees their inputs when it has; an input that is free by then may be written over. So
// two processes differ. With `wait` they do not: the other thread runs only while the program asks
// for memory and waits for it, else it stands at a gate. The gate opens by itself after a while,
// for a program that waits for a result.
constexpr auto GATE_OPENS = std::chrono::milliseconds(20);

struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool open = false;
};

void let_the_other_thread_run() {
  if (!state->waits || std::this_thread::get_id() != state->program) return;
  static std::shared_ptr<Gate> gate;  // where it stands now
  if (gate) {
    std::lock_guard lock(gate->mutex);
    gate->open = true, gate->opened.notify_all();
  }
  std::vector<std::future<void>> running;
  gate = std::make_shared<Gate>();
  for (const mlx::core::Stream& stream : mlx::core::get_streams()) {
    if (stream.device != mlx::core::Device::cpu) continue;
    auto ran = std::make_shared<std::promise<void>>();
    running.push_back(ran->get_future());
    mlx::core::scheduler::enqueue(stream, [ran, here = gate] {
      ran->set_value();
      std::unique_lock lock(here->mutex);
      here->opened.wait_for(lock, GATE_OPENS, [&] { return here->open; });
    });
  }
  for (auto& each : running) each.wait();
}

// MLX decides by a buffer's size whether an operation may write over its input. Its own pool hands
// out at most two pages more than was asked for; it is told no more than that, so that its requests
// are the same under every policy.
constexpr Size MOST_SLACK = 2 * 4 * KIB - 1;

class Between final : public Allocator {
 public:
  Buffer malloc(std::size_t bytes) override {
    let_the_other_thread_run();
    if (!bytes) return state->source.original.malloc(0);
    if (!state->policy) {
      Buffer buffer = state->source.original.malloc(bytes);
      if (buffer.ptr()) state->recording.note(Recording::ALLOC, buffer.ptr(), bytes);
      return buffer;
    }
    std::lock_guard lock(state->mutex);
    Block* block = state->policy->request(bytes, 0);
    if (!block) return Buffer{nullptr};
    void* pointer = state->source.pointer(block);
    state->recording.note(Recording::ALLOC, pointer, bytes);
    state->held.insert(pointer, block);
    return Buffer{pointer};
  }
  void free(Buffer buffer) override {
    if (!state->policy) {
      state->recording.note(Recording::FREE, buffer.ptr());
      return state->source.original.free(buffer);
    }
    std::unique_lock lock(state->mutex);
    Block* block = state->held.take(buffer.ptr());
    if (!block) return lock.unlock(), state->source.original.free(buffer);
    state->recording.note(Recording::FREE, buffer.ptr());
    state->policy->give_back(block);
  }
  std::size_t size(Buffer buffer) const override {
    if (!state->policy || InOriginal::here) return state->source.original.size(buffer);
    std::unique_lock lock(state->mutex);
    const Block* block = state->held.find(buffer.ptr());
    if (!block) return lock.unlock(), state->source.original.size(buffer);
    return std::min(block->size, block->requested + MOST_SLACK);
  }
  Buffer make_buffer(void* pointer, std::size_t bytes) override {
    return state->source.original.make_buffer(pointer, bytes);
  }
  void release(Buffer buffer) override { state->source.original.release(buffer); }
};

int failed(const char* what, char* message, std::uint64_t room) {
  return std::strncpy(message, what, room - 1), message[room - 1] = 0, 1;
}

}  // namespace

extern "C" {

struct kvpeak_counters {
  std::uint64_t active, active_peak, reserved, reserved_peak, hits, made, returned, events;
};

// Put the policy (an empty name: none, only the recording) in. `wait`: see above. `whole`: buffers
// cannot be parted.
int kvpeak_mlx_install(const char* name, const char* setting, int record, int wait, int whole,
                       char* message, std::uint64_t room) try {
  if (state) return failed("a pool is installed already", message, room);
  auto made = std::make_unique<State>();
  Allocator& object = mlx::core::allocator::allocator();
  made->source.original.self = &object;
  std::memcpy(&made->source.original.table, static_cast<void*>(&object), sizeof(void*));
  if (*name) made->policy = make_policy(name, setting, made->source);
  if (made->policy && made->policy->splits()) {
    if (whole) return failed("it hands out parts of buffers, which Metal's cannot be", message, room);
    Buffer probe = made->source.original.malloc(64);
    made->source.shift = Size(static_cast<char*>(probe.raw_ptr()) - static_cast<char*>(probe.ptr()));
    made->source.original.free(probe);
  }
  made->recording.on = record;
  made->waits = wait;
  made->program = std::this_thread::get_id();
  state = made.release();
  static Between between;
  std::memcpy(static_cast<void*>(&object), static_cast<void*>(&between), sizeof(void*));
  return 0;
} catch (const std::exception& error) {
  return failed(error.what(), message, room);
}

void kvpeak_mlx_counters(kvpeak_counters* counters) {
  std::lock_guard lock(state->mutex);
  const std::uint64_t events = state->recording.count();
  if (const Policy* p = state->policy.get())
    *counters = {p->active, p->active_peak, p->source.reserved, p->source.reserved_peak, p->hits,
                 p->source.made, p->source.returned, events};
  else *counters = {0, 0, 0, 0, 0, 0, 0, events};
}

// The peaks begin anew at what is there now.
void kvpeak_mlx_reset_peaks() {
  std::lock_guard lock(state->mutex);
  if (!state->policy) return;
  state->policy->active_peak = state->policy->active;
  state->policy->requested_peak = state->policy->requested;
  state->source.reserved_peak = state->source.reserved;
}

// mx.clear_cache: noted, and done unless the original does it.
void kvpeak_mlx_trim() {
  std::lock_guard lock(state->mutex);
  state->recording.note(Recording::CLEAR);
  if (state->policy) state->policy->trim();
}

void kvpeak_mlx_phase(std::uint8_t phase) { state->recording.phase = phase; }

// The first `count` events as columns; see Recording.
std::uint64_t kvpeak_mlx_events(std::uint64_t count, std::int64_t* time, std::uint8_t* op,
                                std::uint32_t* id, std::uint64_t* bytes, std::uint16_t* phase) {
  return state->recording.copy(count, time, op, id, bytes, phase);
}

}  // extern "C"
}  // namespace kvpeak
