// Reads ahead for clients that read pages in sequence, as swap does when a program walks through its memory:
// while the client processes its pages, the next ones are read.
//
//   READ, READ …  ->  Stream       where the next one is expected, how far was read ahead of it
//                       |
//                       v
//                     Window       an output chunk: up to 64 KiB of written pages, by one RDMA READ, and
//                       |          one for each packed page; nobody waits for them: the lane may sleep
//                       v
//   the next READ  <-  copied from the window when it is filled; until then the READ waits for it
//
// A window is a snapshot, not a cache that is kept up to date: any WRITE to its 64 KiB invalidates it
// (WriteCounters). Bytes are checked against their checksums, and a window that fails in any way is dropped:
// the READ then takes the ordinary path, which handles repairs, replicas and backups.
// docs/page-service/read-ahead.md
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "rdma/arena.h"
#include "rdma/index_stack.h"
#include "rdma/rdma_queue.h"
#include "rdma/statistics.h"
#include "volume/volume.h"

namespace rdmakit::volume {

class ReadAhead {
 public:
  // Chunks that a lane uses for it at most.
  static constexpr uint32_t kWindows = 16;

  // `bytes`: how far ahead of one stream, in whole windows; 0: never.
  ReadAhead(Volume& volume, const Arena& arena, RdmaQueue& rdma, LaneStatistics& statistics,
            IndexStack<kOutputChunks>& chunks, uint64_t bytes)
      : volume_(volume),
        arena_(arena),
        rdma_(rdma),
        statistics_(statistics),
        chunks_(chunks),
        depth_(static_cast<uint32_t>(std::min<uint64_t>(bytes / kOutputChunk, kWindows))) {}

  // ---- hot path ----
  // A READ has arrived.
  void saw(uint64_t offset, uint32_t length);
  // Chains RDMA READs of what should be ahead of the READ that came last.
  void advance(uint64_t now);

  enum class Held : uint8_t { nothing, coming, here };
  // For `written` pages from `offset` on, after their state was looked at. `bytes` becomes how many of them a
  // window has, if it has any. `here`: they are in `memory` now. `coming`: wait() for them, at once.
  Held take(uint64_t offset, uint32_t& bytes, uint8_t* memory);
  // A READ, with its offset, length and memory, is served when its window is filled.
  void wait(Operation& read);
  // For operations of Kind::ahead. See OperationListener; then end_waits().
  void operation_decided(const Operation& operation, bool succeeded);
  void operation_over(Operation& operation);
  // Calls ended(read, served) for each READ that needs not wait any longer.
  template <typename Ended>
  void end_waits(Ended ended) {
    for (size_t i = 0; i < waits_;) {
      const Wait wait = waiting_[i];
      Window& window = windows_[wait.window];
      if (window.parts > 0 && !window.failed) {
        i++;
        continue;
      }
      waiting_[i] = waiting_[--waits_];
      if (!window.failed) copy(window, wait.read->offset, wait.read->length, wait.read->memory);
      ended(*wait.read, !window.failed);
      window.waits--;
    }
    drop_old();
  }
  // The connection is over: nothing is kept, and no READ waits any longer.
  template <typename Ended>
  void stop(Ended ended) {
    for (size_t i = 0; i < waits_; i++) {
      windows_[waiting_[i].window].waits--;
      ended(*waiting_[i].read);
    }
    waits_ = 0;
    current_ = nullptr;
    streams_ = {};
    for (Window& window : windows_) window.old = true;
    drop_old();
  }
  // READs take output chunks of their own, of which read-ahead leaves them half.
  void share_chunks(bool shared) { left_ = shared ? kOutputChunks / 2 : 0; }
  // Outstanding operations for which no request waits.
  uint32_t unawaited() const { return waits_ == 0 ? under_way_ : 0; }

 private:
  // READs that follow each other, up to 64 KiB apart: swap leaves out pages that it still has.
  struct Stream {
    uint64_t next = 0;   // where the last one ended
    uint64_t ahead = 0;  // up to where pages were asked for
    uint32_t reads = 0;  // 0: there is no stream
    uint64_t seen = 0;   // tick
  };
  struct Window {
    bool used = false;
    bool failed = false;  // its data, now or later, are useless
    bool old = false;     // not for further READs
    uint64_t begin = 0;
    uint32_t length = 0;
    uint32_t parts = 0;  // operations that are not over: they may still write to the chunk
    uint32_t waits = 0;  // READs
    uint64_t mark = 0;
    uint64_t seen = 0;  // tick
    uint16_t chunk = 0;
  };
  struct Wait {
    Operation* read;
    uint16_t window;
  };
  static constexpr uint32_t kStreams = 4;
  // The second READ in a row may be chance, and costs at most a window.
  static constexpr uint32_t kStart = 2;

  Window* find(uint64_t offset);
  bool fetch(Stream& stream, uint64_t now);
  void fill(Window& window, const SlabPlace& place, const Replica& source, uint64_t now);
  Window* free_window();
  static void spoil(Window& window);
  void copy(const Window& window, uint64_t offset, uint32_t bytes, uint8_t* memory) const;
  void drop_old();
  void drop(Window& window);

  Volume& volume_;
  const Arena& arena_;
  RdmaQueue& rdma_;
  LaneStatistics& statistics_;
  IndexStack<kOutputChunks>& chunks_;
  const uint32_t depth_;  // windows
  size_t left_ = kOutputChunks / 2;
  std::array<Stream, kStreams> streams_{};
  Stream* current_ = nullptr;  // of the READ that came last
  std::array<Window, kWindows> windows_{};
  uint32_t in_use_ = 0;     // windows
  uint32_t under_way_ = 0;  // operations
  std::array<Wait, kOperations> waiting_{};
  size_t waits_ = 0;
  uint16_t coming_ = 0;  // the window that take() found last
  uint64_t tick_ = 0;
};

}  // namespace rdmakit::volume
