// A volume: its slabs, which server holds each, which servers have failed, and its page map.
// Shared by all lanes; the control path changes it while they run, and they never wait for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/limits.h"
#include "engine/page_bits.h"
#include "engine/page_map.h"
#include "protocol/request.h"

namespace rdmakit::nbd {

struct VolumeOptions {
  uint64_t size = 0;
  uint64_t slab_size = 64 << 20;
  bool read_only = false;
  std::string page_map_file;
  bool prefault = false;
};

struct SlabPlace {
  uint64_t address = 0;  // of the slab's first byte at the server
  uint32_t remote_key = 0;
  uint32_t server = 0;
  uint32_t version = 0;  // changes with each mapping
  bool mapped = false;
};

class Volume {
 public:
  // 0 or an errno value with `why`.
  int open(const VolumeOptions& options, std::string& why);

  const Export& exported() const { return exported_; }
  uint64_t slab_size() const { return uint64_t{1} << slab_shift_; }
  uint32_t slabs() const { return slab_count_; }
  PageMap& pages() { return pages_; }
  const PageMap& pages() const { return pages_; }

  // ---- hot path: by lanes ----
  // Whole pages become zeros. `provisioned`: the client wants no holes there (WRITE_ZEROES with NO_HOLE).
  void clear(uint64_t page, uint64_t count, bool provisioned);
  // What BLOCK_STATUS tells of the pages from `page` on: kState… flags, and of how many pages they hold, at
  // least 1 and at most `limit`.
  uint32_t allocation(uint64_t page, uint64_t limit, uint64_t& run) const;
  SlabPlace place(uint64_t offset) const;
  uint32_t version(uint64_t offset) const { return slabs_[offset >> slab_shift_].version.load(); }
  uint64_t left_in_slab(uint64_t offset) const { return slab_size() - (offset & (slab_size() - 1)); }
  // Ends a claim after its write completed. False: the slab moved meanwhile, so what was written is gone.
  bool settle(uint64_t page, uint64_t count, uint32_t version, PageState to);
  bool failed(uint32_t server) const { return failed_[server].load(std::memory_order_acquire); }
  // Grows with each failure; a lane that sees it changed looks at failed() of its servers.
  uint32_t failures() const { return failures_.load(std::memory_order_acquire); }

  // ---- control ----
  // EINVAL: out of range; EEXIST: mapped already.
  int map_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address);
  // EINVAL; EBUSY (contents lost only): first writes to the old place are still ending; the slab stays
  // unmapped, call again.
  int replace_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address, bool lost);
  // True for the first caller. Any thread.
  bool fail(uint32_t server);

 private:
  struct Slab {
    // Two places, so that a reader never waits for the writer: place[version % 2] is valid while
    // `version` stands; the next mapping is written to the other one. Version 0: never mapped.
    std::atomic<uint32_t> version{0};
    std::array<std::atomic<uint64_t>, 2> address{};
    std::array<std::atomic<uint64_t>, 2> key_and_server{};  // key << 32 | mapped << 31 | server
  };
  void publish(Slab& slab, uint32_t server, uint32_t remote_key, uint64_t address, bool mapped);

  Export exported_;
  unsigned slab_shift_ = 0;
  uint32_t slab_count_ = 0;
  std::unique_ptr<Slab[]> slabs_;
  PageMap pages_;
  // A slab keeps its memory whatever its pages say, so no page ever lacks room; but a client that asked for
  // no hole is not told of one. Counts for unset pages only; forgotten with the process.
  PageBits provisioned_;
  std::array<std::atomic<bool>, kMaxServers> failed_{};
  std::atomic<uint32_t> failures_{0};
};

}  // namespace rdmakit::nbd
