#include "iwarp/wire/markers.h"

#include <algorithm>
#include <cstring>

#include "iwarp/wire/byte_order.h"

namespace rdmakit::iwarp {
namespace {

// From the length field to the marker; 0 in front of the length field. Its two lowest bits are 0 and are
// not looked at (RFC 5044 §4.3).
uint16_t pointer(uint64_t position, uint64_t length_field) {
  return position < length_field ? 0 : static_cast<uint16_t>((position - length_field) & ~3ull);
}

}  // namespace

size_t insert_markers(uint8_t* to, uint64_t position, std::span<const iovec> pieces) {
  const uint64_t length_field = position + leading_marker(position);
  uint8_t* at = to;
  for (const iovec& piece : pieces) {
    const uint8_t* from = static_cast<const uint8_t*>(piece.iov_base);
    for (size_t left = piece.iov_len; left > 0;) {
      if (position % kMarkerInterval == 0) {
        store_be16(at, 0);
        store_be16(at + 2, pointer(position, length_field));
        at += kMarkerLength;
        position += kMarkerLength;
      }
      const size_t part = std::min<size_t>(left, kMarkerInterval - position % kMarkerInterval);
      std::memcpy(at, from, part);
      at += part;
      from += part;
      position += part;
      left -= part;
    }
  }
  return static_cast<size_t>(at - to);
}

bool remove_markers(uint8_t* fpdu, size_t length, uint64_t position) {
  const uint64_t length_field = position + leading_marker(position);
  const uint64_t end = position + length;
  bool agree = true;
  uint8_t* to = fpdu;
  for (const uint8_t* from = fpdu; position < end;) {
    if (position % kMarkerInterval == 0) {
      agree = agree && (load_be16(from + 2) & ~3u) == pointer(position, length_field);
      from += kMarkerLength;
      position += kMarkerLength;
    }
    const size_t part = std::min<uint64_t>(end - position, kMarkerInterval - position % kMarkerInterval);
    std::memmove(to, from, part);
    to += part;
    from += part;
    position += part;
  }
  return agree;
}

}  // namespace rdmakit::iwarp
