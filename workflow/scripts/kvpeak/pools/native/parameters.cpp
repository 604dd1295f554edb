// How a setting is read: see Parameters in policy.h.
#include <cstdlib>

#include "policy.h"

namespace kvpeak {

static double number_of(const std::string& key, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !std::isfinite(value))
    throw std::invalid_argument(key + ": expected a number, got " + text);
  return value;
}

static Size whole_of(const std::string& key, const std::string& text) {
  const double value = number_of(key, text);
  if (!(value >= 0 && value < 0x1p53) || value != std::floor(value))
    throw std::invalid_argument(key + ": expected a whole number, got " + text);
  return Size(value);
}

Parameters::Parameters(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t colon = text.find(':', at);
    if (colon == std::string::npos || colon == at)
      throw std::invalid_argument("expected key:value, got " + text.substr(at));
    std::size_t end = text.find(',', colon);
    if (text[colon + 1] == '[') {
      end = text.find(']', colon);
      if (end == std::string::npos) throw std::invalid_argument("expected ] in " + text.substr(at));
      end = text.find(',', end);
    }
    if (end == std::string::npos) end = text.size();
    const std::string key = text.substr(at, colon - at);
    if (!given_.emplace(key, text.substr(colon + 1, end - colon - 1)).second)
      throw std::invalid_argument(key + ": given twice");
    at = end + 1;
  }
}

std::string Parameters::text(const std::string& key, const std::string& otherwise) {
  asked_.insert(key);
  auto found = given_.find(key);
  return found == given_.end() ? otherwise : found->second;
}

bool Parameters::flag(const std::string& key) {
  const std::string value = text(key, "False");
  if (value != "True" && value != "False")
    throw std::invalid_argument(key + ": expected True or False, got " + value);
  return value == "True";
}

double Parameters::number(const std::string& key, double otherwise) {
  const std::string value = text(key, "");
  return value.empty() ? otherwise : number_of(key, value);
}

Size Parameters::bytes(const std::string& key, const std::string& otherwise) {
  const std::string value = text(key, otherwise);
  if (value == "none") return NO_LIMIT;
  const std::size_t unit = value.find_first_not_of("0123456789");
  const std::string name = unit == std::string::npos ? "" : value.substr(unit);
  const Size times = name.empty() ? 1 : name == "KiB" ? KIB : name == "MiB" ? MIB : name == "GiB" ? GIB : 0;
  if (!times || unit == 0 || value.substr(0, unit).size() > 12)
    throw std::invalid_argument(key + ": expected none or a size as 64MiB, got " + value);
  return whole_of(key, value.substr(0, unit)) * times;
}

Size Parameters::mib(const std::string& key, double otherwise) {
  const std::string value = text(key, "");
  if (value.empty()) return otherwise == INFINITY ? NO_LIMIT : Size(otherwise * double(MIB));
  const Size mib = whole_of(key, value);
  return mib > NO_LIMIT / MIB ? NO_LIMIT : mib * MIB;
}

std::array<Size, 16> Parameters::divisions(const std::string& key) {
  std::array<Size, 16> parts{};
  const std::string value = text(key, "");
  if (value.empty()) return parts;
  if (value.front() != '[') return parts.fill(whole_of(key, value)), parts;
  if (value.back() != ']') throw std::invalid_argument(key + ": expected [MiB:number,...]");
  std::size_t last = 0;
  bool first = true;
  Parameters list(value.substr(1, value.size() - 2));
  std::vector<std::pair<Size, Size>> steps;
  Size above = 0;
  for (auto& [size, number] : list.given_) {
    const Size divided = whole_of(key, number);
    if (size == ">") above = divided;
    else steps.emplace_back(whole_of(key, size), divided);
  }
  std::sort(steps.begin(), steps.end());
  for (auto& [size, divided] : steps) {
    if (!size || (size & (size - 1))) throw std::invalid_argument(key + ": sizes are powers of two");
    last = std::size_t(std::min(log2_floor(size), 15));
    if (first) std::fill(parts.begin(), parts.begin() + std::ptrdiff_t(last), divided);
    parts[last] = divided, first = false;
  }
  if (list.given_.count(">"))
    std::fill(parts.begin() + std::ptrdiff_t(first ? 0 : last + 1), parts.end(), above);
  for (Size divided : parts)
    if (divided & (divided - 1)) throw std::invalid_argument(key + ": numbers are powers of two");
  return parts;
}

void Parameters::check() const {
  for (auto& [key, value] : given_) {
    if (asked_.count(key)) continue;
    std::string known;
    for (auto& name : asked_) known += (known.empty() ? "" : ", ") + name;
    throw std::invalid_argument(key + ": not a setting of this policy; it has " +
                                (known.empty() ? "none" : known));
  }
}

std::unique_ptr<Policy> make_policy(const std::string& name, const std::string& setting,
                                    Source& source) {
  auto found = registry().find(name);
  if (found == registry().end()) {
    std::string known;
    for (auto& [other, entry] : registry()) known += (known.empty() ? "" : ", ") + other;
    throw std::invalid_argument(name + ": not a policy; there are " + known);
  }
  if (found->second.twice)
    throw std::invalid_argument(name + ": two policies have this name; rename the one that was added");
  Parameters parameters(setting);
  auto policy = found->second.make(source, parameters);
  return parameters.check(), std::move(policy);
}

}  // namespace kvpeak
