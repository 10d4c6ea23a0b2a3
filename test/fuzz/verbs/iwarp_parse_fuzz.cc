// The pure parsers of the iWARP provider: nothing that they read may lead them out of bounds, and what they
// understand is what the builders write.
#include <cstring>
#include <vector>

#include "../fuzz_check.h"
#include "base/crc32c.h"
#include "iwarp/wire/ddp.h"
#include "iwarp/wire/markers.h"
#include "iwarp/wire/mpa.h"

using namespace rdmakit::iwarp;

namespace {

using Bytes = std::vector<uint8_t>;

void mpa(const Bytes& bytes) {
  MpaFrame frame;
  size_t length = 0;
  const MpaParse result = parse_mpa(bytes, frame, length);
  if (result == MpaParse::incomplete)
    CHECK(length > bytes.size() && length <= kMpaHeaderLength + kMpaMaxPrivateData);
  if (result != MpaParse::complete) return;
  CHECK(length <= bytes.size());
  Bytes built = build_mpa(frame);
  CHECK(built.size() == length);
  built[16] |= bytes[16] & 0x0f;  // reserved
  if (frame.revision < kMpaEnhancedRevision) built[16] = bytes[16];
  CHECK(std::memcmp(built.data(), bytes.data(), length) == 0);
}

void ddp(Bytes bytes) {
  Segment segment;
  TerminateCode why;
  if (!parse_segment(bytes.data(), bytes.size(), segment, why)) return;
  CHECK(size_t{segment.header_length} + segment.payload_length == bytes.size());
  uint8_t header[kMaxHeaderLength];
  CHECK(build_segment(header, segment) == segment.header_length);
  bytes[0] &= 0xc3;  // reserved
  bytes[1] &= 0xcf;
  CHECK(std::memcmp(header, bytes.data(), segment.header_length) == 0);
  const uint8_t* payload = bytes.data() + segment.header_length;
  if (segment.opcode == Opcode::read_request) {
    uint8_t again[kReadRequestLength];
    build_read_request(again, parse_read_request(payload));
    CHECK(std::memcmp(again, payload, sizeof again) == 0);
  }
}

void terminate_message(const Bytes& bytes) {
  TerminateMessage message;
  if (!parse_terminate(bytes.data(), bytes.size(), message)) return;
  uint8_t built[kMaxTerminateLength];
  TerminateMessage again;
  const size_t length = build_terminate(built, message, nullptr);
  CHECK(length <= sizeof built && parse_terminate(built, length, again));
  CHECK(again.code == message.code && again.has_segment == message.has_segment);
}

void markers(fuzz::Input& input) {
  const uint64_t position = uint64_t{input.two()} * 4;
  const Bytes ulpdu(input.two(), input.byte());
  Bytes marked = build_fpdu(ulpdu, true, true, position);
  const Bytes plain = build_fpdu(ulpdu, false);
  CHECK(marked.size() == marked_length(position, plain.size()));
  CHECK(rdmakit::crc32c(marked.data(), marked.size() - 4) == load_crc(&marked[marked.size() - 4]));
  CHECK(remove_markers(marked.data(), marked.size(), position));
  CHECK(std::memcmp(marked.data(), plain.data(), plain.size() - kFpduCrcLength) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t what = input.byte();
  if (what % 4 == 3) {
    markers(input);
    return 0;
  }
  // A copy of its own: reading one byte too far is seen.
  const std::span<const uint8_t> rest = input.rest();
  const Bytes bytes(rest.begin(), rest.end());
  if (what % 4 == 0) mpa(bytes);
  if (what % 4 == 1) ddp(bytes);
  if (what % 4 == 2) terminate_message(bytes);
  return 0;
}
