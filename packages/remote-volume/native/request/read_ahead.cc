#include "request/read_ahead.h"

#include <cstring>

#include "rdmakit/invariant.h"

namespace rdmakit::volume {

// ---- hot path begins: no allocation, no log, no lock, no system call ----

void ReadAhead::saw(uint64_t offset, uint32_t length) {
  // A READ longer than a window needs no read-ahead.
  if (depth_ == 0 || length > kOutputChunk) return;
  tick_++;
  Stream* oldest = streams_.data();
  for (Stream& stream : streams_) {
    if (stream.reads > 0 && offset >= stream.next && offset - stream.next < kOutputChunk) {
      stream.next = offset + length;
      stream.reads++;
      stream.seen = tick_;
      current_ = &stream;
      return;
    }
    if (stream.seen < oldest->seen) oldest = &stream;
  }
  *oldest = {offset + length, 0, 1, tick_};
}

void ReadAhead::advance(uint64_t now) {
  if (current_ == nullptr) return;
  Stream& stream = *current_;
  current_ = nullptr;
  if (stream.reads < kStart) return;
  const uint32_t doubled = std::min(stream.reads - kStart, 8u);
  const uint64_t depth = uint64_t{std::min(depth_, 1u << doubled)} * kOutputChunk;
  stream.ahead = std::max(stream.ahead, stream.next / kPage * kPage);
  // Half of it at a time, so that windows share a doorbell.
  if (stream.ahead > stream.next && stream.ahead - stream.next > depth / 2) return;
  const uint64_t end = std::min(stream.next + depth, volume_.size());
  while (stream.ahead < end && fetch(stream, now)) {
  }
}

// One window more, or the stream passes over what cannot be read ahead. False: not now.
bool ReadAhead::fetch(Stream& stream, uint64_t now) {
  const uint64_t begin = stream.ahead;
  const uint64_t end = std::min((begin / kOutputChunk + 1) * kOutputChunk, volume_.size());
  if (const Window* const window = find(begin); window != nullptr) {
    stream.ahead = window->begin + window->length;
    return true;
  }
  const uint64_t page = begin / kPage;
  const uint64_t mark = volume_.write_counters().of(page);
  const SlabPlace place = volume_.place(begin);
  const uint64_t run = volume_.pages().run(page, (end - begin) / kPage, PageState::written);
  if (volume_.generation(begin) != place.generation) return false;
  if (run > 0) {
    const Replica* const source = rdma_.readable(place);
    if (source == nullptr || volume_.turn(source->server, now) != 0) return false;
    // Requested READs have priority for every resource.
    if (rdma_.available() <= kOperations / 2 || chunks_.size() <= left_) return false;
    Window* const window = free_window();
    if (window == nullptr) return false;
    *window = {};
    window->used = true;
    window->begin = begin;
    window->length = static_cast<uint32_t>(run * kPage);
    window->mark = mark;
    window->seen = tick_;
    window->chunk = chunks_.pop();
    in_use_++;
    volume_.touch(begin, now);
    fill(*window, place, *source, now);
    statistics_.pages_read_ahead.add(run);
  }
  stream.ahead = end;
  return true;
}

// Pages that are stored as they are travel together, each packed one by itself, all with one doorbell.
void ReadAhead::fill(Window& window, const SlabPlace& place, const Replica& source, uint64_t now) {
  for (uint32_t at = 0; at < window.length;) {
    const uint64_t page = (window.begin + at) / kPage;
    Operation& operation = rdma_.take(Operation::Kind::ahead);
    operation.part = static_cast<uint16_t>(&window - windows_.data());
    operation.offset = window.begin + at;
    operation.length =
        static_cast<uint32_t>(volume_.lengths().run(page, (window.length - at) / kPage) * kPage);
    operation.memory = arena_.output_chunk(window.chunk) + at;
    operation.generation = place.generation;
    if (operation.length == kPage) operation.packed = volume_.lengths().get(page);
    window.parts++;
    under_way_++;
    rdma_.chain(operation, source, now);
    at += operation.length;
  }
}

ReadAhead::Window* ReadAhead::free_window() {
  Window* oldest = nullptr;
  for (Window& window : windows_) {
    if (!window.used) return &window;
    const bool free = window.parts == 0 && window.waits == 0;
    if (free && (oldest == nullptr || window.seen < oldest->seen)) oldest = &window;
  }
  if (oldest != nullptr) drop(*oldest);
  return oldest;
}

ReadAhead::Window* ReadAhead::find(uint64_t offset) {
  if (in_use_ == 0) return nullptr;
  for (Window& window : windows_) {
    if (window.used && !window.old && offset >= window.begin && offset - window.begin < window.length)
      return &window;
  }
  return nullptr;
}

ReadAhead::Held ReadAhead::take(uint64_t offset, uint32_t& bytes, uint8_t* memory) {
  Window* const window = find(offset);
  if (window == nullptr) return Held::nothing;
  if (volume_.write_counters().of(window->begin / kPage) != window->mark) {
    window->old = true;
    drop_old();
    return Held::nothing;
  }
  const auto within = static_cast<uint32_t>(offset - window->begin);
  bytes = std::min(bytes, window->length - within);
  statistics_.bytes_from_read_ahead.add(bytes);
  if (within + bytes == window->length) window->old = true;  // the stream has passed
  if (window->parts > 0) {
    coming_ = static_cast<uint16_t>(window - windows_.data());
    return Held::coming;
  }
  copy(*window, offset, bytes, memory);
  if (window->old && window->waits == 0) drop(*window);
  return Held::here;
}

void ReadAhead::wait(Operation& read) {
  waiting_[waits_++] = {&read, coming_};
  windows_[coming_].waits++;
}

void ReadAhead::operation_decided(const Operation& operation, bool succeeded) {
  if (!succeeded) spoil(windows_[operation.part]);
}

void ReadAhead::operation_over(Operation& operation) {
  Window& window = windows_[operation.part];
  RDMAKIT_INVARIANT(window.used && window.parts > 0 && under_way_ > 0, "window %u: %u parts, %u of all",
                    operation.part, window.parts, under_way_);
  window.parts--;
  under_way_--;
  if (!operation.kept || !rdma_.codec().unpack(operation)) spoil(window);
  rdma_.give_back(operation);
}

void ReadAhead::spoil(Window& window) { window.failed = window.old = true; }

void ReadAhead::copy(const Window& window, uint64_t offset, uint32_t bytes, uint8_t* memory) const {
  std::memcpy(memory, arena_.output_chunk(window.chunk) + (offset - window.begin), bytes);
}

void ReadAhead::drop_old() {
  for (Window& window : windows_) {
    if (window.used && window.parts == 0 && window.old && window.waits == 0) drop(window);
  }
}

void ReadAhead::drop(Window& window) {
  chunks_.push(window.chunk);
  window.used = false;
  in_use_--;
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
