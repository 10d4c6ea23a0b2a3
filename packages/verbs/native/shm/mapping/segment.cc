#include "shm/mapping/segment.h"

#include <cerrno>

namespace rdmakit::shm {

Segments& Segments::instance() {
  static Segments* segments = std::make_unique<Segments>().release();
  return *segments;
}

void* Segments::map(size_t length, const MemoryOptions& options) {
  if (options.huge_pages == HugePages::size_2m || options.huge_pages == HugePages::size_1g) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (length == 0 || more_than_machine_has(length)) {
    errno = length == 0 ? EINVAL : ENOMEM;
    return nullptr;
  }
  auto segment = std::make_shared<Segment>();
  length = round_up_to_page(length);
  segment->mapping = SharedMapping::create("rdmakit-segment", length, Sharing::writable, segment->fd);
  if (segment->mapping == nullptr) return nullptr;
  uint8_t* data = segment->mapping->data();
  MemoryOptions shared = options;
  shared.shared = true;
  if (const int error = prepare_memory(data, length, shared); error != 0) {
    errno = error;
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  segment->generation = next_generation_++;
  by_address_.emplace(segment->address(), segment);
  return data;
}

void Segments::unmap(void* address) {
  std::shared_ptr<Segment> gone;  // unmapped after the lock is released
  const std::lock_guard lock(mutex_);
  const auto found = by_address_.find(reinterpret_cast<uint64_t>(address));
  if (found == by_address_.end()) return;
  gone = std::move(found->second);
  by_address_.erase(found);
}

std::shared_ptr<Segment> Segments::find(uint64_t address, uint64_t length) {
  const std::lock_guard lock(mutex_);
  auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return nullptr;
  const std::shared_ptr<Segment>& segment = std::prev(after)->second;
  const uint64_t offset = address - segment->address();
  return offset <= segment->length() && length <= segment->length() - offset ? segment : nullptr;
}

}  // namespace rdmakit::shm
