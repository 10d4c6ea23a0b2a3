// Memory that is populated before it is needed (base/mapped_memory.h): from any address, with unchanged
// contents, and with an error if there is not enough. 0.1 s.
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "../stress.h"
#include "base/mapped_memory.h"
#include "base/unique_fd.h"

namespace software_populate_stress {

using namespace rdmakit;

// How many pages from `address` on have memory (mincore(2)).
size_t present(void* address, size_t pages) {
  std::vector<unsigned char> there(pages);
  CHECK(mincore(address, pages * system_page(), there.data()) == 0, "mincore");
  size_t count = 0;
  for (const unsigned char page : there) count += page & 1;
  return count;
}

char* map(size_t length, int fd) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);
  CHECK(memory != MAP_FAILED, "mmap");
  madvise(memory, length, MADV_NOHUGEPAGE);
  return static_cast<char*>(memory);
}

// Where a page has 64 KiB, what lies behind a header of 4096 bytes begins within one.
void from_within_a_page() {
  const size_t page = system_page();
  char* const memory = map(8 * page, -1);
  memory[2 * page] = 7;
  CHECK(present(memory, 8) == 1, "nothing else is there before");
  CHECK(populate(memory + page + 512, 3 * page) == 0, "populate");
  CHECK(present(memory + page, 4) == 4, "each page that was asked for in part is there");
  CHECK(present(memory, 1) == 0 && present(memory + 5 * page, 3) == 0, "and no other");
  CHECK(memory[2 * page] == 7, "what was there stays");
  munmap(memory, 8 * page);
}

// A file on a full file system: a write to it later would be SIGBUS. One that is too short is the same to the
// kernel.
void tells_of_what_is_not_to_be_had() {
  const size_t page = system_page();
  const UniqueFd file(memfd_create("short", MFD_CLOEXEC));
  CHECK(ftruncate(file.get(), static_cast<off_t>(page)) == 0, "ftruncate");
  char* const memory = map(2 * page, file.get());
  CHECK(populate(memory, page) == 0, "the first page is there");
  CHECK(populate(memory, 2 * page) == ENOMEM, "the second is not");
  munmap(memory, 2 * page);
}

STRESS(software_populate) {
  from_within_a_page();
  tells_of_what_is_not_to_be_had();
  std::puts("ok");
  return 0;
}

}  // namespace software_populate_stress
