// The ring's hot path allocates nothing: every malloc of the process is counted while messages flow
// both ways, with wraps, credit, sleeps and batches.
#include "fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main() {
  std::printf("skipped: the allocator is the sanitizer's\n");
  return 0;
}

#else

#include <execinfo.h>

#include <thread>

namespace {
std::atomic<bool> counting{false};
std::atomic<uint64_t> allocations{0};
std::atomic<int> shown{0};

void count() {
  if (!counting.load(std::memory_order_relaxed)) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  // Where the first few came from.
  if (shown.fetch_add(1) >= 3) return;
  counting = false;
  void* frames[16];
  backtrace_symbols_fd(frames, backtrace(frames, 16), 2);
  counting = true;
}
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t size) {
  count();
  return __libc_malloc(size);
}
void* calloc(size_t members, size_t size) {
  count();
  return __libc_calloc(members, size);
}
void* realloc(void* memory, size_t size) {
  count();
  return __libc_realloc(memory, size);
}
}

using namespace ring_test;

namespace {

constexpr uint32_t kLargest = 1000;

// Lays frames out in staging, as JavaScript does, from lane_ on.
class Lane {
 public:
  Lane(Side& side, const Endpoint& end) : side_(side), end_(end) {}
  ring::SendResult send(uint32_t length) {
    const ring::FrameFormat& format = side_.format;
    const uint32_t header = format.header(ring::FrameType::data);
    if (word(1) - next_ < format.units(header + length)) {
      const auto result = side_.poller->reserve(end_.number, next_, header + length);
      next_ = word(0);
      if (result != ring::SendResult::done) return result;
    }
    uint8_t* at = static_cast<uint8_t*>(end_.staging->addr) + side_.window(word(3)).place(next_);
    format.write(at, {ring::FrameType::data, length, 0, 0});
    std::memset(at + header, 1, length);
    next_ += format.units(header + length);
    return ring::SendResult::done;
  }
  ring::SendResult flush() { return side_.poller->flush(end_.number, next_, false); }

 private:
  uint32_t word(uint32_t which) const {
    return side_.poller->event_ring()
        .slot_word(ring::slot_of(end_.number), ring::EventRing::kStaging + which)
        .load(std::memory_order_relaxed);
  }
  Side& side_;
  const Endpoint& end_;
  uint32_t next_ = 0;
};

// Sends `total` messages and takes as many, releasing each at once.
void exchange(Side& side, const Endpoint& end, Lane* lane, uint64_t total, uint32_t& tail) {
  ring::EventRing& events = side.poller->event_ring();
  const uint32_t number = end.number;
  const uint32_t slot = ring::slot_of(number);
  const uint32_t half = side.window(0).capacity / 2;
  static const uint8_t bytes[kLargest] = {};
  uint64_t sent = 0, received = 0;
  bool full = false, dirty = false;
  for (;;) {
    for (int i = 0; i < 7 && sent < total && !full; ++i) {
      const auto length = static_cast<uint32_t>(sent % kLargest);
      const auto result = lane != nullptr
                              ? lane->send(length)
                              : side.poller->send(number, ring::FrameType::data, 0, 0, bytes, length);
      if (result == ring::SendResult::full) full = true;
      if (result == ring::SendResult::done) ++sent;
      CHECK(result == ring::SendResult::full || result == ring::SendResult::done);
    }
    if (sent % 64 == 0) side.poller->ping(number);
    dirty = (lane != nullptr ? lane->flush() : side.poller->flush(number)) == ring::SendResult::full;
    full = full || dirty;
    if (sent == total && received == total && !dirty) return;
    const uint32_t head = side.head();
    if (head == tail) {
      if (full || sent == total) side.wait_for_doorbell(tail);
      continue;
    }
    uint32_t released = events.slot_word(slot, ring::EventRing::kReleased).load(std::memory_order_relaxed);
    for (; tail != head; ++tail) {
      const ring::Descriptor& descriptor = *events.at(tail);
      CHECK(descriptor.type != static_cast<uint32_t>(ring::Event::broken));
      if (descriptor.type == static_cast<uint32_t>(ring::Event::writable)) {
        full = false;
        continue;
      }
      if (descriptor.type == static_cast<uint32_t>(ring::FrameType::data)) ++received;
      released = descriptor.end;
    }
    events.word(ring::EventRing::kTail).store(tail, std::memory_order_seq_cst);
    if (events.word(ring::EventRing::kFull).load(std::memory_order_seq_cst) != 0) side.poller->wake();
    events.slot_word(slot, ring::EventRing::kReleased).store(released, std::memory_order_seq_cst);
    const uint32_t reported =
        events.slot_word(slot, ring::EventRing::kReported).load(std::memory_order_relaxed);
    if (released - reported >= half) side.poller->return_credit(number);
  }
}

void run(const char* name, ring::Mode mode, bool immediate, bool by_lane) {
  ring::PollerOptions options;
  options.mode = mode;
  Side client(options, 1024), server(options, 1024);
  std::vector<Endpoint> clients, servers;
  clients.reserve(1);
  servers.reserve(1);
  Shape shape;
  shape.immediate = immediate;
  connect(client, server, shape, clients, servers, 1);
  constexpr uint64_t kWarmUp = 5'000, kCounted = 100'000;
  std::atomic<int> warm{0};
  // What was sent last may still be on its way, and without a thread only turns move it.
  auto wait_until = [&](Side& here, int stage) {
    while (warm.load() < stage) {
      here.head();
      std::this_thread::yield();
    }
  };
  auto side = [&](Side& here, Endpoint& end) {
    uint32_t tail = 0;
    Lane lane(here, end);
    exchange(here, end, by_lane ? &lane : nullptr, kWarmUp, tail);
    warm.fetch_add(1);
    wait_until(here, 3);
    exchange(here, end, by_lane ? &lane : nullptr, kCounted, tail);
    warm.fetch_add(1);
    wait_until(here, 6);
  };
  std::thread a([&] { side(client, clients[0]); });
  std::thread b([&] { side(server, servers[0]); });
  while (warm.load() < 2) std::this_thread::yield();
  allocations = 0;
  counting = true;
  warm.fetch_add(1);
  while (warm.load() < 5) std::this_thread::yield();
  counting = false;
  warm.fetch_add(1);
  a.join();
  b.join();
  std::printf("%-24s %lu allocations for %lu messages\n", name, allocations.load(), 2 * kCounted);
  CHECK(allocations.load() == 0);
  for (auto* ends : {&clients, &servers}) ends->front().id->close();
}

}  // namespace

int main() {
  // A look at the host of a peer allocates, every two seconds of a machine that is slow.
  setenv("RDMAKIT_IWARP_SILENCE", "3600", 1);
  // Its first call allocates.
  void* frame = nullptr;
  backtrace(&frame, 1);
  run("adaptive", ring::Mode::adaptive, true, false);
  run("event", ring::Mode::event, true, true);
  run("poll, by SEND", ring::Mode::poll, false, false);
  run("adaptive, lane", ring::Mode::adaptive, true, true);
  run("poll, lane", ring::Mode::poll, true, true);
  run("caller", ring::Mode::caller, true, false);
  run("caller, lane, by SEND", ring::Mode::caller, false, true);
  run("guarded, lane", ring::Mode::guarded, true, true);
  return 0;
}

#endif
