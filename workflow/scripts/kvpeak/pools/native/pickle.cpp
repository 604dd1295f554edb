// Whether a pickle can be a snapshot of PyTorch's memory, before Python reads it. Python's reader
// cannot be stopped: nine bytes may ask it for 64 GiB, a nest of pairs as a key for 2^60 steps. So:
// plain containers, numbers and texts; keys are texts; memo numbers come in turn; and what Python
// would take for it is counted, generously, with a limit.
// The operations are those of Python's pickletools.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvpeak {
namespace {

enum Kind : std::uint8_t { MARK, TEXT, OTHER };

class Pickle {
 public:
  Pickle(const std::uint8_t* bytes, std::uint64_t size, std::uint64_t most)
      : at_(bytes), end_(bytes + size), frame_end_(bytes), size_(size), most_(most) {}
  // Throws std::invalid_argument at the first thing that no snapshot has.
  void check() {
    while (step()) {}
    if (containers_ > size_ / 4 + 64) refuse("holds more containers than a snapshot of its size");
  }

 private:
  [[noreturn]] static void refuse(const std::string& why) { throw std::invalid_argument(why); }
  const std::uint8_t* take(std::uint64_t bytes) {
    if (bytes > std::uint64_t(end_ - at_)) refuse("ends too early");
    if (at_ < frame_end_ && bytes > std::uint64_t(frame_end_ - at_))
      refuse("has an operation across the end of a frame");
    return at_ += bytes, at_ - bytes;
  }
  // Python reads a frame at once. It drops what is left of one that an operation reaches beyond, and
  // would go on elsewhere than this check.
  void frame() {
    const std::uint64_t bytes = number(8);
    if (at_ < frame_end_) refuse("has a frame in a frame");
    if (bytes > std::uint64_t(end_ - at_)) refuse("ends too early");
    frame_end_ = at_ + bytes;
  }
  std::uint64_t number(int width) {
    const std::uint8_t* from = take(width);
    std::uint64_t value = 0;
    while (width--) value = value << 8 | from[width];
    return value;
  }
  // Bytes that Python takes: an object, its place in a container or on the stack.
  void spend(std::uint64_t bytes) {
    if ((spent_ += bytes) > most_)
      refuse("would take more than " + std::to_string(most_ >> 20) + " MiB of memory");
  }
  void text(std::uint64_t bytes) {
    const std::uint8_t* from = take(bytes);
    bool wide = false;  // a single wide sign makes four bytes of each
    for (std::uint64_t i = 0; i < bytes && !wide; ++i) wide = from[i] & 0x80;
    spend(64 + (wide ? 4 : 1) * bytes), stack_.push_back(TEXT);
  }
  void plain(std::uint64_t bytes) { take(bytes), spend(40), stack_.push_back(OTHER); }
  void container(int parts) {
    while (parts--) pop();
    ++containers_, spend(72), stack_.push_back(OTHER);
  }
  Kind pop() {
    if (stack_.empty() || stack_.back() == MARK) refuse("takes what is not there");
    const Kind top = stack_.back();
    return stack_.pop_back(), top;
  }
  void key() {
    if (pop() != TEXT) refuse("has a key that is no text");
  }
  // Drop what came since the last mark, in pairs of key and value or one by one.
  void pop_to_mark(bool pairs) {
    while (!stack_.empty() && stack_.back() != MARK) {
      pop(), spend(pairs ? 56 : 16);
      if (pairs) key();
    }
    if (pairs) spend(160);
    if (stack_.empty()) refuse("takes what is not there");
    stack_.pop_back();
  }
  void remember(std::uint64_t number) {
    if (number > memo_.size()) refuse("skips memo numbers");
    const Kind top = pop();
    if (number == memo_.size()) memo_.push_back(top), spend(24);
    memo_[number] = top, stack_.push_back(top);
  }
  void recall(std::uint64_t number) {
    if (number >= memo_.size()) refuse("takes what is not there");
    spend(8), stack_.push_back(memo_[number]);
  }

  bool step() {
    const std::uint8_t operation = *take(1);
    switch (operation) {
      case 0x80: take(1); break;                              // PROTO
      case 0x95: frame(); break;                              // FRAME
      case '(': spend(16), stack_.push_back(MARK); break;     // MARK
      case '}': case ']': case ')': container(0); break;      // EMPTY_DICT, _LIST, _TUPLE
      case 0x85: case 0x86: case 0x87: container(operation - 0x84); break;  // TUPLE1, 2, 3
      case 't': pop_to_mark(false), container(0); break;      // TUPLE
      case 'N': case 0x88: case 0x89: plain(0); break;        // NONE, NEWTRUE, NEWFALSE
      case 'K': plain(1); break;                              // BININT1
      case 'M': plain(2); break;                              // BININT2
      case 'J': plain(4); break;                              // BININT
      case 'G': plain(8); break;                              // BINFLOAT
      case 0x8a: {                                            // LONG1
        const std::uint64_t bytes = number(1);
        if (bytes > 9) refuse("has a number beyond 64 bits");
        plain(bytes);
        break;
      }
      case 0x8c: text(number(1)); break;                      // SHORT_BINUNICODE
      case 'X': text(number(4)); break;                       // BINUNICODE
      case 0x8d: text(number(8)); break;                      // BINUNICODE8
      case 'q': remember(number(1)); break;                   // BINPUT
      case 'r': remember(number(4)); break;                   // LONG_BINPUT
      case 0x94: remember(memo_.size()); break;               // MEMOIZE
      case 'h': recall(number(1)); break;                     // BINGET
      case 'j': recall(number(4)); break;                     // LONG_BINGET
      case 's': pop(), key(), spend(216); break;              // SETITEM
      case 'u': pop_to_mark(true); break;                     // SETITEMS
      case 'a': pop(), spend(16); break;                      // APPEND
      case 'e': pop_to_mark(false); break;                    // APPENDS
      case '.': pop(); return false;                          // STOP
      // GLOBAL, STACK_GLOBAL, INST, EXT1, 2, 4, PERSID, BINPERSID: Python's reader refuses these
      // by name, and reads nothing behind them.
      case 'c': case 0x93: case 'i': case 0x82: case 0x83: case 0x84: case 'P': case 'Q':
        return false;
      default: refuse("uses operation " + std::to_string(operation) +
                      ", and a snapshot does not: refused, nothing was run");
    }
    return true;
  }

  const std::uint8_t *at_, *end_, *frame_end_;
  const std::uint64_t size_, most_;
  std::uint64_t containers_ = 0, spent_ = 0;
  std::vector<Kind> stack_, memo_;
};

}  // namespace

// Returns 0, or 1 with a message that says what the pickle does. most: bytes of memory that reading
// it may take.
extern "C" int kvpeak_check_pickle(const std::uint8_t* bytes, std::uint64_t size,
                                   std::uint64_t most, char* message, std::uint64_t room) try {
  return Pickle(bytes, size, most).check(), 0;
} catch (const std::exception& error) {
  return std::strncpy(message, error.what(), room - 1), message[room - 1] = 0, 1;
}

}  // namespace kvpeak
