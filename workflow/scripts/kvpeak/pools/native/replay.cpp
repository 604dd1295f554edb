// Drives a policy with a recorded trace. Called from Python with columns (kvpeak/pools/library.py),
// from several threads at once: nothing here is shared but the word to stop.
#include <atomic>
#include <cstring>

#include "policy.h"
#include "policies.inc"  // written by the build: every header of policies/

namespace kvpeak {
namespace {

enum Op : std::uint8_t {
  ALLOC, FREE, RELEASE, UPLOAD, WAIT, CLEAR, PRESSURE, ATTEMPT, SEGMENT, PLACED, SLACK, HOLE,
};

constexpr Size LARGEST = 1024 * 1024 * GIB;  // of one request, and of all: so that no sum overflows
constexpr std::uint64_t LOOKS = 16;  // events between two looks at `interrupted`: one may take ms

int failed(const char* what, char* message, std::uint64_t room) {
  return std::strncpy(message, what, room - 1), message[room - 1] = 0, 1;
}

}  // namespace

extern "C" {

struct kvpeak_events {
  std::uint64_t count, buffers;  // ids are below `buffers`
  const std::uint8_t* op;
  const std::uint32_t *id, *stream;
  const std::uint64_t* bytes;
};

// Everything in bytes or counts; `*_at` are events, -1 for none.
struct kvpeak_result {
  std::uint64_t reserved_peak, reserved_end, active_peak, allocated_peak, requested_peak;
  std::uint64_t active_at_peak, requested_at_peak;
  std::uint64_t requests, hits, made, returned, retries, retry_bytes;
  std::int64_t peak_at, active_peak_at, failed_at;
  std::uint64_t failed_bytes, failed_reserved, failed_active;
};

// Replays until event `stop`. Of `bins` equal parts of the events, the most reserved, active and
// requested go to `series` (3 × bins). `held`, if given, gets what each buffer takes at the end.
// Ends soon after another thread sets `interrupted`. Returns 0, or 1 with a message.
int kvpeak_replay(const char* name, const char* setting, std::uint64_t limit,
                  const kvpeak_events* events, std::uint64_t stop, std::uint64_t bins,
                  std::uint64_t* series, std::uint64_t* held, kvpeak_result* result,
                  const std::atomic<int>* interrupted, char* message, std::uint64_t room) try {
  Numbered source;
  source.limit = limit;
  auto policy = make_policy(name, setting, source);
  std::vector<Block*> blocks(events->buffers, nullptr);
  std::vector<Part> parts;
  Size allocated = 0, segment = 0;
  std::uint32_t segment_stream = 0;
  std::vector<bool> released(events->buffers, false);
  kvpeak_result r{};
  r.peak_at = r.active_peak_at = r.failed_at = -1;
  Size highest = 0, most_active = 0;

  auto adopt = [&] {
    if (segment) policy->adopt(segment, segment_stream, parts);
    for (const Part& part : parts)
      if (part.slot && *part.slot) allocated += (*part.slot)->size;
    parts.clear(), segment = 0;
  };
  for (std::uint64_t i = 0; i < std::min(events->count, stop); ++i) {
    const std::uint8_t op = events->op[i];
    const std::uint32_t id = events->id[i], stream = events->stream[i];
    const Size bytes = events->bytes[i];
    if (i % LOOKS == 0 && *interrupted) throw std::runtime_error("interrupted");
    if (id >= events->buffers && (op <= UPLOAD || op == PLACED))
      throw std::invalid_argument("event " + std::to_string(i) + ": no such buffer");
    if (bytes > LARGEST) throw std::invalid_argument("event " + std::to_string(i) + ": larger than any device");
    if (segment && op < SLACK && op != PLACED) adopt();
    switch (op) {
      case ALLOC:
      case UPLOAD: {
        if (blocks[id]) throw std::invalid_argument("event " + std::to_string(i) + ": allocated twice");
        const Size retries = policy->retries, returned = source.returned_bytes;
        const Size reserved = source.reserved, active = policy->active;
        ++r.requests;
        Block* block = blocks[id] = policy->request(bytes, stream, op == UPLOAD);
        if (policy->retries != retries) r.retry_bytes += source.returned_bytes - returned;
        if (!block) {
          if (r.failed_at < 0) r.failed_at = std::int64_t(i), r.failed_bytes = bytes,
                               r.failed_reserved = reserved, r.failed_active = active;
          break;
        }
        allocated += block->size, released[id] = false;
        break;
      }
      case FREE:
        if (!blocks[id]) break;
        if (!released[id]) allocated -= blocks[id]->size;
        policy->give_back(blocks[id]), blocks[id] = nullptr;
        break;
      case RELEASE:
        if (!blocks[id] || released[id]) break;
        allocated -= blocks[id]->size, released[id] = true;
        policy->release(&blocks[id]);
        break;
      case WAIT: policy->wait(); break;
      case CLEAR: policy->trim(); break;
      case ATTEMPT:
        if (limit != NO_LIMIT) {
          const Size hits = policy->hits;
          if (Block* block = policy->request(bytes, stream)) policy->give_back(block);
          policy->hits = hits;  // it is no request of the program's
        }
        break;
      case SEGMENT: segment = bytes, segment_stream = stream; break;
      case PLACED:
        if (!segment) throw std::invalid_argument("event " + std::to_string(i) + ": outside a segment");
        parts.push_back({bytes, bytes, &blocks[id]});
        break;
      case SLACK: if (!parts.empty()) parts.back().size += bytes; break;
      case HOLE: if (segment) parts.push_back({bytes, 0, nullptr}); break;
      case PRESSURE: break;
      default: throw std::invalid_argument("event " + std::to_string(i) + ": no such operation");
    }
    if (source.reserved > 1024 * LARGEST)
      throw std::invalid_argument("event " + std::to_string(i) + ": more memory than any machine has");
    if (source.reserved > highest) {
      highest = source.reserved, r.peak_at = std::int64_t(i);
      r.active_at_peak = policy->active, r.requested_at_peak = policy->requested;
    }
    if (policy->active > most_active) most_active = policy->active, r.active_peak_at = std::int64_t(i);
    r.allocated_peak = std::max(r.allocated_peak, allocated);
    if (bins) {
      const std::uint64_t bin = i * bins / events->count;
      series[bin] = std::max(series[bin], source.reserved);
      series[bins + bin] = std::max(series[bins + bin], policy->active);
      series[2 * bins + bin] = std::max(series[2 * bins + bin], policy->requested);
    }
    if (r.failed_at >= 0) break;
  }
  if (segment) adopt();
  if (held)
    for (std::uint64_t id = 0; id < events->buffers; ++id) held[id] = blocks[id] ? blocks[id]->size : 0;
  r.reserved_peak = source.reserved_peak, r.reserved_end = source.reserved;
  r.active_peak = policy->active_peak, r.requested_peak = policy->requested_peak;
  r.hits = policy->hits, r.made = source.made, r.returned = source.returned;
  r.retries = policy->retries;
  *result = r;
  return 0;
} catch (const std::bad_alloc&) {
  return failed("the replay needs more memory than there is", message, room);
} catch (const std::exception& error) {
  return failed(error.what(), message, room);
} catch (...) {
  return failed("the policy failed and does not say why", message, room);
}

// The policies, a line each: name, meaning and settings worth trying, between tabs.
int kvpeak_policies(char* text, std::uint64_t room) {
  std::string all;
  for (auto& [name, entry] : registry()) all += name + "\t" + entry.meaning + "\t" + entry.search + "\n";
  if (all.size() >= room) return 1;
  return std::memcpy(text, all.c_str(), all.size() + 1), 0;
}

}  // extern "C"
}  // namespace kvpeak
