// The thesis's micro-benchmark: write integers one after another into an array, read them back,
// verify. Under a memory limit below the array's size every page travels to swap and back.
//
//   array-walk --bytes 256M [--json]
//
// Each integer is a function of its index, so a page that comes back stale, torn, or in another
// page's place is seen. Exits with 1 when a page was wrong.
#include <sys/mman.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace {

constexpr std::size_t pageSize = 4096;
constexpr std::size_t perPage = pageSize / sizeof(std::uint64_t);

// One multiplication by an odd number is a bijection, so no two elements are alike.
std::uint64_t valueAt(std::uint64_t index) { return (index + 1) * 0x9e3779b97f4a7c15U; }

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A byte count with an optional K, M or G; whole pages only. 0 if it is invalid.
std::size_t parseBytes(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::size_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const int shift = unit == "G" ? 30 : unit == "M" ? 20 : unit == "K" ? 10 : 0;
  if (error != std::errc() || (shift == 0 && !unit.empty()) || value > (SIZE_MAX >> shift)) return 0;
  value <<= shift;
  return value % pageSize == 0 ? value : 0;
}

struct Swapped {
  std::uint64_t out = 0;
  std::uint64_t in = 0;
};

Swapped swapped() {
  Swapped count;
  std::ifstream vmstat("/proc/vmstat");
  std::string name;
  std::uint64_t value = 0;
  while (vmstat >> name >> value) {
    if (name == "pswpout") count.out = value;
    if (name == "pswpin") count.in = value;
  }
  return count;
}

void fill(std::span<std::uint64_t> array) {
  for (std::size_t i = 0; i < array.size(); i++) array[i] = valueAt(i);
}

std::size_t wrongPages(std::span<const std::uint64_t> array) {
  std::size_t wrong = 0;
  for (std::size_t page = 0; page < array.size(); page += perPage) {
    std::uint64_t difference = 0;
    for (std::size_t i = page; i < page + perPage; i++) difference |= array[i] ^ valueAt(i);
    if (difference != 0) wrong++;
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t bytes = 0;
  bool json = false;
  for (int i = 1; i < argc; i++) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--bytes" && i + 1 < argc) {
      bytes = parseBytes(argv[++i]);
    } else {
      bytes = 0;
      break;
    }
  }
  if (bytes == 0) {
    std::fprintf(stderr, "usage: array-walk --bytes N[K|M|G] [--json]    (whole pages of 4096)\n");
    return 2;
  }

  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "array-walk: mmap %zu bytes: %s\n", bytes, std::strerror(errno));
    return 2;
  }
  // Page by page, as the thesis counts: a huge page would move 512 of them as one.
  madvise(memory, bytes, MADV_NOHUGEPAGE);
  const std::span array(static_cast<std::uint64_t*>(memory), bytes / sizeof(std::uint64_t));

  const Swapped before = swapped();
  const double start = seconds();
  fill(array);
  const double written = seconds();
  const std::size_t wrong = wrongPages(array);
  const double done = seconds();
  const Swapped after = swapped();

  const std::size_t pages = bytes / pageSize;
  const unsigned long long out = after.out - before.out;
  const unsigned long long in = after.in - before.in;
  if (json) {
    std::printf(
        "{\"bytes\":%zu,\"pages\":%zu,\"writeSeconds\":%.3f,\"readSeconds\":%.3f,\"seconds\":%.3f,"
        "\"pagesOut\":%llu,\"pagesIn\":%llu,\"wrongPages\":%zu}\n",
        bytes, pages, written - start, done - written, done - start, out, in, wrong);
  } else {
    std::printf("%zu pages written in %.2f s and read back in %.2f s, %llu out, %llu in, %zu wrong\n", pages,
                written - start, done - written, out, in, wrong);
  }
  return wrong == 0 ? 0 : 1;
}
