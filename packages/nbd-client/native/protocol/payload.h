// Reads an option's payload front to back. Every length is compared with the rest before it is used.
#pragma once

#include <cstring>
#include <span>
#include <string_view>

#include "protocol/wire.h"

namespace rdmakit::nbd {

class PayloadReader {
 public:
  explicit PayloadReader(std::span<const uint8_t> bytes) : left_(bytes) {}
  size_t left() const { return left_.size(); }

  // False: it is shorter than that.
  template <typename Integer>
  bool read(Integer& value) {
    BigEndian<Integer> wire;
    if (left_.size() < sizeof wire) return false;
    std::memcpy(&wire, left_.data(), sizeof wire);
    left_ = left_.subspan(sizeof wire);
    value = wire;
    return true;
  }
  // A 32-bit length and as many bytes. The text lies in the payload.
  bool read(std::string_view& text) {
    uint32_t length;
    if (!read(length) || length > left_.size()) return false;
    text = {reinterpret_cast<const char*>(left_.data()), length};
    left_ = left_.subspan(length);
    return true;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace rdmakit::nbd
