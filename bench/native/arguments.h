// The command line of the native benchmarks: `--name VALUE`, each written where it belongs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "verbs-endpoint.h"

namespace bench {

using Argument = std::function<void(const std::string& value)>;
using Arguments = std::map<std::string, Argument>;

inline Argument into(std::string& text) {
  return [&text](const std::string& value) { text = value; };
}

inline Argument into(uint32_t& number) {
  return [&number](const std::string& value) {
    size_t read = 0;
    try {
      number = static_cast<uint32_t>(std::stoul(value, &read));
    } catch (const std::exception&) {
      read = 0;
    }
    if (read == 0 || read != value.size()) fail("not a number: " + value);
  };
}

// Calls `take` with the place of the value among `names`.
template <typename Names, typename Take>
Argument one_of(const Names& names, Take take) {
  return [&names, take](const std::string& value) {
    const auto found = std::find(std::begin(names), std::end(names), value);
    if (found == std::end(names)) fail("what is " + value + "?");
    take(static_cast<uint32_t>(found - std::begin(names)));
  };
}

inline Argument into(rdmakit::Progress& progress) {
  static constexpr const char* kNames[] = {"manual", "automatic"};
  return one_of(kNames, [&progress](uint32_t at) {
    progress = at == 0 ? rdmakit::Progress::manual : rdmakit::Progress::automatic;
  });
}

// Fails for what it does not know. `switches` are without a value, and get an empty one.
inline void parse(int argc, char** argv, const Arguments& known, const Arguments& switches = {}) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = std::string(argv[i]).rfind("--", 0) == 0 ? argv[i] + 2 : "";
    if (const auto found = switches.find(name); found != switches.end()) {
      found->second("");
    } else if (const auto wanted = known.find(name); wanted != known.end() && i + 1 < argc) {
      wanted->second(argv[++i]);
    } else {
      fail(std::string("unknown, or without its value: ") + argv[i]);
    }
  }
}

}  // namespace bench
