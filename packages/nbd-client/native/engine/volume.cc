#include "engine/volume.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace rdmakit::nbd {

namespace {
constexpr uint64_t kMapped = uint64_t{1} << 31;
}

int Volume::open(const VolumeOptions& options, std::string& why) {
  const auto refuse = [&why](int error, const char* text) {
    why = text;
    return error;
  };
  if (options.size == 0 || options.size % kPage != 0 || options.size > uint64_t{1} << 62)
    return refuse(EINVAL, "the size must be a multiple of 4096 bytes, and not 0");
  if (!std::has_single_bit(options.slab_size) || options.slab_size < kMinSlab)
    return refuse(EINVAL, "the slab size must be a power of two of at least 1 MiB");
  slab_shift_ = static_cast<unsigned>(std::countr_zero(options.slab_size));
  const uint64_t count = (options.size + options.slab_size - 1) >> slab_shift_;
  if (count > 1u << 24) return refuse(EINVAL, "more than 16,777,216 slabs: choose a larger slab size");
  slab_count_ = static_cast<uint32_t>(count);
  slabs_ = std::make_unique<Slab[]>(slab_count_);
  exported_.size = options.size;
  exported_.flags = kFlagHasFlags | kFlagSendFlush | kFlagSendFua | kFlagSendTrim | kFlagSendWriteZeroes |
                    kFlagCanMultiConn | kFlagSendCache | kFlagSendFastZero;
  if (options.read_only) exported_.flags |= kFlagReadOnly;
  int error = pages_.open(options.size / kPage, options.page_map_file, options.prefault);
  if (error == 0) error = provisioned_.open(options.size / kPage, options.prefault);
  if (error != 0) why = std::string("page map: ") + strerror(error);
  return error;
}

// ---- hot path begins: no lock, no allocation, no system call ----

SlabPlace Volume::place(uint64_t offset) const {
  const Slab& slab = slabs_[offset >> slab_shift_];
  SlabPlace place;
  uint32_t version = slab.version.load(std::memory_order_acquire);
  while (version != 0) {
    place.address = slab.address[version % 2].load(std::memory_order_acquire);
    const uint64_t packed = slab.key_and_server[version % 2].load(std::memory_order_acquire);
    const uint32_t again = slab.version.load(std::memory_order_acquire);
    if (again == version) {
      place.remote_key = static_cast<uint32_t>(packed >> 32);
      place.server = static_cast<uint32_t>(packed & (kMapped - 1));
      place.mapped = (packed & kMapped) != 0;
      place.version = version;
      break;
    }
    version = again;
  }
  return place;
}

bool Volume::settle(uint64_t page, uint64_t count, uint32_t version, PageState to) {
  pages_.settle(page, count, to);
  if (to != PageState::written || this->version(page * kPage) == version) return true;
  // replace_slab() changes the version before it looks for written pages, and we wrote the state before
  // we looked at the version: one of the two sees the other's change, so none stays `written` wrongly.
  pages_.lose(page, count);
  return false;
}

void Volume::clear(uint64_t page, uint64_t count, bool provisioned) {
  provisioned_.set(page, count, provisioned);
  pages_.clear(page, count);
}

uint32_t Volume::allocation(uint64_t page, uint64_t limit, uint64_t& run) const {
  for (int look = 0; look < 3; look++) {
    if (pages_.get(page) != PageState::unset) {
      run = pages_.run_of_others(page, limit, PageState::unset);
      if (run > 0) return 0;
    } else {
      run = pages_.run(page, limit, PageState::unset);
      if (run > 0) {
        const bool kept = provisioned_.get(page);
        run = std::max<uint64_t>(provisioned_.run(page, run, kept), 1);
        return kept ? kStateZero : kStateZero | kStateHole;
      }
    }
    // Changed between the two looks.
  }
  run = 1;
  return 0;  // "always safe": nothing is known
}

// ---- hot path ends ----

void Volume::publish(Slab& slab, uint32_t server, uint32_t remote_key, uint64_t address, bool mapped) {
  uint32_t next = slab.version.load() + 1;
  if (next == 0) next = 2;  // 0 means never mapped, and the parity must change
  slab.address[next % 2].store(address, std::memory_order_release);
  slab.key_and_server[next % 2].store(uint64_t{remote_key} << 32 | (mapped ? kMapped : 0) | server,
                                      std::memory_order_release);
  slab.version.store(next);
}

int Volume::map_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address) {
  if (slab >= slab_count_ || server >= kMaxServers) return EINVAL;
  if (slabs_[slab].version.load() != 0) return EEXIST;
  publish(slabs_[slab], server, remote_key, address, true);
  return 0;
}

int Volume::replace_slab(uint32_t slab, uint32_t server, uint32_t remote_key, uint64_t address, bool lost) {
  if (slab >= slab_count_ || server >= kMaxServers) return EINVAL;
  if (lost) {
    // Unmapped first: from here on no operation starts, and one that ends finds another version.
    publish(slabs_[slab], 0, 0, 0, false);
    const uint64_t first = (uint64_t{slab} << slab_shift_) / kPage;
    const uint64_t count = std::min(slab_size(), exported_.size - first * kPage) / kPage;
    if (pages_.lose(first, count) > 0) return EBUSY;
    // A claim that ended between the two looks is caught by the second one.
    if (pages_.lose(first, count) > 0) return EBUSY;
  }
  publish(slabs_[slab], server, remote_key, address, true);
  return 0;
}

bool Volume::fail(uint32_t server) {
  if (server >= kMaxServers || failed_[server].exchange(true)) return false;
  failures_.fetch_add(1);
  return true;
}

}  // namespace rdmakit::nbd
