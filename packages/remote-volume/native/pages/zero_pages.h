// Pages of zeros in a payload: they are not sent.
#pragma once

#include <cstdint>
#include <cstring>

#include "volume/limits.h"

namespace rdmakit::volume {

// ---- hot path ----

// Most pages show at their first bytes that they are none. The rest is a comparison with itself, 8 bytes on:
// memcmp() takes a vector at a time and ends at the first difference.
inline bool is_zero_page(const uint8_t* page) {
  uint64_t first;
  std::memcpy(&first, page, sizeof first);
  return first == 0 && std::memcmp(page, page + sizeof first, kPage - sizeof first) == 0;
}

// For a payload whose first byte is byte `head` of its page: the number of bytes before its first whole page
// of zeros; `length` if it has none.
inline uint64_t bytes_before_zeroes(const uint8_t* payload, uint64_t head, uint64_t length) {
  uint64_t at = head == 0 ? 0 : kPage - head;
  for (; at + kPage <= length; at += kPage) {
    if (is_zero_page(payload + at)) return at;
  }
  return length;
}

// How many whole pages of zeros a payload of whole pages begins with.
inline uint64_t leading_zero_pages(const uint8_t* payload, uint64_t length) {
  uint64_t pages = 0;
  while ((pages + 1) * kPage <= length && is_zero_page(payload + pages * kPage)) pages++;
  return pages;
}

}  // namespace rdmakit::volume
