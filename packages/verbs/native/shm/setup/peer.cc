#include "shm/setup/peer.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "shm/completion/eventfd_signal.h"

namespace rdmakit::shm {
namespace {

// Address space that one peer may take by announcing segments.
constexpr uint64_t kMostMapped = uint64_t{1} << 42;

// Where the wake-up is a write (signal_eventfd()), it must be to a descriptor whose writes do not block.
// Without /proc all that can be seen is that it is no file, pipe or socket; what else has no inode of its own
// refuses a write at once.
bool is_event_fd(int fd) {
  char path[32], target[32] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (readlink(path, target, sizeof target - 1) > 0) return std::strcmp(target, "anon_inode:[eventfd]") == 0;
  struct statfs filesystem;
  return errno == ENOENT && fstatfs(fd, &filesystem) == 0 && filesystem.f_type == ANON_INODE_FS_MAGIC;
}

}  // namespace

std::unique_ptr<Peer> Peer::open(const GreetingFrame& greeting, Frame& frame) {
  std::unique_ptr<Peer> peer(new Peer);
  peer->shape_ = {greeting.receive_entries, greeting.receive_sges, (greeting.flags & kGreetingStamps) != 0};
  errno = EPROTO;
  if (!peer->shape_.sane() || !frame.fds[0] || !frame.fds[1]) return nullptr;
  if (greeting.flags & ~kGreetingKnown) return nullptr;
  UniqueFd event_fd;
  if (greeting.flags & kGreetingEventFd) {
    event_fd = std::move(frame.fds[2]);
    if (!event_fd || !is_event_fd(event_fd.get())) return nullptr;
    prepare_eventfd_signals();
  }
  peer->area_ = SharedMapping::open(frame.fds[0].get(), peer->shape_.size(), Sharing::writable);
  if (peer->area_ == nullptr) return nullptr;
  peer->table_mapping_ =
      SharedMapping::open(frame.fds[1].get(), kMaxRegions * sizeof(RegionEntry), Sharing::read_only);
  if (peer->table_mapping_ == nullptr) return nullptr;
  uint8_t* area = peer->area_->data();
  peer->header_ = reinterpret_cast<AreaHeader*>(area);
  peer->slots_ = reinterpret_cast<Slot*>(area + peer->shape_.slots_at());
  peer->entries_ = area + peer->shape_.entries_at();
  peer->entry_stride_ = peer->shape_.entry_stride();
  peer->stamps_ = reinterpret_cast<std::atomic<uint64_t>*>(area + peer->shape_.stamps_at());
  peer->mask_ = peer->shape_.entries - 1;
  peer->table_ = reinterpret_cast<const RegionEntry*>(peer->table_mapping_->data());
  peer->event_fd_ = std::move(event_fd);
  peer->same_process_ = frame.pid == getpid();
  peer->pid_ = peer->same_process_ || frame.uid == geteuid() ? frame.pid : 0;
  peer->queue_pair_ = greeting.queue_pair;
  return peer;
}

// Hot path.
Peer::Reach Peer::find(uint32_t key, uint64_t address, uint64_t length, uint32_t wanted,
                       RemotePiece& piece) const {
  const RegionEntry& entry = table_[slot_of_key(key)];
  // The caller has made `key` its hazard: from here on the entry stays as it is, or the key is gone.
  if (key == 0 || entry.key.load(std::memory_order_seq_cst) != key) return Reach::refused;
  const uint64_t start = read_once(entry.address);
  const uint64_t size = read_once(entry.length);
  const uint32_t granted = read_once(entry.access);
  if ((granted & wanted) != wanted) [[unlikely]] {
    const bool window = (granted & kRegion) == 0 && read_once(entry.queue_pair) == queue_pair_;
    if (!window || ((granted | kRegion) & wanted) != wanted) return Reach::refused;
  }
  if (address + length < address || address < start || length > size || address - start > size - length) {
    return Reach::refused;
  }
  piece.address = address;
  piece.length = length;
  const uint32_t number = read_once(entry.segment);
  if (number == kNoSegment) [[unlikely]] {
    piece.mapped = same_process_ ? reinterpret_cast<uint8_t*>(address) : nullptr;
    return Reach::ok;
  }
  if (number >= segments_.size()) [[unlikely]]
    return Reach::not_mapped;
  const Mapped& segment = segments_[number];
  if (segment.data == nullptr || segment.generation != read_once(entry.generation)) [[unlikely]] {
    return Reach::not_mapped;
  }
  // The table is the peer's word; what we mapped is a fact.
  const uint64_t offset = address - read_once(entry.segment_address);
  if (offset > segment.size || length > segment.size - offset) [[unlikely]]
    return Reach::refused;
  piece.mapped = segment.data + offset;
  return Reach::ok;
}

bool Peer::has_window(uint32_t key) const {
  const RegionEntry& entry = table_[slot_of_key(key)];
  return key != 0 && entry.key.load(std::memory_order_seq_cst) == key &&
         (read_once(entry.access) & kRegion) == 0 && read_once(entry.queue_pair) == queue_pair_;
}
// End of hot path.

int Peer::add_segment(uint32_t number, uint32_t generation, std::shared_ptr<SharedMapping> mapping) {
  if (number >= kMaxSegments) return EPROTO;
  if (mapping->size() > kMostMapped - mapped_bytes_) return ENOMEM;
  if (number >= segments_.size()) segments_.resize(number + 1);
  if (segments_[number].data == nullptr) {
    if (mapped_ >= most_mappings_of_peer()) return ENOMEM;
    mapped_++;
  }
  mapped_bytes_ += mapping->size() - segments_[number].size;
  segments_[number] = {mapping->data(), mapping->size(), generation, std::move(mapping)};
  return 0;
}

void Peer::remove_segment(uint32_t number, uint32_t generation) {
  if (number >= segments_.size() || segments_[number].generation != generation) return;
  if (segments_[number].data == nullptr) return;
  mapped_--;
  mapped_bytes_ -= segments_[number].size;
  segments_[number] = {};
}

}  // namespace rdmakit::shm
