#include "compression/page_codec.h"

#include <cstring>

namespace rdmakit::volume {

namespace {
constexpr int kAcceleration = 1;

const char* chars(const uint8_t* bytes) { return reinterpret_cast<const char*>(bytes); }
char* chars(uint8_t* bytes) { return reinterpret_cast<char*>(bytes); }
}  // namespace

PageCodec::PageCodec(Volume& volume, LaneStatistics& statistics)
    : volume_(volume), statistics_(statistics), lz4_(volume.lz4()), meter_(volume.compression()) {
  statistics_.compressing.set(meter_.compresses());
  if (lz4_ == nullptr) return;
  scratch_ = std::make_unique<uint8_t[]>(kPage);
  before_ = std::make_unique<Before[]>(kOperations * kMostPages);
  if (volume.compression() == Compression::off) return;
  const auto bytes = static_cast<size_t>(lz4_->size_of_state());
  state_ = std::make_unique<uint64_t[]>((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
}

// ---- hot path begins: no allocation, no log, no lock, no system call ----

// Pages that stay as they are go together. The packed one after them is packed again when its turn comes,
// which is rare: pages of one kind come in crowds.
PageCodec::Fold PageCodec::try_fold(const uint8_t* memory, uint64_t pages) {
  for (uint64_t i = 0; i < pages; i++) {
    const int packed = lz4_->compress(state_.get(), chars(memory + i * kPage), chars(scratch_.get()), kPage,
                                      kMaxPacked, kAcceleration);
    if (packed > 0) return i == 0 ? Fold{1, static_cast<uint16_t>(packed)} : Fold{i, kRaw};
  }
  return {pages, kRaw};
}

void PageCodec::note(Operation& write, uint16_t packed) {
  write.packed = packed;
  if (marks_lost(write)) return volume_.checksums().mark_lost(write.first_page(), write.page_count());
  for (uint64_t i = 0; lz4_ != nullptr && i < write.page_count(); i++) {
    const uint64_t page = write.first_page() + i;
    before(write)[i] = {volume_.lengths().get(page), volume_.checksums().noted(page)};
  }
  volume_.checksums().note(write.offset, write.length, write.memory);
  volume_.lengths().set(write.first_page(), write.page_count(), packed);
}

// For pages that are stored raw, the old bytes are as good as the new ones, which may have arrived. The
// contents of a slot with a packed page depend on its length and checksum: restore those of the old page,
// because the new one was never acknowledged.
void PageCodec::forget(const Operation& write) {
  if (lz4_ == nullptr) return volume_.checksums().forget(write.first_page(), write.page_count());
  for (uint64_t i = 0; i < write.page_count(); i++) {
    const uint64_t page = write.first_page() + i;
    const auto [length, checksum] = before(write)[i];
    if (length == kRaw && volume_.lengths().get(page) == kRaw) {
      volume_.checksums().forget(page, 1);
    } else {
      volume_.lengths().set(page, 1, length);
      volume_.checksums().restore(page, checksum);
    }
  }
}

void PageCodec::pack(const Operation& write) {
  const uint32_t spared = write.length - write.wire_length();
  if (spared > 0) {
    std::memcpy(write.memory, scratch_.get(), write.packed);
    statistics_.pages_packed.add();
  }
  meter_.wrote(static_cast<uint32_t>(write.page_count()), spared);
}

bool PageCodec::unpack(Operation& read) {
  if (read.packed != kRaw && !unpack(read.memory, read.packed)) return false;
  return volume_.checksums().right(read.offset, read.length, read.memory);
}

bool PageCodec::unpack(uint8_t* memory, uint16_t packed) {
  if (packed == kRaw) return true;
  std::memcpy(scratch_.get(), memory, packed);
  return unpack_to(scratch_.get(), packed, memory);
}

bool PageCodec::unpack_to(const uint8_t* packed, uint16_t bytes, uint8_t* page) const {
  return lz4_->decompress(chars(packed), chars(page), bytes, kPage) == static_cast<int>(kPage);
}

bool PageCodec::right_slot(uint64_t page, const uint8_t* slot) {
  const uint16_t packed = volume_.lengths().get(page);
  if (packed == kRaw) return volume_.checksums().right(page, slot);
  return unpack_to(slot, packed, scratch_.get()) && volume_.checksums().right(page, scratch_.get());
}

bool PageCodec::right_slots(const Operation& read) {
  if (lz4_ == nullptr) return volume_.checksums().right(read.offset, read.length, read.memory);
  for (uint64_t i = 0; i < read.page_count(); i++) {
    if (!right_slot(read.first_page() + i, read.memory + i * kPage)) return false;
  }
  return true;
}

void PageCodec::unpack_slots(const Operation& read) {
  if (lz4_ == nullptr) return;
  for (uint64_t i = 0; i < read.page_count(); i++)
    unpack(read.memory + i * kPage, volume_.lengths().get(read.first_page() + i));
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
