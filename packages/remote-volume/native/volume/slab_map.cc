#include "volume/slab_map.h"

#include <cerrno>
#include <type_traits>

namespace rdmakit::volume {

namespace {

constexpr uint64_t kSlabMapMagic = 0x70616d62616c7372;  // "rslabmap"
constexpr size_t kFailedWords = kMaxServers / 64;

// First page of the file; the records follow it.
struct SlabMapHeader {
  uint64_t magic;
  uint64_t slabs;
  uint64_t record_bytes;  // another build's records may be laid out in another way
  std::atomic<uint64_t> failed[kFailedWords];
};

// The contents of a file must mean the same in the next process.
static_assert(std::is_standard_layout_v<SlabRecord> && std::is_trivially_destructible_v<SlabRecord>);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(SlabMapHeader) <= kPage);

}  // namespace

int SlabMap::open(uint32_t slabs, const std::string& file) {
  if (file.empty()) {
    if (const int error = own_records_.open(slabs, false); error != 0) return error;
    own_failed_ = std::make_unique<std::atomic<uint64_t>[]>(kFailedWords);
    records_ = own_records_.get();
    failed_ = own_failed_.get();
    return 0;
  }
  // Zeros are records of slabs that were never mapped.
  const uint64_t beginning[] = {kSlabMapMagic, slabs, sizeof(SlabRecord)};
  bool fresh = false;
  const size_t bytes = kPage + slabs * sizeof(SlabRecord);
  if (const int error = file_.open(file, beginning, bytes, false, fresh); error != 0) return error;
  auto* header = static_cast<SlabMapHeader*>(file_.memory());
  records_ = reinterpret_cast<SlabRecord*>(static_cast<uint8_t*>(file_.memory()) + kPage);
  failed_ = header->failed;
  if (fresh) return 0;
  if (header->magic != kSlabMapMagic || header->slabs != slabs || header->record_bytes != sizeof(SlabRecord))
    return EINVAL;
  return check(slabs);
}

uint32_t SlabMap::settle(uint32_t slabs, const std::function<void(uint32_t slab)>& mapped) {
  if (file_.memory() == nullptr) return 0;  // all are as they were made
  uint32_t count = 0;
  for (uint32_t slab = 0; slab < slabs; slab++) {
    records_[slab].settle();
    if (records_[slab].phase() != SlabPhase::mapped) continue;
    mapped(slab);
    count++;
  }
  return count;
}

// Lanes index by what they read here, and control publishes it again, which ends a process that is wrong
// about itself.
int SlabMap::check(uint32_t slabs) const {
  for (uint32_t slab = 0; slab < slabs; slab++) {
    const SlabPlace place = records_[slab].read();
    for (const Replica& replica : place.all()) {
      if (replica.server >= kMaxServers || place.find(replica.server) != &replica) return EINVAL;
      if (replica.live && replica.leaving) return EINVAL;
    }
  }
  return 0;
}

}  // namespace rdmakit::volume
