#include "backup/backup_header.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace rdmakit::volume {

namespace {

constexpr uint64_t kBackupHeaderMagic = 0x3166'7075'6b63'6162;  // "backupf1"

struct BackupHeader {
  uint64_t magic;
  uint64_t pages;
  BackupStamp stamp;
  uint32_t checksum;  // of the bytes before
};

constexpr size_t kChecked = offsetof(BackupHeader, checksum);
static_assert(kChecked == 32);

}  // namespace

BackupStamp next_stamp(const BackupStamp& last, uint64_t random) {
  if (last.file == 0) return {random == 0 ? 1 : random, 1};
  return {last.file, last.generation + 1};
}

void write_header(uint8_t* page, uint64_t pages, const BackupStamp& stamp) {
  BackupHeader header{kBackupHeaderMagic, pages, stamp, 0};
  std::memset(page, 0, kPage);
  std::memcpy(page, &header, kChecked);
  header.checksum = crc32c(page, kChecked);
  std::memcpy(page + kChecked, &header.checksum, sizeof header.checksum);
}

BackupStamp read_header(const uint8_t* page, uint64_t pages) {
  BackupHeader header;
  std::memcpy(&header, page, sizeof header);
  const bool right = header.magic == kBackupHeaderMagic && header.pages == pages &&
                     header.checksum == crc32c(page, kChecked) && header.stamp.file != 0;
  return right ? header.stamp : BackupStamp{};
}

bool may_be_header(const uint8_t* page) {
  uint64_t magic;
  std::memcpy(&magic, page, sizeof magic);
  return magic == kBackupHeaderMagic ||
         std::all_of(page, page + kPage, [](uint8_t byte) { return byte == 0; });
}

}  // namespace rdmakit::volume
