// MPA markers (RFC 5044 §4.3): four octets at every 512th octet of a stream, counted from the first octet
// of its first FPDU. Each says how far behind it the FPDU that it is in began. Pure: no I/O.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace rdmakit::iwarp {

inline constexpr size_t kMarkerInterval = 512;
inline constexpr size_t kMarkerLength = 4;  // reserved (2), FPDUPTR (2)

// A `position` is the number of octets between the stream's first and an FPDU's, markers included. FPDUs and
// markers both are multiples of 4 octets, so a marker stands between fields or inside of the ULPDU, and never
// inside of a length field or a CRC.

// The marker that stands in front of an FPDU's length field, and is part of that FPDU: 4 octets or none.
constexpr size_t leading_marker(uint64_t position) {
  return position % kMarkerInterval == 0 ? kMarkerLength : 0;
}

// How long an FPDU of `length` octets is with its markers.
constexpr size_t marked_length(uint64_t position, size_t length) {
  constexpr size_t kBetween = kMarkerInterval - kMarkerLength;
  const size_t first = (kMarkerInterval - position % kMarkerInterval) % kMarkerInterval;
  return first >= length ? length : length + (length - first + kBetween - 1) / kBetween * kMarkerLength;
}

// Copies an FPDU that is in pieces, and has no markers, to `to` with its markers. Returns its length there.
size_t insert_markers(uint8_t* to, uint64_t position, std::span<const iovec> pieces);

// Takes the markers out of an FPDU of `length` octets, in place. False when one of them does not point to the
// beginning of this FPDU.
bool remove_markers(uint8_t* fpdu, size_t length, uint64_t position);

}  // namespace rdmakit::iwarp
