// The header of a backup file, in one page behind the volume's pages: which file it is, and how many
// processes have begun to write to it. The map has the same values. If they differ, because another volume
// has used the file or an older copy has replaced it, the contents of the file do not count.
//
//   offset  bytes  field
//        0      8  "backupf1"
//        8      8  pages of the volume
//       16      8  file: drawn when a map begins
//       24      8  generation: one more for each process, from 1 on
//       32      4  CRC32C of the bytes before
//       36         zeros
//
// Files of versions without a header end with the volume's last page.
#pragma once

#include <cstdint>

#include "volume/limits.h"

namespace rdmakit::volume {

struct BackupStamp {
  uint64_t file = 0;  // 0: none
  uint64_t generation = 0;
  bool operator==(const BackupStamp&) const = default;
};

// The one that follows; `random` names the file when it has no name.
BackupStamp next_stamp(const BackupStamp& last, uint64_t random);

// `page` has kPage bytes.
void write_header(uint8_t* page, uint64_t pages, const BackupStamp& stamp);
// None when the page is no header, is damaged, or is of a volume of another size.
BackupStamp read_header(const uint8_t* page, uint64_t pages);
// Whether a file may have ended up with this page behind its volume's: a header of whatever volume, or one
// that was never written.
bool may_be_header(const uint8_t* page);

}  // namespace rdmakit::volume
