// A program that never stops swapping, and knows what each of its pages must hold. Under a memory limit
// below its size most steps bring a page in and send another out.
//
//   page-churn --bytes N[K|M]      until SIGTERM, then verifies every page once more
//
// Each step verifies a page drawn at random and writes its next version into it, so a page that comes back
// stale, torn, or in another page's place is seen. Prints a line "stall SECONDS" for each step above 1 s, a
// line "steps N" each second that it goes on, and at the end one line of JSON. Exits with 1 when a page was
// wrong.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string_view>

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kWords = kPage / sizeof(uint64_t);
constexpr double kStall = 1;

volatile std::sig_atomic_t over = 0;

// One multiplication by an odd number is a bijection, so no two words of a version are alike.
uint64_t value_at(uint64_t page, uint32_t version, uint64_t word) {
  return ((page * kWords + word + 1) ^ (uint64_t{version} << 40)) * 0x9e3779b97f4a7c15U;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

size_t parse_bytes(std::string_view text) {
  const char* const end = text.data() + text.size();
  size_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const int shift = unit == "M" ? 20 : unit == "K" ? 10 : 0;
  if (error != std::errc() || (shift == 0 && !unit.empty()) || value > (SIZE_MAX >> shift)) return 0;
  value <<= shift;
  return value % kPage == 0 ? value : 0;
}

// Anonymous memory in pages of 4096: a huge page would move 512 of them as one.
void* allocate(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "page-churn: mmap %zu bytes: %s\n", bytes, std::strerror(errno));
    std::exit(2);
  }
  madvise(memory, bytes, MADV_NOHUGEPAGE);
  return memory;
}

class Churn {
 public:
  explicit Churn(size_t bytes)
      : pages_(bytes / kPage),
        words_(static_cast<uint64_t*>(allocate(bytes))),
        versions_(static_cast<uint32_t*>(allocate(pages_ * sizeof(uint32_t)))) {
    // The program that checks the pages must not be swapped itself.
    if (mlock(versions_, pages_ * sizeof(uint32_t)) != 0) std::perror("page-churn: mlock");
  }

  void step(uint64_t page) {
    const double start = seconds();
    verify(page);
    std::span<uint64_t> words(words_ + page * kWords, kWords);
    const uint32_t version = ++versions_[page];
    for (uint64_t word = 0; word < kWords; word++) words[word] = value_at(page, version, word);
    steps_++;
    const double end = seconds();
    note(end - start);
    if (end < told_ + 1) return;
    told_ = end;
    std::printf("steps %llu\n", static_cast<unsigned long long>(steps_));
  }

  void sweep() {
    for (uint64_t page = 0; page < pages_; page++) {
      const double start = seconds();
      verify(page);
      note(seconds() - start);
    }
  }

  uint64_t pages() const { return pages_; }

  // The number of wrong pages.
  uint64_t report() const {
    std::printf("{\"pages\":%llu,\"steps\":%llu,\"wrongPages\":%llu,\"longestStall\":%.3f}\n",
                static_cast<unsigned long long>(pages_), static_cast<unsigned long long>(steps_),
                static_cast<unsigned long long>(wrong_), longest_);
    return wrong_;
  }

 private:
  void verify(uint64_t page) {
    const uint32_t version = versions_[page];
    const uint64_t* const words = words_ + page * kWords;
    for (uint64_t word = 0; word < kWords; word++) {
      const uint64_t wanted = version == 0 ? 0 : value_at(page, version, word);
      if (words[word] == wanted) continue;
      wrong_++;
      std::printf("wrong page %llu, word %llu: %016llx, not %016llx of version %u\n",
                  static_cast<unsigned long long>(page), static_cast<unsigned long long>(word),
                  static_cast<unsigned long long>(words[word]), static_cast<unsigned long long>(wanted),
                  version);
      return;
    }
  }

  void note(double took) {
    longest_ = std::max(longest_, took);
    if (took > kStall) std::printf("stall %.3f\n", took);
  }

  const uint64_t pages_;
  uint64_t* const words_;
  uint32_t* const versions_;
  uint64_t steps_ = 0;
  uint64_t wrong_ = 0;
  double longest_ = 0;
  double told_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = argc == 3 && std::string_view(argv[1]) == "--bytes" ? parse_bytes(argv[2]) : 0;
  if (bytes == 0) {
    std::fprintf(stderr, "usage: page-churn --bytes N[K|M]    (whole pages of 4096)\n");
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  std::signal(SIGTERM, [](int) { over = 1; });
  Churn churn(bytes);
  for (uint64_t page = 0; page < churn.pages() && !over; page++) churn.step(page);
  std::printf("churning %llu pages\n", static_cast<unsigned long long>(churn.pages()));
  std::mt19937_64 random(1);
  while (!over) churn.step(random() % churn.pages());
  churn.sweep();
  return churn.report() == 0 ? 0 : 1;
}
