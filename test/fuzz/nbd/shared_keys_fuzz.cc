// The file of shared keys of TLS, and the name that a client sends: a key is whole bytes in hex, of the line
// with that name, and no other name gets it.
#include <cstring>
#include <string>

#include "../fuzz_check.h"
#include "tls/shared_keys.h"

using namespace rdmakit::nbd;

namespace {

std::string text_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string hex_of(std::string_view name) {
  std::string hex = "#";
  for (const char each : name) {
    hex += "0123456789abcdef"[static_cast<uint8_t>(each) >> 4];
    hex += "0123456789abcdef"[static_cast<uint8_t>(each) & 15];
  }
  return hex;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::string name = text_of(input.take(input.byte() % 32));
  const std::string text = text_of(input.rest());
  const std::string_view key = find_shared_key(text, name);
  if (!key.empty()) {
    CHECK(has_shared_key(text));
    CHECK(key.data() >= text.data() && key.data() + key.size() <= text.data() + text.size());
    CHECK(key.size() % 2 == 0 && key.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos);
    CHECK(key.data() > text.data() && key.data()[-1] == ':');
  }
  // A line for it before all others is the one, in either writing; another name's has no part in it.
  const bool plain = !name.empty() && name.find_first_of(":\n") == std::string::npos && name[0] != '#';
  if (plain) CHECK(find_shared_key(name + ":c0ffee\n" + text, name) == "c0ffee");
  if (!name.empty()) CHECK(find_shared_key(hex_of(name) + ":c0ffee\n" + text, name) == "c0ffee");
  CHECK(find_shared_key(hex_of(name + "x") + ":c0ffee\n" + text, name) == key);
  return 0;
}
