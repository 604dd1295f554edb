// Random programs against every policy, watched: no byte is in two held buffers, none lies outside
// the memory that was taken, and when all is freed and trimmed nothing is left. Run under the
// sanitizers by `make sanitize`; an argument is the number of programs for each setting.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "policy.h"
#include "policies.inc"

using namespace kvpeak;

[[noreturn]] static void fail(const std::string& setting, const char* what) {
  std::fprintf(stderr, "%s: %s\n", setting.c_str(), what);
  std::abort();
}

// Ranges of addresses that do not overlap.
class Ranges {
 public:
  bool add(Size address, Size bytes) {
    if (!bytes) return true;
    auto next = at_.lower_bound(address);
    if (next != at_.end() && next->first < address + bytes) return false;
    if (next != at_.begin() && std::prev(next)->first + std::prev(next)->second > address) return false;
    return at_.emplace(address, bytes), true;
  }
  bool remove(Size address, Size bytes) {
    if (!bytes) return true;
    auto found = at_.find(address);
    if (found == at_.end() || found->second != bytes) return false;
    return at_.erase(found), true;
  }
  // Whether every byte is in a range; ranges may touch.
  bool cover(Size address, Size bytes) const {
    while (bytes) {
      auto found = at_.upper_bound(address);
      if (found == at_.begin()) return false;
      --found;
      if (found->first + found->second <= address) return false;
      const Size here = std::min(bytes, found->first + found->second - address);
      address += here, bytes -= here;
    }
    return true;
  }
  bool empty() const { return at_.empty(); }
  // Cut a part out of the ranges that cover it.
  void cut(Size address, Size bytes) {
    for (Size from = address; from < address + bytes;) {
      auto found = std::prev(at_.upper_bound(from));
      const auto [start, length] = *found;
      at_.erase(found);
      if (start < from) at_.emplace(start, from - start);
      const Size end = std::min(start + length, address + bytes);
      if (end < start + length) at_.emplace(end, start + length - end);
      from = end;
    }
  }

 private:
  std::map<Size, Size> at_;
};

class Watched : public Source {
 public:
  explicit Watched(std::string name) : name_(std::move(name)) {}
  Ranges memory, addresses;
  Size reserve(Size bytes) override {
    const Size address = next_;
    next_ += bytes + 4096;
    if (!addresses.add(address, bytes)) fail(name_, "addresses twice");
    return address;
  }
  void forget(Size address, Size bytes) override {
    if (!addresses.remove(address, bytes)) fail(name_, "forgets what it does not have");
  }

 protected:
  Size get(Size bytes) override {
    const Size address = next_;
    next_ += bytes + 4096;
    return memory.add(address, bytes), address;
  }
  void put(Size address, Size bytes) override {
    if (!memory.remove(address, bytes)) fail(name_, "gives back what it does not have");
  }
  bool back(Size address, Size bytes) override {
    if (!addresses.cover(address, bytes)) fail(name_, "maps outside its segment");
    if (!memory.add(address, bytes)) fail(name_, "maps twice");
    return true;
  }
  void unback(Size address, Size bytes) override {
    if (!memory.cover(address, bytes)) fail(name_, "unmaps what is not mapped");
    memory.cut(address, bytes);
  }

 private:
  std::string name_;
  Size next_ = Size{1} << 20;
};

static void program(const std::string& name, const std::string& setting, unsigned seed) {
  const std::string whole = name + "," + setting;
  std::mt19937 chance(seed);
  Watched source(whole);
  if (chance() % 2) source.limit = 64 * MIB + chance() % (512 * MIB);
  auto policy = make_policy(name, setting, source);
  Ranges held;
  struct Tensor { Block* block; Size address, size; bool released; };
  std::vector<std::unique_ptr<Tensor>> tensors, gone;  // a policy may keep the place of a block
  Size active = 0;
  auto drop = [&](std::size_t at) {
    Tensor& tensor = *tensors[at];
    if (tensor.block) {
      policy->give_back(tensor.block), tensor.block = nullptr;
      if (!held.remove(tensor.address, tensor.size)) fail(whole, "lost");
    }
    gone.push_back(std::move(tensors[at]));
    tensors.erase(tensors.begin() + std::ptrdiff_t(at));
  };
  // What a retry settled is free: it is no longer held.
  auto settled = [&] {
    for (auto& tensor : tensors)
      if (tensor->released && !tensor->block && tensor->size)
        held.remove(tensor->address, tensor->size), tensor->size = 0;
  };
  for (int step = 0; step < 400; ++step) {
    const unsigned what = chance() % 100;
    if (what < 55) {
      const double exponent = std::uniform_real_distribution<>(0, 27)(chance);
      const Size bytes = Size(std::exp2(exponent));
      Block* block = policy->request(bytes, chance() % 2, what == 0);
      settled();
      if (!block) continue;
      if (block->size < bytes) fail(whole, "too small");
      if (!source.memory.cover(block->address, block->size)) fail(whole, "no memory behind it");
      if (!held.add(block->address, block->size)) fail(whole, "handed out twice");
      tensors.push_back(std::make_unique<Tensor>(Tensor{block, block->address, block->size, false}));
    } else if (what < 94 && !tensors.empty()) {
      drop(chance() % tensors.size());
    } else if (what < 97 && !tensors.empty()) {
      Tensor& tensor = *tensors[chance() % tensors.size()];
      if (tensor.block && !tensor.released) tensor.released = true, policy->release(&tensor.block);
    } else if (what == 98) {
      policy->wait();
    } else {
      policy->trim(), settled();
    }
    active = 0;
    for (auto& tensor : tensors) if (tensor->block) active += tensor->size;
    if (policy->active != active) fail(whole, "counts other bytes than are held");
    if (source.reserved < active) fail(whole, "holds more than it took");
    if (source.reserved > source.limit) fail(whole, "over the limit");
  }
  while (!tensors.empty()) drop(tensors.size() - 1);
  policy->settle(), policy->trim();
  if (policy->active || policy->requested) fail(whole, "counts buffers that are gone");
  if (source.reserved || !source.memory.empty()) fail(whole, "memory is lost");
  if (!source.addresses.empty()) fail(whole, "addresses are lost");
}

static std::vector<std::string> settings_of(const Entry& entry) {
  std::vector<std::string> found{""};
  for (std::size_t at = 0; at < entry.search.size();) {
    std::size_t end = std::min(entry.search.find(';', at), entry.search.size());
    const std::string part = entry.search.substr(at, end - at);
    const std::string key = part.substr(part.find_first_not_of(' '),
                                        part.find(':') - part.find_first_not_of(' '));
    std::size_t from = part.find(':') + 1;
    while ((from = part.find_first_not_of(' ', from)) != std::string::npos) {
      std::size_t to = std::min(part.find(' ', from), part.size());
      found.push_back(key + ":" + part.substr(from, to - from));
      from = to;
    }
    at = end + 1;
  }
  if (entry.search.find("expandable") != std::string::npos)
    found.push_back("expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5");
  return found;
}

int main(int count, char** given) {
  const unsigned programs = count > 1 ? unsigned(std::atoi(given[1])) : 20;
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 2; ++thread)
    threads.emplace_back([=] {
      for (auto& [name, entry] : registry())
        for (auto& setting : settings_of(entry))
          for (unsigned seed = 0; seed < programs; ++seed) program(name, setting, 2 * seed + thread);
    });
  for (auto& thread : threads) thread.join();
  std::puts("every policy held");
}
