// Reads what a server answers in the transmission phase and holds it against the specification: each chunk
// belongs to a request under way, lies inside it, overlaps nothing, and a success leaves no gap.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/request.h"

namespace fixture {

using namespace rdmakit::nbd;

#define RULE(condition)                                                            \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (0)

struct Answer {
  NbdRequest request{};
  bool done = false;
  uint32_t error = kOk;
  std::string text;
  std::optional<uint64_t> place;
  std::vector<uint8_t> data;     // of a READ
  std::vector<uint8_t> covered;  // 1 for each byte of data that was told
  uint64_t hole_bytes = 0;
  uint32_t content_chunks = 0;
  std::vector<std::pair<uint32_t, uint32_t>> extents;  // length, flags
};

class ReplyReader {
 public:
  explicit ReplyReader(bool structured) : structured_(structured) {}

  void expect(const NbdRequest& request) {
    RULE(!pending_.contains(request.cookie));
    pending_[request.cookie].request = request;
  }
  bool quiet() const { return pending_.empty() && bytes_.empty(); }
  size_t pending() const { return pending_.size(); }

  // `done(answer)` for each request that is answered in full.
  template <typename Done>
  void feed(std::span<const uint8_t> bytes, Done done) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    size_t used = 0;
    while (const size_t step = take({bytes_.data() + used, bytes_.size() - used}, done)) used += step;
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<long>(used));
  }

 private:
  using Bytes = std::span<const uint8_t>;

  template <typename Value>
  static Value value(Bytes& from) {
    Value result;
    std::memcpy(&result, from.data(), sizeof result);
    from = from.subspan(sizeof result);
    return result;
  }

  // Bytes used; 0: not all of it is here yet.
  template <typename Done>
  size_t take(Bytes bytes, Done done) {
    if (bytes.size() < sizeof(SimpleReply)) return 0;
    Be32 magic;
    std::memcpy(&magic, bytes.data(), sizeof magic);
    return magic == kStructuredReplyMagic ? take_chunk(bytes, done) : take_simple(bytes, done);
  }

  template <typename Done>
  size_t take_simple(Bytes bytes, Done done) {
    SimpleReply reply;
    std::memcpy(&reply, bytes.data(), sizeof reply);
    RULE(reply.magic == kSimpleReplyMagic);
    Answer& answer = find(reply.cookie);
    const bool reads = answer.request.command == kCmdRead;
    // "After STRUCTURED_REPLY a READ never gets a simple reply", and BLOCK_STATUS has no other.
    RULE(!structured_ || !(reads || answer.request.command == kCmdBlockStatus));
    const size_t length = sizeof reply + (reads && reply.error == kOk ? answer.request.length : 0);
    if (bytes.size() < length) return 0;
    answer.error = reply.error;
    if (length > sizeof reply) {
      answer.data.assign(bytes.begin() + sizeof reply, bytes.begin() + static_cast<long>(length));
      answer.covered.assign(answer.data.size(), 1);
    }
    finish(reply.cookie, done);
    return length;
  }

  template <typename Done>
  size_t take_chunk(Bytes bytes, Done done) {
    RULE(structured_);
    if (bytes.size() < sizeof(ChunkHeader)) return 0;
    const auto header = value<ChunkHeader>(bytes);
    RULE((header.flags & ~kChunkDone) == 0);
    RULE(header.length <= sizeof(Be64) + kMaxPayload);
    if (bytes.size() < header.length) return 0;
    Bytes payload = bytes.first(header.length);
    Answer& answer = find(header.cookie);
    switch (header.type) {
      case kChunkOffsetData: {
        RULE(payload.size() > sizeof(Be64));
        const uint64_t offset = value<Be64>(payload);
        const size_t at = cover(answer, offset, payload.size());
        std::memcpy(answer.data.data() + at, payload.data(), payload.size());
        break;
      }
      case kChunkOffsetHole: {
        RULE(payload.size() == 12 && (answer.request.flags & kCmdFlagDf) == 0);
        const uint64_t offset = value<Be64>(payload);
        const uint32_t length = value<Be32>(payload);
        RULE(length > 0);
        cover(answer, offset, length);
        answer.hole_bytes += length;
        break;
      }
      case kChunkBlockStatus:
        take_status(answer, payload);
        break;
      case kChunkError:
      case kChunkErrorOffset:
        take_error(answer, payload, header.type == kChunkErrorOffset);
        break;
      default:
        RULE(!"a chunk of a type that we never send");
    }
    const size_t used = sizeof(ChunkHeader) + header.length;
    if ((header.flags & kChunkDone) != 0) finish(header.cookie, done);
    return used;
  }

  size_t cover(Answer& answer, uint64_t offset, uint64_t length) {
    const NbdRequest& request = answer.request;
    RULE(request.command == kCmdRead && answer.error == kOk && length > 0);
    RULE(offset >= request.offset && length <= request.length &&
         offset - request.offset <= request.length - length);
    answer.data.resize(request.length);
    answer.covered.resize(request.length);
    const size_t at = offset - request.offset;
    RULE(std::memchr(&answer.covered[at], 1, length) == nullptr);
    std::memset(&answer.covered[at], 1, length);
    answer.content_chunks++;
    return at;
  }

  void take_status(Answer& answer, Bytes payload) {
    const NbdRequest& request = answer.request;
    RULE(request.command == kCmdBlockStatus && answer.extents.empty());
    RULE(payload.size() > 4 && (payload.size() - 4) % sizeof(StatusDescriptor) == 0);
    RULE(value<Be32>(payload) == kBaseAllocation);
    uint64_t total = 0;
    while (!payload.empty()) {
      const auto extent = value<StatusDescriptor>(payload);
      RULE(extent.length > 0 && (extent.flags & ~(kStateHole | kStateZero)) == 0);
      RULE(total < request.length);
      RULE(answer.extents.empty() || answer.extents.back().second != extent.flags);  // merged
      total += extent.length;
      answer.extents.emplace_back(extent.length, extent.flags);
    }
    RULE(total <= request.length);
    RULE((request.flags & kCmdFlagReqOne) == 0 || answer.extents.size() == 1);
  }

  void take_error(Answer& answer, Bytes payload, bool placed) {
    RULE(answer.error == kOk);
    RULE(payload.size() >= 6);
    answer.error = value<Be32>(payload);
    const uint16_t length = value<Be16>(payload);
    RULE(answer.error != kOk);
    RULE(length <= payload.size() && payload.size() - length == (placed ? sizeof(Be64) : 0));
    answer.text.assign(payload.begin(), payload.begin() + length);
    payload = payload.subspan(length);
    if (!placed) return;
    answer.place = value<Be64>(payload);
    RULE(*answer.place >= answer.request.offset &&
         *answer.place - answer.request.offset < answer.request.length);
  }

  Answer& find(uint64_t cookie) {
    const auto found = pending_.find(cookie);
    RULE(found != pending_.end());
    return found->second;
  }

  template <typename Done>
  void finish(uint64_t cookie, Done done) {
    Answer answer = std::move(find(cookie));
    pending_.erase(cookie);
    answer.done = true;
    const NbdRequest& request = answer.request;
    if (answer.error == kOk && request.command == kCmdRead) {
      RULE(answer.covered.size() == request.length);
      RULE(std::memchr(answer.covered.data(), 0, answer.covered.size()) == nullptr);
      RULE((request.flags & kCmdFlagDf) == 0 || answer.content_chunks <= 1);
    }
    if (answer.error == kOk && request.command == kCmdBlockStatus) RULE(!answer.extents.empty());
    done(answer);
  }

  const bool structured_;
  std::map<uint64_t, Answer> pending_;
  std::vector<uint8_t> bytes_;
};

}  // namespace fixture
