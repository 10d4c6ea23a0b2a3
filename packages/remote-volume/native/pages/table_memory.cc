#include "pages/table_memory.h"

#include <cerrno>

#include "base/mapped_memory.h"
#include "volume/limits.h"

namespace rdmakit::volume {

int TableMemory::open(const std::string& file, const Header& header, size_t bytes, bool sparse,
                      bool prefault) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  if (file.empty()) {
    if (const int error = private_.open(bytes, prefault); error != 0) return error;
    entries_ = private_.get();
    return 0;
  }
  const uint64_t beginning[] = {header.magic, header.pages};
  if (const int error = file_.open(file, beginning, kPage + bytes, sparse, fresh_); error != 0) return error;
  const auto* there = static_cast<const Header*>(file_.memory());
  if (there->magic != header.magic || there->pages != header.pages) return EINVAL;
  entries_ = static_cast<uint8_t*>(file_.memory()) + kPage;
  return prefault ? populate(entries_, bytes) : 0;
}

}  // namespace rdmakit::volume
