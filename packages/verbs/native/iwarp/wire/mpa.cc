#include "iwarp/wire/mpa.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "iwarp/wire/byte_order.h"
#include "iwarp/wire/markers.h"

namespace rdmakit::iwarp {

constexpr char kRequestKey[] = "MPA ID Req Frame";
constexpr char kReplyKey[] = "MPA ID Rep Frame";
constexpr size_t kKeyLength = 16;

constexpr uint8_t kMarkerFlag = 0x80;
constexpr uint8_t kCrcFlag = 0x40;
constexpr uint8_t kRejectFlag = 0x20;
constexpr uint8_t kEnhancedFlag = 0x10;

constexpr uint16_t kIrdPeerToPeer = 0x8000;
constexpr uint16_t kIrdSendRtr = 0x4000;
constexpr uint16_t kOrdWriteRtr = 0x8000;
constexpr uint16_t kOrdReadRtr = 0x4000;

MpaParse parse_mpa(std::span<const uint8_t> bytes, MpaFrame& frame, size_t& length) {
  length = kMpaHeaderLength;
  if (bytes.empty()) return MpaParse::incomplete;
  // A wrong key is reported at once: a peer that uses another protocol may never send 20 bytes.
  const size_t compared = std::min(bytes.size(), kKeyLength);
  const bool request = std::memcmp(bytes.data(), kRequestKey, compared) == 0;
  const bool reply = std::memcmp(bytes.data(), kReplyKey, compared) == 0;
  if (!request && !reply) return MpaParse::malformed;
  if (bytes.size() < kMpaHeaderLength) return MpaParse::incomplete;

  const uint8_t flags = bytes[16];
  const size_t private_length = load_be16(&bytes[18]);
  frame.reply = reply;
  frame.markers = flags & kMarkerFlag;
  frame.crc = flags & kCrcFlag;
  frame.reject = flags & kRejectFlag;
  frame.revision = bytes[17];
  frame.enhanced = frame.revision >= 2 && (flags & kEnhancedFlag);
  if (frame.revision > 2) return MpaParse::malformed;
  if (private_length > kMpaMaxPrivateData) return MpaParse::malformed;
  if (frame.enhanced && private_length < kMpaEnhancedLength) return MpaParse::malformed;

  length = kMpaHeaderLength + private_length;
  if (bytes.size() < length) return MpaParse::incomplete;
  const uint8_t* data = bytes.data() + kMpaHeaderLength;
  size_t skip = 0;
  if (frame.enhanced) {
    const uint16_t ird = load_be16(data);
    const uint16_t ord = load_be16(data + 2);
    frame.ird = ird & kMpaReadDepthMask;
    frame.ord = ord & kMpaReadDepthMask;
    frame.peer_to_peer = ird & kIrdPeerToPeer;
    frame.rtr_send = ird & kIrdSendRtr;
    frame.rtr_write = ord & kOrdWriteRtr;
    frame.rtr_read = ord & kOrdReadRtr;
    skip = kMpaEnhancedLength;
  }
  frame.private_data.assign(data + skip, data + private_length);
  return MpaParse::complete;
}

std::vector<uint8_t> build_mpa(const MpaFrame& frame) {
  const size_t enhanced = frame.enhanced ? kMpaEnhancedLength : 0;
  const size_t private_length = enhanced + frame.private_data.size();
  std::vector<uint8_t> bytes(kMpaHeaderLength + private_length);
  std::memcpy(bytes.data(), frame.reply ? kReplyKey : kRequestKey, kKeyLength);
  bytes[16] = static_cast<uint8_t>((frame.markers ? kMarkerFlag : 0) | (frame.crc ? kCrcFlag : 0) |
                                   (frame.reject ? kRejectFlag : 0) | (frame.enhanced ? kEnhancedFlag : 0));
  bytes[17] = frame.revision;
  store_be16(&bytes[18], static_cast<uint16_t>(private_length));
  if (frame.enhanced) {
    store_be16(&bytes[20], static_cast<uint16_t>((frame.ird & kMpaReadDepthMask) |
                                                 (frame.peer_to_peer ? kIrdPeerToPeer : 0) |
                                                 (frame.rtr_send ? kIrdSendRtr : 0)));
    store_be16(&bytes[22],
               static_cast<uint16_t>((frame.ord & kMpaReadDepthMask) | (frame.rtr_write ? kOrdWriteRtr : 0) |
                                     (frame.rtr_read ? kOrdReadRtr : 0)));
  }
  std::copy(frame.private_data.begin(), frame.private_data.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(kMpaHeaderLength + enhanced));
  return bytes;
}

uint32_t max_ulpdu_length(uint32_t segment_size, bool markers) {
  constexpr uint32_t kLeast = 128;
  constexpr uint32_t kMost = 65534;  // the 16-bit length field, kept a multiple of 4 with it
  if (markers) {
    // The maximum number of bytes in a segment; a marker's pointer has 16 bits too.
    segment_size = std::min<uint32_t>(segment_size, UINT16_MAX);
    segment_size -=
        static_cast<uint32_t>((segment_size + kMarkerInterval - 1) / kMarkerInterval * kMarkerLength);
  }
  if (segment_size < kLeast + 8) return kLeast;
  const uint32_t framed = (segment_size - static_cast<uint32_t>(kFpduCrcLength)) & ~3u;
  return std::min(kMost, framed - static_cast<uint32_t>(kFpduLengthField));
}

std::vector<uint8_t> build_fpdu(std::span<const uint8_t> ulpdu, bool crc, bool markers, uint64_t position) {
  std::vector<uint8_t> fpdu(fpdu_length(ulpdu.size()));
  store_be16(fpdu.data(), static_cast<uint16_t>(ulpdu.size()));
  std::copy(ulpdu.begin(), ulpdu.end(), fpdu.begin() + kFpduLengthField);
  if (markers) {
    std::vector<uint8_t> marked(marked_length(position, fpdu.size()));
    const iovec plain{fpdu.data(), fpdu.size()};
    insert_markers(marked.data(), position, {&plain, 1});
    fpdu = std::move(marked);
  }
  const size_t checked = fpdu.size() - kFpduCrcLength;
  if (crc) store_crc(fpdu.data() + checked, crc32c(fpdu.data(), checked));
  return fpdu;
}

void store_crc(uint8_t* to, uint32_t crc) {
  const uint32_t value = htole32(crc);
  std::memcpy(to, &value, sizeof value);
}

uint32_t load_crc(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return le32toh(value);
}

}  // namespace rdmakit::iwarp
