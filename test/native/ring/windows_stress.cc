// A ring's windows: when a sender leaves one, where its frames are then, and what its peer takes. A hundredth
// of a second.
#include "held_device.h"

namespace ring_windows_stress {

using namespace ring_test;
using ring::FrameType;
using ring::SendResult;
using ring::Violation;

constexpr ring::Windows kWindows{kLog2Capacity + 2 * ring::kGrowthLog2, 3};  // 4, 16 and 64 KiB
constexpr ring::FrameFormat kFormat(ring::Version::four);
constexpr uint32_t kLength = 248;  // of the payload of a frame of 16 units, of which a small window has 16
constexpr uint32_t kFrame = 16;

ring::Window window(uint32_t index) { return {kWindows, index, kFormat.unit_log2()}; }

// --- what a receiver takes

struct Incoming {
  explicit Incoming(ring::Version version = ring::Version::four, const ring::Windows& windows = kWindows)
      : receiver(device.queue_pair(), version, device.region(), 0, 1, windows, kDepth),
        writes_in(windows, 0, kFormat.unit_log2()) {
    CHECK(receiver.start() == 0);
  }
  // The peer's next frame.
  void write(FrameType type, uint32_t length, uint32_t immediate = 0) {
    kFormat.write(device.memory() + writes_in.place(next), {type, length, 0, immediate});
    next += kFormat.units_of(type, length);
  }
  Violation read(FrameType type, uint32_t length, uint32_t immediate = 0) {
    const uint64_t at = next;
    write(type, length, immediate);
    CHECK(receiver.publish(static_cast<uint32_t>(next - at)) == Violation::none);
    return receiver.next(descriptor);
  }

