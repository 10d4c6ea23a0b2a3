// READ: slab -> memory of the request -> answer.
#include <algorithm>
#include <cstring>

#include "request/request_executor.h"

namespace rdmakit::volume {

// ---- hot path begins: no allocation, no log, no lock, no system call ----

// Chunks and operations go to READs in order of arrival, and a READ gets all its chunks at once: so no two
// READs can each hold a chunk that the other needs. A READ that streams keeps its chunks until it ends, so it
// can always continue.
bool RequestExecutor::start_reads(uint16_t sending) {
  bool moved = false;
  const bool waited = read_waits_;
  const bool paced = read_paced_;
  read_waits_ = read_paced_ = false;
  if (sending != kNone && slots_[sending].streams() && slots_[sending].error == 0 && !slots_[sending].issued)
    moved |= issue_read(sending);
  while (!reads_.empty()) {
    const uint16_t index = reads_.front();
    RequestSlot& slot = slots_[index];
    if (slot.error == 0) {
      if (!lend_chunks(slot)) break;
      moved |= issue_read(index);
      const bool window_full = slot.streams() && slot.cursor == kWindow * kOutputChunk;
      if (!slot.issued && !window_full) break;
    }
    reads_.pop();
    slot.queued = false;
    answer_if_ready(index);
    release_if_done(index);
  }
  if (read_waits_ && !waited) statistics_.pages_waited_for.add();
  if (read_paced_ && !paced) statistics_.turns_waited_for.add();
  return moved;
}

// False: too few are free.
inline bool RequestExecutor::lend_chunks(RequestSlot& slot) {
  if (slot.window > 0 || slot.request.memory != nullptr || slot.request.length <= kPage) return true;
  const auto chunks = std::min(slot.parts(), kWindow);
  if (free_chunks_.size() < chunks) return false;
  for (; slot.window < chunks; slot.window++) slot.chunk[slot.window] = free_chunks_.pop();
  return true;
}

// Starts as much of the READ as memory, operations and the state of its pages allow.
bool RequestExecutor::issue_read(uint16_t index) {
  RequestSlot& slot = slots_[index];
  bool moved = false;
  while (slot.cursor < slot.request.length && !slot.issued) {
    ReadStep step;
    step.part = slot.cursor / kOutputChunk;
    if (slot.window != 0 && step.part >= slot.parts_sent + slot.window) break;
    Progress progress = look_at_pages(slot, step);
    if (progress == Progress::again) continue;
    if (progress == Progress::waits) break;
    uint8_t* const memory = memory_of(index, step);
    if (slot.request.fragments && step.within == 0) slot.holes_of(step.part) = 0;
    if (step.state == PageState::unset) {
      read_zeroes(slot, memory, step);
    } else {
      progress = read_pages(index, memory, step);
      if (progress == Progress::again) continue;
      if (progress == Progress::waits) break;
      if (progress == Progress::over) {
        moved = true;
        break;
      }
    }
    slot.cursor += step.bytes;
    moved = true;
  }
  if (slot.cursor == slot.request.length) slot.issued = true;
  update_parts(slot);
  return moved;
}

inline RequestExecutor::Progress RequestExecutor::look_at_pages(const RequestSlot& slot, ReadStep& step) {
  step.within = slot.cursor % kOutputChunk;
  step.offset = slot.request.offset + slot.cursor;
  step.limit = std::min({uint64_t{slot.request.length} - slot.cursor, uint64_t{kOutputChunk} - step.within,
                         volume_.left_in_slab(step.offset)});
  step.page = step.offset / kPage;
  step.head = step.offset % kPage;
  const uint64_t pages = (step.head + step.limit + kPage - 1) / kPage;
  // Read the place before the state of the page: a place that is newer has lost the contents of the old one.
  step.place = volume_.place(step.offset);
  step.state = volume_.pages().get(step.page);
  step.run = pages == 1 ? 1 : volume_.pages().run(step.page, pages, step.state);
  if (step.run == 0) return Progress::again;
  if (volume_.generation(step.offset) != step.place.generation) {
    // The place has changed too, or is about to: the state may belong to the contents at the next place.
    read_waits_ = true;
    return Progress::waits;
  }
  step.bytes = static_cast<uint32_t>(std::min(step.limit, step.run * kPage - step.head));
  return Progress::proceed;
}

inline uint8_t* RequestExecutor::memory_of(uint16_t index, const ReadStep& step) const {
  const RequestSlot& slot = slots_[index];
  if (slot.request.memory != nullptr) return slot.request.memory + slot.cursor;
  if (slot.window == 0) return arena_.request_page(index) + step.within;
  return arena_.output_chunk(slot.chunk[step.part % slot.window]) + step.within;
}

inline void RequestExecutor::read_zeroes(RequestSlot& slot, uint8_t* memory, const ReadStep& step) {
  if (slot.request.fragments) {
    // At most 17 pages touch a part.
    slot.holes_of(step.part) |= ((1u << step.run) - 1) << page_of_part(slot, step.part, step.within);
  } else {
    std::memset(memory, 0, step.bytes);
  }
  statistics_.pages_read_without_network.add(step.run);
}

// `over`: no copy has them, and the request has failed.
inline RequestExecutor::Progress RequestExecutor::read_pages(uint16_t index, uint8_t* memory,
                                                             ReadStep& step) {
  if (rdma_.available() <= kReservedOperations) return Progress::waits;
  const uint64_t offset = step.offset;
  const SlabPlace& place = step.place;
  const Replica* source = rdma_.readable(place);
  if (source == nullptr && !place.mapped()) {
    if (volume_.placeless(offset)) {
      read_waits_ = true;  // a first WRITE is about to get it a place
      return Progress::waits;
    }
    if (volume_.place(offset).mapped()) return Progress::again;
  }
  uint64_t held = step.run;
  const bool lost = step.state == PageState::written && source == nullptr && rdma_.backed_up() &&
                    look_at_backup(place, step.page, held) == Backed::lost;
  const bool waits = source == nullptr && rdma_.waits(place);
  // Also for a claimed page: its claim may hang on the server that failed. With a backup it ends soon.
  if (step.state == PageState::lost || lost || (source == nullptr && !rdma_.backed_up() && !waits)) {
    fail_request(index, EIO, offset);
    return Progress::over;
  }
  if (step.state == PageState::claimed || held == 0) {
    read_waits_ = true;
    return Progress::waits;
  }
  if (source != nullptr || waits) held = volume_.lengths().run(step.page, held);
  step.bytes = static_cast<uint32_t>(std::min(step.limit, held * kPage - step.head));
  const ReadAhead::Held ahead = ahead_.take(offset, step.bytes, memory);
  if (ahead == ReadAhead::Held::here) return Progress::proceed;
  if (const uint64_t turn =
          ahead == ReadAhead::Held::coming || source == nullptr ? 0 : volume_.turn(source->server, now_);
      turn != 0) {
    read_paced_ = true;
    wait_for_turn(turn);
    return Progress::waits;
  }
  volume_.touch(offset, now_);
  RequestSlot& slot = slots_[index];
  Operation& operation = rdma_.take(Operation::Kind::read);
  operation.request = index;
  operation.part = slot.window == 0 ? 0 : static_cast<uint16_t>(step.part % slot.window);
  operation.offset = offset;
  operation.length = step.bytes;
  operation.memory = memory;
  operation.generation = place.generation;
  slot.pending[operation.part]++;
  slot.outstanding++;
  if (ahead == ReadAhead::Held::coming) {
    ahead_.wait(operation);
  } else if (waits) {
    moving_.push_back(&operation);  // READs of other slabs continue
  } else {
    read_from(operation, source);
  }
  return Progress::proceed;
}

void RequestExecutor::read_from(Operation& operation, const Replica* source) {
  if (source != nullptr) {
    // If a WRITE has packed the page since, this is the beginning of a slot, which its checksum shows.
    operation.packed = operation.length == kPage ? volume_.lengths().get(operation.offset / kPage) : kRaw;
    rdma_.chain(operation, *source, now_);
  } else {
    rdma_.read_backup(operation);
  }
}

// Looks up written pages without a replica in the backup. `run`: how many of those from `page` on it has, at
// most the value passed; 0: they are on their way there.
RequestExecutor::Backed RequestExecutor::look_at_backup(const SlabPlace& place, uint64_t page,
                                                        uint64_t& run) {
  const BackupMap& map = rdma_.backup()->map();
  const uint64_t held = map.run(page, run, BackupState::held);
  run = held;
  if (held > 0) return Backed::held;
  if (map.get(page) != BackupState::stale) {
    rdma_.backup()->need();
    return Backed::queued;
  }
  // This is certain only under a claim: a WRITE may be bringing the page, or a replica may have come.
  if (volume_.pages().claim(page, 1, PageState::written) == 0) return Backed::queued;
  const SlabPlace now = volume_.place(page * kPage);
  const bool lost = rdma_.readable(now) == nullptr && now.generation == place.generation &&
                    map.get(page) == BackupState::stale;
  volume_.settle(page, 1, now.generation, lost ? PageState::lost : PageState::written);
  return lost ? Backed::lost : Backed::queued;
}

void RequestExecutor::update_parts(RequestSlot& slot) {
  // After a READ has failed, only the data that were ready are sent.
  if (!slot.streams() || slot.error != 0) return;
  const uint32_t parts = slot.parts();
  while (slot.parts_ready < parts) {
    const uint64_t end =
        std::min<uint64_t>(uint64_t{slot.parts_ready + 1} * kOutputChunk, slot.request.length);
    if (slot.cursor < end || slot.pending[slot.parts_ready % kWindow] > 0) return;
    slot.parts_ready++;
  }
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
