// Times and choices of the MPA setup that both sides share.
#pragma once

#include <cstdint>

namespace rdmakit::iwarp {

inline constexpr int kAddressTimeoutMs = 250;    // TCP, while there are more addresses: as Node's net has it
inline constexpr int kConnectTimeoutMs = 5'000;  // TCP, when resolve() named no other
// A peer's MPA request after its TCP connection; its first FPDU after our reply.
inline constexpr int kHandshakeTimeoutMs = 5'000;
// The acceptor's application takes part in this one.
inline constexpr int kReplyTimeoutMs = 10'000;

// Depth that a side without the enhanced setup gets: nothing was said, so one READ at a time.
inline constexpr uint32_t kUnnegotiatedReads = 1;

// Whether this side asks for CRCs: yes, unless RDMAKIT_IWARP_CRC=0. One side's wish is enough
// (RFC 5044 §7.1).
bool crc_wanted();

// Whether this side asks for markers: no, unless RDMAKIT_IWARP_MARKERS=1. The peer decides about those that
// it gets (RFC 5044 §7.1).
bool markers_wanted();

// TCP_NODELAY, and keepalive so that a host that vanished is noticed without traffic.
void prepare_socket(int socket);

}  // namespace rdmakit::iwarp
