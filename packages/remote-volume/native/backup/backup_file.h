// The file, or the block device, of a local backup. Its calls block: only the backup's thread makes them.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backup/backup_header.h"
#include "backup/backup_map.h"
#include "base/unique_fd.h"

namespace rdmakit::volume {

class BackupFile {
 public:
  // Makes a regular file (mode 0600) of `size` bytes and a header if there is none, and locks it. `sparse`:
  // reserves no space. Returns 0 or an errno value with `why`. EBUSY: in use; EINVAL: a file of another size,
  // a device that is too small, or something else; EPERM: a symbolic link that does not lead to a device, or
  // others have access to it (private_file.h); ENOSPC.
  int open(const std::string& path, uint64_t size, bool sparse, std::vector<std::string>& warnings,
           std::string& why);
  // Another process may have it now. Nothing may be written any more.
  void close() { fd_.reset(); }
  BackupIdentity identity() const { return identity_; }
  // It held nothing before.
  bool empty() const { return empty_; }
  // The stamp found in the file; none if it has no header, or a damaged one.
  const BackupStamp& stamp() const { return stamp_; }

  // Multiples of a page in offset, length and address. All of it: 0, or an errno value.
  int read(uint8_t* memory, size_t length, uint64_t offset) const;
  // The segments are whole pages; they are changed.
  int write(iovec* segments, int count, uint64_t offset) const;
  // Writes the header. ENOSPC: there is no room for one, and the file is as it was.
  int put_stamp(const BackupStamp& stamp);

 private:
  int check_safe(const std::string& path, std::string& why) const;
  int open_device(uint64_t size, std::string& why);
  int open_regular(const std::string& path, uint64_t present, bool sparse, std::vector<std::string>& warnings,
                   std::string& why);

  UniqueFd fd_;
  BackupIdentity identity_;
  BackupStamp stamp_;
  uint64_t size_ = 0;  // of the volume
  bool empty_ = false;
  bool device_ = false;
  bool has_room_ = false;  // for a header
};

}  // namespace rdmakit::volume
