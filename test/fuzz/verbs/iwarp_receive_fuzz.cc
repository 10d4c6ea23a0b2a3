// The receive path of the iWARP provider. The input plays the peer of a connected queue pair with registered
// regions, posted receives and READs under way. Its first byte chooses how; then it is either the peer's TCP
// stream as it is, or a script of FPDUs, which the target frames with their right lengths, CRCs and markers,
// so that what is wrong is what the input wants to be wrong. After each input: guards, other domains' memory
// and memory without remote rights untouched, each work request completed once, all answers well-formed.
#include <sys/random.h>

#include "iwarp_fuzz_world.h"

using namespace fuzz;

// STags have random bits, by which an input could never name a region twice.
extern "C" ssize_t getrandom(void* buffer, size_t length, unsigned) {
  std::memset(buffer, 0, length);
  return static_cast<ssize_t>(length);
}

namespace {

enum Mode : uint8_t { kRaw = 1, kMarkers = 2, kNoCrc = 4, kHoldSends = 8, kReadWasSent = 16, kReads = 32 };

// The script's state: what has been said, and what an honest peer would say next.
class Script {
 public:
  Script(Input& input, Session& session, const Choices& choices)
      : input_(input), session_(session), choices_(choices) {}

  void run() {
    for (int steps = 0; steps < 64 && !input_.empty(); steps++) step();
    deliver();
  }

 private:
  void step() {
    const uint8_t what = input_.byte();
    switch (what % 16) {
      case 0:
        return write();
      case 1:
        return send(Opcode::send);
      case 2:
        return read_request();
      case 3:
        return read_response();
      case 4:
        return immediate();
      case 5:
        return any_tagged();
      case 6:
        return any_untagged();
      case 7: {  // a ULPDU as it is
        session_.honest_payloads = false;
        const std::span<const uint8_t> ulpdu = input_.take(input_.two() % 4096);
        return frame(Bytes(ulpdu.begin(), ulpdu.end()));
      }
      case 8: {  // no FPDU at all
        session_.honest_payloads = false;
        const std::span<const uint8_t> raw = input_.take(input_.byte());
        pending_.insert(pending_.end(), raw.begin(), raw.end());
        position_ += raw.size();
        return;
      }
      case 9:  // harm to what has not been delivered yet
        if (!pending_.empty()) pending_[input_.two() % pending_.size()] ^= input_.byte();
        session_.honest_payloads = false;
        return;
      case 10: {  // a part of it arrives
        const size_t part = pending_.empty() ? 0 : input_.two() % pending_.size();
        session_.say(pending_.data(), part);
        pending_.erase(pending_.begin(), pending_.begin() + static_cast<long>(part));
        return session_.poll();
      }
      case 11:
        return deliver();
      case 12:
        return session_.take_answers();
      case 13:
        return session_.post_receive();
      case 14:
        return session_.post_send(input_.byte());
      default:
        return rare(input_.byte());
    }
  }

  void rare(uint8_t what) {
    World& world = World::instance();
    switch (what % 8) {
      case 0:
        deliver();
        return session_.hang_up();
      case 1:
        return terminate_message();
      case 4:
        return atomic_request();
      case 5:
        return atomic_response();
      default: {  // a region goes away while a message for it may be half there, and another comes
        Region& region = world.regions[what / 8 % World::kRegions];
        CHECK(iwarp_provider().dereg_mr(region.mr) == 0);
        if (what % 8 == 2) deliver();
        region.enroll();
      }
    }
  }

  // --- messages: zeros in the input make them right

  uint32_t stag() {
    const uint8_t number = input_.byte();
    if (number < 128) return World::instance().regions[number % World::kRegions].mr->rkey;
    return input_.four();
  }
  uint64_t offset(uint32_t key) {
    const int16_t relative = static_cast<int16_t>(input_.two());
    for (const Region& region : World::instance().regions) {
      if (region.mr->rkey == key) return region.address() + static_cast<uint64_t>(int64_t{relative} * 4);
    }
    return static_cast<uint64_t>(int64_t{relative});
  }
  Bytes payload() { return Bytes(input_.two(), 0x77); }

