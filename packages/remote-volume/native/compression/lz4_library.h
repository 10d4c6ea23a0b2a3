// liblz4, loaded when a volume is compressed and never otherwise. Its block format and these functions have
// not changed since 1.7 (2016), so they are declared here instead of asking for its headers to build.
#pragma once

#include <string>

namespace rdmakit::volume {

struct Lz4 {
  // Bytes of the state that the next one needs, aligned to 8.
  int (*size_of_state)() = nullptr;
  // Bytes written to `to`; 0: more than `capacity`. Allocates nothing. Higher `acceleration`: faster, larger.
  int (*compress)(void* state, const char* from, char* to, int bytes, int capacity,
                  int acceleration) = nullptr;
  // Bytes written to `to`; negative: no LZ4, or more than `capacity`. Whatever `from` holds, nothing beyond
  // `bytes` is read and nothing beyond `capacity` written.
  int (*decompress)(const char* from, char* to, int bytes, int capacity) = nullptr;
};

// The same for every caller. nullptr with `why`, which says what to install.
const Lz4* load_lz4(std::string& why);

}  // namespace rdmakit::volume
