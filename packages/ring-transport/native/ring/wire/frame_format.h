// Frames as they lie in a ring, little-endian. Both ends of a connection have the same version.
//
// 2: on units of 64 bytes, a header of 16: u32 length, u16 type, u16 zero, u32 correlation, u32 immediate.
// 3: on units of 16 bytes, so that a message of 8 takes 16 and one of 64 takes 80, where it was 64 and 128.
//    u32 length | type << 28, u32 immediate; and, of types that have one, u32 correlation, u32 zero.
// 4: as 3, with GROW.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "ring/wire/wire.h"

namespace rdmakit::ring {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

enum class Version : uint32_t { two = 2, three = 3, four = 4 };

struct Frame {
  FrameType type = FrameType::data;
  uint32_t length = 0;  // bytes of the payload, which follows the header
  uint32_t correlation = 0;
  uint32_t immediate = 0;  // the application's
};

// Largest payload for a ring: with the longest header a frame takes half of it (claim 1 of wire.h).
constexpr uint32_t max_payload(uint32_t log2_capacity) { return (1u << (log2_capacity - 1)) - 16; }

// --- hot path ------------------------------------------------------------------------------------
class FrameFormat {
 public:
  constexpr explicit FrameFormat(Version version)
      : unit_log2_(version == Version::two ? 6 : 4),
        newest_(version == Version::two     ? FrameType::settled
                : version == Version::three ? FrameType::last
                                            : FrameType::grow) {}

  constexpr uint32_t unit_log2() const { return unit_log2_; }
  // Bytes before the payload.
  constexpr uint32_t header(FrameType type) const { return compact() && !correlates(type) ? 8 : kLongHeader; }
  // Units that as many bytes of header and payload take.
  constexpr uint32_t units(uint64_t bytes) const {
    return static_cast<uint32_t>((bytes + (1u << unit_log2_) - 1) >> unit_log2_);
  }
  constexpr uint32_t units_of(FrameType type, uint32_t length) const {
    return units(uint64_t{length} + header(type));
  }
  // Converts credit from units, and to them.
  constexpr uint64_t grains(uint64_t units) const { return units >> (kGrainLog2 - unit_log2_); }
  constexpr uint64_t units_of_grains(uint64_t grains) const { return grains << (kGrainLog2 - unit_log2_); }

  void write(uint8_t* at, const Frame& frame) const {
    const auto type = static_cast<uint32_t>(frame.type);
    if (compact()) {
      const uint32_t words[] = {frame.length | type << kTypeShift, frame.immediate, frame.correlation, 0};
      std::memcpy(at, words, header(frame.type));
    } else {
      const uint32_t words[] = {frame.length, type, frame.correlation, frame.immediate};
      std::memcpy(at, words, sizeof words);
    }
  }
  // Bytes of header and payload of a frame that write() has written.
  uint32_t written(const uint8_t* at) const {
    uint32_t word;
    std::memcpy(&word, at, sizeof word);
    return compact() ? (word & kLengthMask) + header(static_cast<FrameType>(word >> kTypeShift))
                     : word + kLongHeader;
  }
  // Reads a frame header of the peer, of which 16 bytes are there. It copies once, so that the checked bytes
  // are the used ones: the peer can still write there.
  Violation read(const uint8_t* at, Frame& frame) const {
    uint32_t words[4];
    std::memcpy(words, at, sizeof words);
    const uint32_t type = compact() ? words[0] >> kTypeShift : words[1];
    if (type < static_cast<uint32_t>(FrameType::data) || type > static_cast<uint32_t>(newest_))
      return Violation::frame_type;
    frame.type = static_cast<FrameType>(type);
    if (!compact()) {
      frame.length = words[0];
      frame.correlation = words[2];
      frame.immediate = words[3];
      return Violation::none;
    }
    frame.length = words[0] & kLengthMask;
    frame.immediate = words[1];
    frame.correlation = 0;
    if (!correlates(frame.type)) return Violation::none;
    frame.correlation = words[2];
    return words[3] == 0 ? Violation::none : Violation::frame_type;
  }

 private:
  static constexpr uint32_t kLongHeader = 16;
  static constexpr uint32_t kTypeShift = 28;
  static constexpr uint32_t kLengthMask = (1u << kTypeShift) - 1;

  constexpr bool compact() const { return unit_log2_ == 4; }
  static constexpr bool correlates(FrameType type) {
    return type != FrameType::data && type != FrameType::pad && type != FrameType::close &&
           type != FrameType::grow;
  }

  uint32_t unit_log2_;
  FrameType newest_;
};
// --- end of the hot path -------------------------------------------------------------------------

}  // namespace rdmakit::ring
