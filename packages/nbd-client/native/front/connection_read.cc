// READ: slab -> output memory -> client.
#include <algorithm>
#include <cstring>

#include "front/connection.h"

namespace rdmakit::nbd {

// ---- hot path begins: no allocation, no log, no lock, no system call ----

// Chunks and operations go to READs in the order in which they came, and a READ gets all its chunks at
// once: no two of them can each hold what the other lacks. A READ that streams keeps its chunks until
// it ends, so it can always go on.
bool Connection::start_reads() {
  bool moved = false;
  const bool waited = read_waits_;
  const bool paced = read_paced_;
  read_waits_ = read_paced_ = false;
  if (!replies_.empty()) {
    const uint16_t front = replies_.front();
    if (slots_[front].streams() && slots_[front].error == kOk && !slots_[front].issued)
      moved |= issue_read(front);
  }
  while (!reads_.empty()) {
    const uint16_t index = reads_.front();
    RequestSlot& slot = slots_[index];
    if (slot.error == kOk) {
      if (slot.window == 0 && slot.memory == nullptr && slot.request.length > kPage) {
        const auto chunks = std::min(slot.parts(), kWindow);
        if (free_chunks_.size() < chunks) break;
        for (; slot.window < chunks; slot.window++) slot.chunk[slot.window] = free_chunks_.pop();
      }
      moved |= issue_read(index);
      const bool window_full = slot.streams() && slot.cursor == kWindow * kOutputChunk;
      if (!slot.issued && !window_full) break;
    }
    reads_.pop();
    slot.queued = false;
    reply_if_ready(index);
    release_if_done(index);
  }
  if (read_waits_ && !waited) statistics_.pages_waited_for.add();
  if (read_paced_ && !paced) statistics_.turns_waited_for.add();
  return moved;
}

// Starts as much of the READ as memory, operations and the state of its pages allow.
bool Connection::issue_read(uint16_t index) {
  RequestSlot& slot = slots_[index];
  bool moved = false;
  while (slot.cursor < slot.request.length && !slot.issued) {
    const uint32_t part = slot.cursor / kOutputChunk;
    const uint32_t within = slot.cursor % kOutputChunk;
    if (slot.window != 0 && part >= slot.parts_sent + slot.window) break;
    const uint64_t offset = slot.request.offset + slot.cursor;
    const uint64_t limit = std::min({uint64_t{slot.request.length} - slot.cursor,
                                     uint64_t{kOutputChunk} - within, volume_.left_in_slab(offset)});
    const uint64_t page = offset / kPage;
    const uint64_t head = offset % kPage;
    const uint64_t pages = (head + limit + kPage - 1) / kPage;
    // Before the state of the page: a place that is new since then has lost what was at the old one.
    const SlabPlace place = volume_.place(offset);
    const PageState state = volume_.pages().get(page);
    const uint64_t run = pages == 1 ? 1 : volume_.pages().run(page, pages, state);
    if (run == 0) continue;  // changed between the two looks
    if (volume_.generation(offset) != place.generation) {
      // So has the place, or it is just about to: the state may be of what is written at the next one.
      read_waits_ = true;
      break;
    }
    auto bytes = static_cast<uint32_t>(std::min(limit, run * kPage - head));
    const uint16_t place_in_window = slot.window == 0 ? 0 : static_cast<uint16_t>(part % slot.window);
    uint8_t* memory = nullptr;
    if (slot.memory != nullptr)
      memory = slot.memory + slot.cursor;
    else if (slot.window == 0)
      memory = arena_.request_page(index) + within;
    else
      memory = arena_.output_chunk(slot.chunk[place_in_window]) + within;
    if (slot.fragments && within == 0) slot.holes_of(part) = 0;

    if (state == PageState::unset) {
      if (slot.fragments) {
        // At most 17 pages touch a part.
        slot.holes_of(part) |= ((1u << run) - 1) << page_of_part(slot, part, within);
      } else {
        std::memset(memory, 0, bytes);
      }
      statistics_.pages_read_without_network.add(run);
    } else {
      if (rdma_.available() <= kReservedOperations) break;
      const Replica* source = rdma_.readable(place);
      if (source == nullptr && !place.mapped()) {
        if (volume_.placeless(offset)) {
          read_waits_ = true;  // a first WRITE is about to get it a place
          break;
        }
        if (volume_.place(offset).mapped()) continue;
      }
      uint64_t held = run;
      const bool lost = state == PageState::written && source == nullptr && rdma_.backed_up() &&
                        look_at_backup(place, page, held) == Backed::lost;
      const bool waits = source == nullptr && rdma_.waits(place);
      // Also for a claimed page: its claim may hang on the server that failed. With a backup it ends soon.
      if (state == PageState::lost || lost || (source == nullptr && !rdma_.backed_up() && !waits)) {
        fail_request(index, kEio, offset);
        moved = true;
        break;
      }
      if (state == PageState::claimed || held == 0) {
        read_waits_ = true;
        break;
      }
      if (source != nullptr || waits) held = volume_.lengths().run(page, held);
      bytes = static_cast<uint32_t>(std::min(limit, held * kPage - head));
      const ReadAhead::Held ahead = ahead_.take(offset, bytes, memory);
      if (ahead == ReadAhead::Held::here) {
        slot.cursor += bytes;
        moved = true;
        continue;
      }
      if (const uint64_t turn =
              ahead == ReadAhead::Held::coming || source == nullptr ? 0 : volume_.turn(source->server, now_);
          turn != 0) {
        read_paced_ = true;
        wait_for_turn(turn);
        break;
      }
      volume_.touch(offset, now_);
      Operation& operation = rdma_.take(Operation::Kind::read);
      operation.request = index;
      operation.part = place_in_window;
      operation.offset = offset;
      operation.length = bytes;
      operation.memory = memory;
      slot.pending[place_in_window]++;
      slot.outstanding++;
      operation.generation = place.generation;
      if (ahead == ReadAhead::Held::coming) {
        ahead_.wait(operation);
      } else if (waits) {
        moving_.push_back(&operation);  // READs of other slabs go on
      } else {
        read_from(operation, source);
      }
    }
    slot.cursor += bytes;
    moved = true;
  }
  if (slot.cursor == slot.request.length) slot.issued = true;
  update_parts(slot);
  return moved;
}

void Connection::read_from(Operation& operation, const Replica* source) {
  if (source != nullptr) {
    // Of a page that a WRITE has packed since, this is the beginning of a slot, which its checksum tells.
    operation.packed = operation.length == kPage ? volume_.lengths().get(operation.offset / kPage) : kRaw;
    rdma_.chain_read(operation, *source, now_);
  } else {
    rdma_.read_backup(operation);
  }
}

// What the backup has of written pages of which no replica is left. `run`: how many it has of those from
// `page` on, at most what it was; 0: they are on their way there.
Connection::Backed Connection::look_at_backup(const SlabPlace& place, uint64_t page, uint64_t& run) {
  const BackupMap& map = rdma_.backup()->map();
  const uint64_t held = map.run(page, run, BackupState::held);
  run = held;
  if (held > 0 || map.get(page) != BackupState::stale) return held > 0 ? Backed::held : Backed::queued;
  // Only under a claim this is sure: a WRITE may be bringing it, or a replica may have come.
  if (volume_.pages().claim(page, 1, PageState::written) == 0) return Backed::queued;
  const SlabPlace now = volume_.place(page * kPage);
  const bool lost = rdma_.readable(now) == nullptr && now.generation == place.generation &&
                    map.get(page) == BackupState::stale;
  volume_.settle(page, 1, now.generation, lost ? PageState::lost : PageState::written);
  return lost ? Backed::lost : Backed::queued;
}

void Connection::update_parts(RequestSlot& slot) {
  // What was ready when a READ failed is the last that is told.
  if (!slot.streams() || slot.error != kOk) return;
  const uint32_t parts = slot.parts();
  while (slot.parts_ready < parts) {
    const uint64_t end =
        std::min<uint64_t>(uint64_t{slot.parts_ready + 1} * kOutputChunk, slot.request.length);
    if (slot.cursor < end || slot.pending[slot.parts_ready % kWindow] > 0) return;
    slot.parts_ready++;
  }
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
