// How long a thread that waits spins before it sleeps: twice as long as waits have lately taken. When that is
// more than the bound, spinning would only heat the core, so it does not spin until waits are shorter again.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rdmakit {

class AdaptiveSpin {
 public:
  // In nanoseconds.
  struct Options {
    uint64_t bound;      // on one spin
    uint64_t longest;    // longer waits count as this one: an idle minute must not be remembered for long
    uint64_t initial;    // the average before the first wait
    uint64_t least = 0;  // beyond twice the average
  };
  explicit AdaptiveSpin(const Options& options) : options_(options), average_(options.initial) {}

  // A wait took `waited`, asleep or not.
  void observe(uint64_t waited) { average_ = (average_ * 7 + std::min(waited, options_.longest)) / 8; }
  uint64_t budget() const {
    return average_ > options_.bound ? 0 : std::min(average_ * 2 + options_.least, options_.bound);
  }
  uint64_t bound() const { return options_.bound; }

 private:
  Options options_;
  uint64_t average_;
};

}  // namespace rdmakit