  void write() {
    const uint32_t key = stag();
    const uint64_t address = offset(key);
    const bool more = input_.byte() & 1;
    tagged(Opcode::write, key, address, payload(), !more);
  }
  void send(Opcode opcode) {
    const uint8_t how = input_.byte();
    const Bytes bytes = payload();
    const bool last = !(how & 1);
    if (how & 2) opcode = Opcode::send_solicited;
    if (how & 4) opcode = Opcode::send_invalidate;
    const uint32_t invalid = how & 4 ? stag() : 0;
    untagged(opcode, kSendQueue, sends_ + (how >> 4), send_offset_ + (how & 8), bytes, last, invalid);
    send_offset_ = last ? 0 : send_offset_ + static_cast<uint32_t>(bytes.size());
    sends_ += last;
  }
  void immediate() {
    const uint8_t how = input_.byte();
    Bytes bytes(kImmediateLength);
    build_immediate(bytes.data(), {how, (how & 1) != 0});
    untagged(how & 2 ? Opcode::immediate_solicited : Opcode::immediate, kSendQueue, sends_++, 0, bytes, true,
             0);
  }
  void read_request() {
    const uint8_t how = input_.byte();
    ReadRequest request;
    request.sink_stag = how;
    request.source_stag = stag();
    request.source_offset = offset(request.source_stag);
    request.length = how & 128 ? input_.four() : input_.two();
    Bytes bytes(kReadRequestLength);
    build_read_request(bytes.data(), request);
    untagged(Opcode::read_request, kReadRequestQueue, reads_++ + (how & 1), 0, bytes, true, 0);
  }
  void read_response() {
    const uint8_t how = input_.byte();
    const Bytes bytes = payload();
    const bool last = !(how & 1);
    tagged(Opcode::read_response, responses_ + (how >> 4), response_offset_ + (how & 8), bytes, last);
    response_offset_ = last ? 0 : response_offset_ + bytes.size();
    responses_ += last;
  }
  void atomic_request() {
    const uint8_t how = input_.byte();
    AtomicRequest request;
    request.operation = static_cast<AtomicOperation>(how & 15);
    request.identifier = how;
    request.stag = stag();
    request.offset = offset(request.stag) + (how >> 7);
    request.add_swap = request.compare = 0x7777777777777777;
    request.add_swap_mask = request.compare_mask = input_.byte() * 0x0101010101010101u;
    Bytes bytes(kAtomicRequestLength);
    build_atomic_request(bytes.data(), request);
    untagged(Opcode::atomic_request, kReadRequestQueue, reads_++, 0, bytes, true, 0);
    // Its payloads may have any form.
    session_.honest_payloads = false;
  }
  void atomic_response() {
    const uint8_t how = input_.byte();
    Bytes bytes(kAtomicResponseLength);
    build_atomic_response(bytes.data(), {responses_ + (how >> 4), how});
    untagged(Opcode::atomic_response, kAtomicResponseQueue, 1 + (how & 1), 0, bytes, true, 0);
    responses_++;
  }
  void terminate_message() {
    TerminateMessage message;
    message.code = {static_cast<uint8_t>(input_.byte() & 15), static_cast<uint8_t>(input_.byte() & 15),
                    input_.byte()};
    message.has_segment = input_.byte() & 1;
    message.segment.opcode = static_cast<Opcode>(input_.byte() & 15);
    message.segment.sequence = input_.byte();
    Bytes bytes(kMaxTerminateLength);
    bytes.resize(build_terminate(bytes.data(), message, nullptr));
    untagged(Opcode::terminate, kTerminateQueue, 1, 0, bytes, true, 0);
  }
  void any_tagged() {
    const uint8_t control = input_.byte();
    const uint8_t rdmap = input_.byte();
    const uint32_t key = stag();
    const uint64_t address = offset(key);
    frame_with(control | 0x80, rdmap, Segment{.tagged = true, .stag = key, .offset = address}, payload());
  }
  void any_untagged() {
    const uint8_t control = input_.byte();
    const uint8_t rdmap = input_.byte();
    Segment segment;
    segment.invalidate = stag();
    segment.queue = input_.byte();
    segment.sequence = input_.byte();
    segment.message_offset = input_.two();
    frame_with(control & 0x7f, rdmap, segment, payload());
  }

  // --- framing

  void tagged(Opcode opcode, uint32_t key, uint64_t address, const Bytes& bytes, bool last) {
    Segment segment;
    segment.tagged = true;
    segment.last = last;
    segment.opcode = opcode;
    segment.stag = key;
    segment.offset = address;
    frame_segment(segment, bytes);
  }
  void untagged(Opcode opcode, uint32_t queue, uint32_t sequence, uint32_t message_offset, const Bytes& bytes,
                bool last, uint32_t invalidate) {
    Segment segment;
    segment.last = last;
    segment.opcode = opcode;
    segment.queue = queue;
    segment.sequence = sequence;
    segment.message_offset = message_offset;
    segment.invalidate = invalidate;
    frame_segment(segment, bytes);
  }
  void frame_segment(const Segment& segment, const Bytes& bytes) {
    Bytes ulpdu(kMaxHeaderLength);
    ulpdu.resize(build_segment(ulpdu.data(), segment));
    ulpdu.insert(ulpdu.end(), bytes.begin(), bytes.end());
    frame(ulpdu);
  }
  void frame_with(int control, uint8_t rdmap, const Segment& segment, const Bytes& bytes) {
    Bytes ulpdu(kMaxHeaderLength);
    ulpdu.resize(build_segment(ulpdu.data(), segment));
    ulpdu[0] = static_cast<uint8_t>(control);
    ulpdu[1] = rdmap;
    ulpdu.insert(ulpdu.end(), bytes.begin(), bytes.end());
    frame(ulpdu);
  }
  void frame(Bytes ulpdu) {
    if (ulpdu.size() > UINT16_MAX) ulpdu.resize(UINT16_MAX);
    const Bytes bytes = build_fpdu(ulpdu, choices_.crc, choices_.markers, position_ & ~3ull);
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    position_ += bytes.size();
  }
  void deliver() {
    session_.say(pending_.data(), pending_.size());
    pending_.clear();
    session_.poll();
  }

  Input& input_;
  Session& session_;
  const Choices choices_;
  Bytes pending_;
  uint64_t position_ = 0;
  uint32_t sends_ = 1, reads_ = 1, responses_ = 1;
  uint32_t send_offset_ = 0;
  uint64_t response_offset_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  World::instance().reset();
  Input input(data, size);
  const uint8_t mode = input.byte();
  Choices choices;
  choices.crc = !(mode & kNoCrc);
  choices.markers = mode & kMarkers;
  choices.hold_sends = mode & kHoldSends;
  choices.read_was_sent = mode & kReadWasSent;
  Session session(choices);
  for (int i = 0; i < 3; i++) session.post_receive();
  if (mode & kReads) {
    session.post_send(8);
    session.post_send(100);
    session.post_send(7);
  }
  if (mode & kRaw) {
    session.honest_payloads = false;
    const std::span<const uint8_t> rest = input.rest();
    session.say(rest.data(), rest.size());
    session.poll();
  } else {
    Script(input, session, choices).run();
  }
  return 0;
}
