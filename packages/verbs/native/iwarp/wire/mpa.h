// MPA connection setup frames and FPDU framing (RFC 5044 §4, §7; enhanced setup: RFC 6581).
// Pure: bytes in, values out. No I/O, no allocation but for the private data handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rdmakit::iwarp {

inline constexpr size_t kMpaHeaderLength = 20;
inline constexpr size_t kMpaMaxPrivateData = 512;   // RFC 5044 §7.1
inline constexpr size_t kMpaEnhancedLength = 4;     // IRD and ORD words in front of it, RFC 6581
inline constexpr uint8_t kMpaEnhancedRevision = 2;  // RFC 6581; 1 is RFC 5044's
inline constexpr uint16_t kMpaReadDepthMask = 0x3fff;
// "The ULP negotiates this itself", RFC 6581.
inline constexpr uint16_t kMpaReadDepthUnknown = 0x3fff;

// A Request or a Reply frame.
struct MpaFrame {
  bool reply = false;
  bool markers = false;   // M: the sender of this frame wants to receive markers
  bool crc = false;       // C
  bool reject = false;    // R, replies only
  bool enhanced = false;  // S: IRD/ORD words are present (revision 2)
  uint8_t revision = 2;

  // From the enhanced data.
  uint16_t ird = 0;
  uint16_t ord = 0;
  bool peer_to_peer = false;  // A: the initiator sends a Ready-To-Receive message first
  bool rtr_send = false;      // B: it may be a zero-length Send
  bool rtr_write = false;     // C: … RDMA Write
  bool rtr_read = false;      // D: … RDMA Read Request

  std::vector<uint8_t> private_data;  // the application's: without the enhanced data
};

enum class MpaParse { incomplete, complete, malformed };

// Looks at the bytes received so far. `length` becomes the length of the whole frame, or, while
// incomplete, the length up to which bytes are needed next (never beyond the frame, so that a
// reader who stops there has taken nothing of the FPDUs behind it).
MpaParse parse_mpa(std::span<const uint8_t> bytes, MpaFrame& frame, size_t& length);

std::vector<uint8_t> build_mpa(const MpaFrame& frame);

// An FPDU: ULPDU_Length (2), ULPDU, pad to a multiple of 4, CRC (4). RFC 5044 §4.
inline constexpr size_t kFpduLengthField = 2;
inline constexpr size_t kFpduCrcLength = 4;

constexpr size_t fpdu_pad(size_t ulpdu_length) { return (4 - (kFpduLengthField + ulpdu_length) % 4) % 4; }
constexpr size_t fpdu_length(size_t ulpdu_length) {
  return kFpduLengthField + ulpdu_length + fpdu_pad(ulpdu_length) + kFpduCrcLength;
}

// MULPDU (RFC 5044): the largest ULPDU whose FPDU fits one TCP segment of `segment_size`
// bytes, with or without markers. At least 128, which the RFC asks of every connection.
uint32_t max_ulpdu_length(uint32_t segment_size, bool markers = false);

// A whole FPDU, as it stands at `position` of a stream with markers, or in one without.
std::vector<uint8_t> build_fpdu(std::span<const uint8_t> ulpdu, bool crc, bool markers = false,
                                uint64_t position = 0);

// The CRC travels as in iSCSI: least significant byte first.
void store_crc(uint8_t* to, uint32_t crc);
uint32_t load_crc(const uint8_t* from);

}  // namespace rdmakit::iwarp