  Device device;
  ring::Receiver receiver;
  ring::Window writes_in;
  uint64_t next = 0;
  ring::Descriptor descriptor{};
};

void follows() {
  Incoming from;
  CHECK(from.read(FrameType::data, 100) == Violation::none && from.descriptor.offset == 8);
  CHECK(from.read(FrameType::grow, 0, 1) == Violation::none);
  CHECK(from.descriptor.type == static_cast<uint32_t>(FrameType::grow) && from.descriptor.immediate == 1);
  from.writes_in = window(1);
  // In the same count of units, and longer than a frame may be in the window before.
  CHECK(from.read(FrameType::data, 5000, 7) == Violation::none);
  CHECK(from.descriptor.offset == (1 << kLog2Capacity) + 8 * 16 + 8 && from.descriptor.immediate == 7,
        "at %u", from.descriptor.offset);
  CHECK(from.read(FrameType::grow, 0, 2) == Violation::none);
  from.writes_in = window(2);
  CHECK(from.read(FrameType::data, 30'000) == Violation::none);
  CHECK(from.descriptor.offset == (5 << kLog2Capacity) + 322 * 16 + 8, "at %u", from.descriptor.offset);
}

void refuses() {
  const auto refused = [](uint32_t now, uint32_t then, const ring::Windows& windows = kWindows) {
    Incoming from(ring::Version::four, windows);
    if (now > 0) {
      CHECK(from.read(FrameType::grow, 0, now) == Violation::none);
      from.writes_in = window(now);
    }
    CHECK(from.read(FrameType::grow, 0, then) == Violation::grow, "from %u to %u", now, then);
  };
  refused(0, 0);
  refused(0, 3);
  refused(0, UINT32_MAX);
  refused(1, 1);
  refused(2, 1);
  refused(2, 3);
  refused(0, 1, {kLog2Capacity, 1});
  Incoming longer;
  CHECK(longer.read(FrameType::grow, 8, 1) == Violation::grow);
  Incoming older(ring::Version::three, {kLog2Capacity, 1});
  CHECK(older.read(FrameType::grow, 0, 1) == Violation::frame_type);
}

// A notification may come before the GROW that it is for is read, so it is taken; the frames are not.
void holds_to_the_window() {
  Incoming from;
  for (int i = 0; i < 16; ++i) from.write(FrameType::data, kLength);
  CHECK(from.receiver.publish(17 * kFrame) == Violation::none);
  for (int i = 0; i < 16; ++i) CHECK(from.receiver.next(from.descriptor) == Violation::none, "frame %d", i);
  // The first lies there still.
  CHECK(from.receiver.next(from.descriptor) == Violation::published);
  Incoming beyond;
  CHECK(beyond.receiver.publish(window(2).capacity + 1) == Violation::published);
}

// --- when a sender leaves a window

struct Outgoing {
  Outgoing() { sender.establish(device.region(), {kAddress, kKey, kWindows, kDepth, true}); }
  SendResult send(uint32_t length = kLength) {
    static const uint8_t bytes[1 << 15] = {};
    return sender.queue(FrameType::data, 0, 0, bytes, length);
  }
  // The peer has consumed all that was posted.
  void credit() {
    const uint32_t word = ring::encode_credit(kFormat.grains(sender.posted()), notifications);
    CHECK(sender.credit(word) == Violation::none);
  }
  // What was posted is complete, and was one WRITE of so many bytes to that byte of the ring, with so many
  // units.
  void posted(uint64_t at, uint32_t bytes, uint32_t units) {
    const std::vector<ibv_send_wr> sent = device.sent();
    CHECK(sent.size() == 1, "%zu requests", sent.size());
    const ibv_send_wr& one = sent[0];
    CHECK(one.wr.rdma.remote_addr == kAddress + at, "at %llu",
          static_cast<unsigned long long>(one.wr.rdma.remote_addr - kAddress));
    CHECK(one.sg_list->length == bytes && ntohl(one.imm_data) == units, "%u bytes, %u units",
          one.sg_list->length, ntohl(one.imm_data));
    ++notifications;
    sender.complete(ring::WorkId::decode(one.wr_id));
  }
  uint32_t grown() const {
    ring::Frame frame;
    CHECK(kFormat.read(sender.at(sender.next() - 1), frame) == Violation::none);
    CHECK(frame.type == FrameType::grow);
    return frame.immediate;
  }

  static constexpr uint64_t kAddress = 4096;
  Device device;
  ring::Sender sender{device.queue_pair(), ring::Version::four, 0, 1, {.depth = 16}};
  uint64_t notifications = 0;
};

void without_room() {
  Outgoing to;
  for (int i = 0; i < 15; ++i) CHECK(to.send() == SendResult::done);
  CHECK(to.device.sent().empty() && to.sender.current_window() == 0);
  // The sixteenth leaves no unit for a GROW.
  CHECK(to.send() == SendResult::done && to.sender.current_window() == 1);
  to.posted(0, 15 * kFrame * 16 + 8, 15 * kFrame + 1);
  CHECK(to.sender.flush() == SendResult::done);
  // Who waits for something else is told of no room.
  CHECK(!to.sender.drained() && to.sender.granted() == ring::Sender::kGrantOther);
  to.posted(window(1).place(15 * kFrame + 1), kFrame * 16, kFrame);
  // Nothing is consumed, and there is still a window of it.
  while (to.sender.current_window() == 1) CHECK(to.send() == SendResult::done);
  CHECK(to.sender.posted() <= window(1).capacity && to.sender.posted() > window(1).capacity - kFrame);
}

void for_long_frames() {
  Outgoing to;
  CHECK(to.send(kLength + 1) == SendResult::done && to.sender.current_window() == 1);
  Outgoing over;
  CHECK(over.send(3000) == SendResult::done && over.sender.current_window() == 2);
  // Half of the last is the longest there is.
  CHECK(over.send(ring::max_payload(kWindows.log2_capacity)) == SendResult::done);
  CHECK(over.send(ring::max_payload(kWindows.log2_capacity) + 1) == SendResult::too_long);
}

void not_while_there_is_room() {
  Outgoing to;
  for (int i = 0; i < 1000; ++i) {
    CHECK(to.send(150) == SendResult::done && to.sender.flush() == SendResult::done);
    for (const ibv_send_wr& each : to.device.sent()) {
      if ((each.send_flags & IBV_SEND_SIGNALED) != 0) to.sender.complete(ring::WorkId::decode(each.wr_id));
      if (each.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) ++to.notifications;
    }
    to.credit();
    CHECK(to.sender.current_window() == 0, "after %d", i);
  }
}

// The peer takes no more notifications: the GROW waits, and all behind it. Who was refused is told of room,
// also when the GROW has been posted for others before that.
enum class Meanwhile { nothing, posted, sent };
void without_notifications(Meanwhile meanwhile) {
  Outgoing to;
  for (uint32_t i = 0; i < kDepth; ++i) {
    CHECK(to.send(8) == SendResult::done && to.sender.flush() == SendResult::done);
    to.posted(i * 16, 16, 1);
  }
  for (int i = 0; i < 2; ++i) {
    CHECK(to.send(kLength + 1) == SendResult::full && to.sender.current_window() == 0 && to.grown() == 1);
    CHECK(to.sender.next() == kDepth + 1 && to.sender.window() == to.sender.next());
    CHECK(to.device.sent().empty());
  }
  to.credit();
  if (meanwhile == Meanwhile::posted) CHECK(to.sender.flush() == SendResult::done);
  if (meanwhile == Meanwhile::sent) CHECK(to.send(0) == SendResult::done);
  CHECK((to.sender.granted() & ring::Sender::kGrantRoom) != 0 && to.sender.granted() == 0);
  if (meanwhile == Meanwhile::sent) {
    to.posted(kDepth * 16, 8, 1);
    CHECK(to.sender.flush() == SendResult::done);
    return to.posted(window(1).place(kDepth + 1), 8, 1);
  }
  CHECK(to.send(kLength + 1) == SendResult::done && to.sender.current_window() == 1);
  to.posted(kDepth * 16, 8, 1);
  CHECK(to.sender.flush() == SendResult::done);
  to.posted(window(1).place(kDepth + 1), kLength + 9, kFrame + 1);
}

STRESS(ring_windows) {
  fixture::timed("follows", follows);
  fixture::timed("refuses", refuses);
  fixture::timed("holds to the window", holds_to_the_window);
  fixture::timed("leaves it without room", without_room);
  fixture::timed("leaves it for long frames", for_long_frames);
  fixture::timed("not while there is room", not_while_there_is_room);
  for (const auto meanwhile : {Meanwhile::nothing, Meanwhile::posted, Meanwhile::sent})
    fixture::timed("without notifications", [=] { without_notifications(meanwhile); });
  return 0;
}

}  // namespace ring_windows_stress
