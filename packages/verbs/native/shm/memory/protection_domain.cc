#include "shm/memory/protection_domain.h"

#include <algorithm>
#include <cerrno>

#include "shm/mapping/hazard.h"
#include "shm/memory/region_keys.h"
#include "shm/queue-pair/queue_pair.h"

namespace rdmakit::shm {

std::unique_ptr<ProtectionDomain> ProtectionDomain::create(ibv_context* context) {
  std::unique_ptr<ProtectionDomain> made(new ProtectionDomain);
  made->context = context;
  made->mapping_ = SharedMapping::create("rdmakit-regions", kMaxRegions * sizeof(RegionEntry),
                                         Sharing::read_only, made->table_fd_);
  if (made->mapping_ == nullptr) return nullptr;
  return made;
}

// Its table goes with it: a peer that still looks there finds dead keys only.
ProtectionDomain::~ProtectionDomain() {
  for (const uint32_t key : resting_) free_key(key);
}

namespace {
// Memory that peers access themselves: they must be able to copy it.
bool is_for_peers(int access) {
  return (access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC |
                    IBV_ACCESS_MW_BIND)) != 0;
}
}  // namespace

uint32_t ProtectionDomain::add(uint64_t address, uint64_t length, int access) {
  const uint32_t key = make_key();
  if (key == 0) {
    errno = ENOMEM;
    return 0;
  }
  const std::shared_ptr<Segment> segment = Segments::instance().find(address, length);
  RegionEntry& entry = table()[slot_of_key(key)];
  const std::lock_guard lock(mutex_);
  if (segment == nullptr && is_for_peers(access)) {
    if (!out_of_reach_.empty()) {
      free_key(key);
      errno = EPERM;
      return 0;
    }
    unshared_++;
  }
  entry.access = static_cast<uint32_t>(access) | kRegion;
  entry.segment = segment == nullptr ? kNoSegment : use(segment);
  entry.generation = segment == nullptr ? 0 : segment->generation;
  entry.segment_address = segment == nullptr ? 0 : segment->address();
  entry.address = address;
  entry.length = length;
  entry.key.store(key, std::memory_order_release);
  return key;
}

// One more region of the segment; peers are notified of the first. Returns its number. There are never more
// than kMaxSegments of them, because there are no more regions.
uint32_t ProtectionDomain::use(const std::shared_ptr<Segment>& segment) {
  Use& use = segments_[segment->generation];
  if (use.regions++ > 0) return use.number;
  use.segment = segment;
  if (free_numbers_.empty()) {
    use.number = next_number_++;
  } else {
    use.number = free_numbers_.back();
    free_numbers_.pop_back();
  }
  for (QueuePair* queue_pair : queue_pairs_) queue_pair->announce(segment, use.number);
  return use.number;
}

int ProtectionDomain::remove(uint32_t key, PeerCopies copies) {
  const RegionEntry& entry = table()[slot_of_key(key)];
  {
    const std::lock_guard lock(mutex_);
    {
      const std::lock_guard windows_lock(windows_lock_);
      if (own_ != nullptr && own_[slot_of_key(key)].windows != 0) return EBUSY;
      // Remove the key, then check who is using it; a peer announces its use, then checks that the key is
      // there.
      table()[slot_of_key(key)].key.store(0, std::memory_order_seq_cst);
    }
    for (QueuePair* queue_pair : queue_pairs_) queue_pair->finish_own_copies();
  }
  const bool waits = copies == PeerCopies::awaited || entry.segment == kNoSegment;
  const bool gone = !waits || wait_for_peers(key);
  const std::lock_guard lock(mutex_);
  if (entry.segment == kNoSegment && is_for_peers(static_cast<int>(entry.access & ~kRegion))) unshared_--;
  const auto use = entry.segment == kNoSegment ? segments_.end() : segments_.find(entry.generation);
  if (use != segments_.end() && --use->second.regions == 0) {
    for (QueuePair* queue_pair : queue_pairs_) queue_pair->withdraw(use->second.segment, use->second.number);
    free_numbers_.push_back(use->second.number);
    segments_.erase(use);
  }
  rest(key);
  return gone ? 0 : ETIMEDOUT;
}

std::vector<std::shared_ptr<Hazard>> ProtectionDomain::hazards() {
  std::vector<std::shared_ptr<Hazard>> all = departed_;
  for (const QueuePair* queue_pair : queue_pairs_) all.push_back(queue_pair->hazard());
  return all;
}

// False when a peer may still be at the region or window `key`; it is given up then, and its connection ends.
// Without mutex_: others make queue pairs and regions meanwhile.
bool ProtectionDomain::wait_for_peers(uint32_t key) {
  std::vector<std::shared_ptr<Hazard>> all;
  {
    const std::lock_guard lock(mutex_);
    all = hazards();
  }
  const auto deadline = Hazard::Clock::now() + kPeerPatience;
  bool gone = true;
  for (const auto& hazard : all) gone &= hazard->wait(key, *this, deadline);
  if (gone) return true;
  const std::lock_guard lock(mutex_);
  for (QueuePair* queue_pair : queue_pairs_) {
    if (queue_pair->hazard()->given_up()) queue_pair->fail_later(Failure::stopped());
  }
  return false;
}

// A dead key's slot is not used again while a peer names the key: it may be looking at the entry. There are
// never more such keys than peers.
void ProtectionDomain::rest(uint32_t key) {
  resting_.push_back(key);
  free_rested_keys();
}

void ProtectionDomain::free_rested_keys() {
  const auto all = hazards();
  std::erase_if(resting_, [&](uint32_t key) {
    for (const auto& hazard : all) {
      if (hazard->names_slot_of(key)) return false;
    }
    free_key(key);
    return true;
  });
}

void ProtectionDomain::join(QueuePair* queue_pair) {
  users++;
  const std::lock_guard lock(mutex_);
  queue_pairs_.push_back(queue_pair);
}

void ProtectionDomain::leave(QueuePair* queue_pair) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(queue_pairs_, queue_pair);
    std::erase(out_of_reach_, queue_pair);
    std::erase_if(departed_, [](const auto& hazard) { return !hazard->holds_anything(); });
    if (queue_pair->hazard()->holds_anything()) departed_.push_back(queue_pair->hazard());
    free_rested_keys();
    const std::lock_guard windows_lock(windows_lock_);
    for (MemoryWindow* window : windows_) {
      if (window->region != 0 && window->queue_pair == queue_pair->qp_num) unbind(*window);
    }
  }
  users--;
}

bool ProtectionDomain::gives_unshared() {
  const std::lock_guard lock(mutex_);
  return unshared_ > 0;
}

bool ProtectionDomain::out_of_reach(QueuePair* queue_pair) {
  const std::lock_guard lock(mutex_);
  out_of_reach_.push_back(queue_pair);
  return unshared_ == 0;
}

void ProtectionDomain::announce_all(QueuePair& queue_pair) {
  const std::lock_guard lock(mutex_);
  for (const auto& [generation, use] : segments_) queue_pair.announce(use.segment, use.number);
}

}  // namespace rdmakit::shm
