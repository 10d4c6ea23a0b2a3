// The common part of the fuzz targets: a check that ends the run, and a reader of the fuzzer's bytes.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (0)

namespace fuzz {

// The result of a system call that waits: libFuzzer looks at its clock in a signal, which ends poll(2) and
// recv(2) with EINTR.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// The input as a script: zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  uint8_t byte() {
    if (left_.empty()) return 0;
    const uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }
  uint16_t two() { return static_cast<uint16_t>(byte() << 8 | byte()); }
  uint32_t four() { return static_cast<uint32_t>(two()) << 16 | two(); }
  std::span<const uint8_t> take(size_t length) {
    const std::span<const uint8_t> taken = left_.first(length < left_.size() ? length : left_.size());
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::span<const uint8_t> rest() { return take(left_.size()); }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace fuzz
