// The iWARP wire format, byte for byte: frames of RFC 5044 and RFC 6581, markers, headers of RFC 5041, RFC
// 5040 and RFC 7306, and CRC32C. No sockets.
#include <random>

#include "raw_peer.h"

namespace iwarp_format_stress {

using namespace fixture;

void crc_vectors() {
  // RFC 3720 appendix B.4, in wire order.
  const auto wire = [](const Bytes& data) {
    Bytes crc(4);
    store_crc(crc.data(), crc32c(data.data(), data.size()));
    CHECK(load_crc(crc.data()) == crc32c(data.data(), data.size()));
    return crc;
  };
  CHECK(wire(Bytes(32, 0x00)) == Bytes({0xaa, 0x36, 0x91, 0x8a}));
  CHECK(wire(Bytes(32, 0xff)) == Bytes({0x43, 0xab, 0xa8, 0x62}));
  Bytes counting(32);
  for (size_t i = 0; i < 32; i++) counting[i] = static_cast<uint8_t>(i);
  CHECK(wire(counting) == Bytes({0x4e, 0x79, 0xdd, 0x46}));
  CHECK(wire(Bytes(counting.rbegin(), counting.rend())) == Bytes({0x5c, 0xdb, 0x3f, 0x11}));
  const Bytes read_command = {0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                              0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
                              0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
                              0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  CHECK(wire(read_command) == Bytes({0x56, 0x3a, 0x96, 0xd9}));
  CHECK(crc32c("123456789", 9) == 0xe3069283);
}

// Every way to compute it that this processor has gives what the table does, whatever the length, the
// alignment, the register to begin with and where a piece is cut in two.
void crc_implementations() {
  const auto ways = crc32c_implementations();
  std::printf("  of this processor:");
  for (const Crc32cImplementation& way : ways) std::printf(" %s", way.name);
  std::printf("\n");
  CHECK(ways[0].extend == crc32c_extend_portable);
  const auto all_agree = [&](uint32_t state, const uint8_t* data, size_t length, size_t split) {
    const uint32_t expected = crc32c_extend_portable(state, data, length);
    CHECK(crc32c_extend(state, data, length) == expected);
    for (const Crc32cImplementation& way : ways) {
      CHECK(way.extend(state, data, length) == expected);
      CHECK(way.extend(way.extend(state, data, split), data + split, length - split) == expected);
    }
  };
  std::mt19937 random(1);
  Bytes data(70'000);
  fill_noise(data.data(), data.size(), 1);
  // An allocation of its own for each, so that a byte too many that is read is out of bounds.
  for (size_t length = 0; length < 1200; length++) {
    const Bytes exact(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(length));
    all_agree(static_cast<uint32_t>(random()), exact.data(), length, length / 3);
  }
  for (int i = 0; i < effort(2000); i++) {
    const size_t at = random() % 64;
    const size_t length = i % 2 == 0 ? random() % 2000 : random() % (data.size() - 64);
    const uint32_t state = i % 4 < 2 ? kCrcSeed : static_cast<uint32_t>(random());
    all_agree(state, &data[at], length, length == 0 ? 0 : random() % length);
  }
  // One bit set at a time: each position of a step by itself.
  Bytes single(1024);
  const size_t stride = std::max(1, 9000 / effort(9000));
  for (size_t bit = 0; bit < 8 * single.size(); bit += stride) {
    single[bit / 8] = static_cast<uint8_t>(1u << bit % 8);
    all_agree(0, single.data(), single.size(), bit / 8);
    single[bit / 8] = 0;
  }
}

void mpa_frames() {
  MpaFrame request;
  request.crc = true;
  request.enhanced = true;
  request.ird = 16;
  request.ord = 32;
  request.peer_to_peer = true;
  request.rtr_write = true;
  request.rtr_read = true;
  request.private_data = {0xaa, 0xbb, 0xcc};
  // Key; C|S, revision 2, length 7; A|IRD 16; C|D|ORD 32; the application's.
  const Bytes expected =
      text("MPA ID Req Frame") + Bytes{0x50, 0x02, 0x00, 0x07, 0x80, 0x10, 0xc0, 0x20, 0xaa, 0xbb, 0xcc};
  CHECK(build_mpa(request) == expected);

  MpaFrame parsed;
  size_t length = 0;
  CHECK(parse_mpa(expected, parsed, length) == MpaParse::complete && length == expected.size());
  CHECK(!parsed.reply && parsed.crc && parsed.enhanced && !parsed.markers && !parsed.reject &&
        parsed.revision == 2);
  CHECK(parsed.ird == 16 && parsed.ord == 32 && parsed.peer_to_peer && parsed.rtr_write && parsed.rtr_read);
  CHECK(!parsed.rtr_send && parsed.private_data == request.private_data);
  for (size_t have = 0; have < expected.size(); have++) {  // never asks for bytes beyond the frame
    const std::span<const uint8_t> part(expected.data(), have);
    CHECK(parse_mpa(part, parsed, length) == MpaParse::incomplete);
    CHECK(length > have && length <= expected.size());
  }

  MpaFrame reply;
  reply.reply = true;
  reply.reject = true;
  reply.revision = 1;
  CHECK(build_mpa(reply) == text("MPA ID Rep Frame") + Bytes({0x20, 0x01, 0x00, 0x00}));

  const auto malformed = [&](const Bytes& bytes) {
    return parse_mpa(bytes, parsed, length) == MpaParse::malformed;
  };
  CHECK(malformed(text("GET / HTTP/1.1\r\n")));
  CHECK(malformed(text("MPA ID Req Framf")));
  CHECK(malformed(text("MPA ID Req Frame") + Bytes({0x00, 0x03, 0x00, 0x00})));  // revision 3
  CHECK(malformed(text("MPA ID Req Frame") + Bytes({0x00, 0x01, 0x02, 0x01})));  // 513 bytes of private data
  CHECK(malformed(text("MPA ID Req Frame") + Bytes({0x10, 0x02, 0x00, 0x03})));  // no room for IRD and ORD
  // The enhanced bit means nothing before revision 2.
  const Bytes old = text("MPA ID Req Frame") + Bytes({0x10, 0x01, 0x00, 0x01, 0x77});
  CHECK(parse_mpa(old, parsed, length) == MpaParse::complete && !parsed.enhanced);
  CHECK(parsed.private_data == Bytes({0x77}));

  CHECK(fpdu_length(14) == 20 && fpdu_pad(14) == 0);
  CHECK(fpdu_length(15) == 24 && fpdu_pad(15) == 3);
  CHECK(fpdu_length(18) == 24 && fpdu_length(max_ulpdu_length(1460)) <= 1460);
  for (uint32_t segment = 136; segment < 70'000; segment++) {
    const uint32_t ulpdu = max_ulpdu_length(segment);
    CHECK(ulpdu <= 65535 && (fpdu_length(ulpdu) <= segment));
    CHECK(fpdu_length(ulpdu + 4) > segment || ulpdu == 65534);
  }
}

void headers() {
  Bytes bytes(64);
  Segment segment;
  segment.tagged = true;
  segment.last = true;
  segment.opcode = Opcode::write;
  segment.stag = 0x01020304;
  segment.offset = 0x1112131415161718;
  CHECK(build_segment(bytes.data(), segment) == kTaggedHeaderLength);
  CHECK(Bytes(bytes.begin(), bytes.begin() + 14) ==
        Bytes({0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}));
  Segment parsed;
  TerminateCode why;
  CHECK(parse_segment(bytes.data(), 20, parsed, why));
  CHECK(parsed.tagged && parsed.last && parsed.opcode == Opcode::write && parsed.stag == segment.stag);
  CHECK(parsed.offset == segment.offset && parsed.header_length == 14 && parsed.payload_length == 6);

  segment = Segment{};
  segment.opcode = Opcode::send_solicited;
  segment.queue = 0;
  segment.sequence = 7;
  segment.message_offset = 9;
  CHECK(build_segment(bytes.data(), segment) == kUntaggedHeaderLength);
  CHECK(Bytes(bytes.begin(), bytes.begin() + 18) ==
        Bytes({0x01, 0x45, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9}));
  CHECK(parse_segment(bytes.data(), 18, parsed, why));
  CHECK(!parsed.tagged && !parsed.last && parsed.sequence == 7 && parsed.message_offset == 9);

  build_read_request(bytes.data(),
                     {0x01020304, 0x05060708090a0b0c, 0x0d0e0f10, 0x11121314, 0x15161718191a1b1c});
  for (uint8_t i = 0; i < kReadRequestLength; i++) CHECK(bytes[i] == i + 1);
  const ReadRequest request = parse_read_request(bytes.data());
  CHECK(request.sink_stag == 0x01020304 && request.sink_offset == 0x05060708090a0b0c &&
        request.length == 0x0d0e0f10);
  CHECK(request.source_stag == 0x11121314 && request.source_offset == 0x15161718191a1b1c);

  TerminateMessage message;
  message.code = terminate::ddp_bounds;
  message.has_segment = true;
  message.segment = parsed;
  message.segment.payload_length = 100;
  Bytes terminate_bytes(kMaxTerminateLength);
  const size_t length = build_terminate(terminate_bytes.data(), message, nullptr);
  CHECK(length == 4 + 2 + 18);
  CHECK(terminate_bytes[0] == 0x11 && terminate_bytes[1] == 0x01 && terminate_bytes[2] == 0xc0);
  CHECK(load_be16(&terminate_bytes[4]) == 118);
  TerminateMessage understood;
  CHECK(parse_terminate(terminate_bytes.data(), length, understood) && understood.has_segment);
  CHECK(understood.code == message.code && understood.segment.sequence == 7);
}

// Markers against a stream that is written down octet by octet, as RFC 5044 §4.3 has it.
void markers() {
  std::mt19937 random(4);
  for (int round = 0; round < 20; round++) {
    Bytes stream;  // what the library makes
    Bytes naive;
    for (int i = 0; i < 20; i++) {
      Bytes ulpdu(random() % 4 == 0 ? random() % 65'536 : random() % 600);
      fill_noise(ulpdu.data(), ulpdu.size(), random());
      const size_t begin = stream.size();
      stream += build_fpdu(ulpdu, true, true, begin);
      Bytes plain = {static_cast<uint8_t>(ulpdu.size() >> 8), static_cast<uint8_t>(ulpdu.size())};
      plain += ulpdu;
      while (plain.size() % 4 != 0) plain.push_back(0);
      plain.resize(plain.size() + 4);
      const size_t length_field = begin % 512 == 0 ? begin + 4 : begin;
      for (const uint8_t byte : plain) {
        if (naive.size() % 512 == 0) {
          const size_t back = naive.size() < length_field ? 0 : naive.size() - length_field;
          naive += Bytes{0, 0, static_cast<uint8_t>(back >> 8), static_cast<uint8_t>(back)};
        }
        naive.push_back(byte);
      }
      store_crc(&naive[naive.size() - 4], crc32c(&naive[begin], naive.size() - 4 - begin));
      CHECK(marked_length(begin, plain.size()) == naive.size() - begin);
      CHECK(stream == naive);

      Bytes back(stream.begin() + static_cast<long>(begin), stream.end());
      CHECK(remove_markers(back.data(), back.size(), begin));
      CHECK(std::equal(plain.begin(), plain.end() - 4, back.begin()));
      const size_t count = (back.size() - plain.size()) / 4;
      if (count == 0) continue;  // each marker counts
      const size_t first = (512 - begin % 512) % 512;
      Bytes wrong(stream.begin() + static_cast<long>(begin), stream.end());
      wrong[first + random() % count * 512 + 2 + random() % 2] ^= static_cast<uint8_t>(4 << random() % 4);
      CHECK(!remove_markers(wrong.data(), wrong.size(), begin));
    }
  }
  // The first octets of a stream are a marker that points to what follows it; the low bits mean nothing.
  Bytes zero_write = build_fpdu(tagged(Opcode::write, 0, 0, {}), true, true, 0);
  CHECK(zero_write.size() == 24 && load_be32(zero_write.data()) == 0 && load_be16(&zero_write[4]) == 14);
  zero_write[3] |= 3;
  CHECK(remove_markers(zero_write.data(), 24, 0));
  // MULPDU: with all the markers that there can be, an FPDU still fits the segment and the pointer its 16
  // bits.
  for (uint32_t segment = 256; segment < 70'000; segment++) {
    const uint32_t ulpdu = max_ulpdu_length(segment, true);
    CHECK(marked_length(0, fpdu_length(ulpdu)) <= std::min(segment, 65'535u));
    CHECK(marked_length(508, fpdu_length(ulpdu)) <= std::min(segment, 65'535u));
  }
  CHECK(max_ulpdu_length(1460, true) == 1460 - 6 - 12);
}

// Every way in which a header alone can be wrong.
void wrong_headers() {
  const auto refused = [](const Bytes& ulpdu) {
    Segment segment;
    TerminateCode why;
    CHECK(!parse_segment(ulpdu.data(), ulpdu.size(), segment, why));
    return why;
  };
  const Bytes tagged = {0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  const Bytes untagged = {0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
  const auto with = [](Bytes bytes, size_t at, uint8_t value) {
    bytes[at] = value;
    return bytes;
  };
  CHECK(refused({}) == terminate::rdmap_catastrophic);
  CHECK(refused({0xc1}) == terminate::rdmap_catastrophic);
  CHECK(refused(Bytes(tagged.begin(), tagged.end() - 1)) == terminate::rdmap_catastrophic);
  CHECK(refused(with(tagged, 0, 0xc0)) == terminate::ddp_tagged_version);
  CHECK(refused(with(untagged, 0, 0x42)) == terminate::ddp_untagged_version);
  CHECK(refused(with(tagged, 1, 0x80)) == terminate::rdmap_version);
  CHECK(refused(with(tagged, 1, 0x43)) == terminate::rdmap_opcode);    // a tagged Send
  CHECK(refused(with(untagged, 1, 0x40)) == terminate::rdmap_opcode);  // an untagged Write
  CHECK(refused(with(untagged, 1, 0x4f)) == terminate::rdmap_opcode);  // no such opcode
  CHECK(refused(with(untagged, 9, 1)) == terminate::ddp_queue);        // a Send on queue 1
  CHECK(refused(with(untagged, 1, 0x41)) == terminate::ddp_queue);     // a Read Request on queue 0
  const Bytes read = with(with(untagged, 1, 0x41), 9, 1);
  CHECK(refused(read + Bytes(27)) == terminate::rdmap_catastrophic);
  CHECK(refused(read + Bytes(29)) == terminate::ddp_too_long);
  CHECK(refused(with(read, 17, 1) + Bytes(28)) == terminate::ddp_message_offset);
  CHECK(refused(with(read, 0, 0x01) + Bytes(28)) == terminate::ddp_message_offset);
  CHECK(refused(with(untagged, 1, 0x48) + Bytes(4)) == terminate::rdmap_catastrophic);  // half an Immediate
}

// Nothing that is parsed may read out of bounds or crash, whatever it says (the sanitizers watch).
void random_bytes_parse() {
  std::mt19937 random(2);
  for (int i = 0; i < effort(200'000); i++) {
    const size_t length = random() % 80;
    const auto bytes = std::make_unique<uint8_t[]>(length);
    for (size_t at = 0; at < length; at++) bytes[at] = static_cast<uint8_t>(random());
    if (length >= 2 && i % 2) {  // get past the versions
      bytes[0] = static_cast<uint8_t>((bytes[0] & 0xfc) | 1);
      bytes[1] = static_cast<uint8_t>((bytes[1] & 0x0f) | 0x40);
    }
    Segment segment;
    TerminateCode why;
    parse_segment(bytes.get(), length, segment, why);
    TerminateMessage message;
    parse_terminate(bytes.get(), length, message);
    if (length >= 16 && i % 3 == 0) std::memcpy(bytes.get(), "MPA ID Req Frame", 16);
    MpaFrame frame;
    size_t wanted = 0;
    parse_mpa({bytes.get(), length}, frame, wanted);
  }
}

STRESS(iwarp_format) {
  timed("CRC vectors", crc_vectors);
  timed("CRC implementations", crc_implementations);
  timed("MPA frames", mpa_frames);
  timed("headers", headers);
  timed("markers", markers);
  timed("wrong headers", wrong_headers);
  timed("random bytes, parsed", random_bytes_parse);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_format_stress
