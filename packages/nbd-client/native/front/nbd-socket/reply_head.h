// The protocol's own part of a request, and the head of its reply.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "protocol/request.h"

namespace rdmakit::nbd {

struct ReplyHead {
  // The longest one: an error with its text and its place.
  static constexpr size_t kLongest = 128;

  uint16_t command = 0;
  uint16_t flags = 0;
  uint64_t cookie = 0;
  // The reply: a head, and data_length bytes of data. A READ that fragments has its chunks first, each with
  // a head of its own, and this head only when it fails.
  uint32_t data_length = 0;
  uint16_t length = 0;
  std::array<uint8_t, kLongest> bytes;

  void begin(const NbdRequest& request) {
    command = request.command;
    flags = request.flags;
    cookie = request.cookie;
    data_length = 0;
    length = 0;
  }
  template <typename Head>
  void set(const Head& head) {
    static_assert(sizeof head <= kLongest);
    std::memcpy(bytes.data(), &head, sizeof head);
    length = sizeof head;
  }
};

}  // namespace rdmakit::nbd
