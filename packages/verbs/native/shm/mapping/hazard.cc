#include "shm/mapping/hazard.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "shm/memory/protection_domain.h"

namespace rdmakit::shm {

void Hazard::shown(std::shared_ptr<Link> link) {
  const std::lock_guard lock(mutex_);
  link_ = std::move(link);
}

bool Hazard::peer_over() const {
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(mutex_);
    link = link_;
  }
  return link != nullptr && link->peer_over();
}

bool Hazard::holds(uint32_t key, const ProtectionDomain& domain) const {
  const uint32_t held = word();
  if (held == 0) return false;
  return (held == key || !domain.is_live(held)) && !peer_over();
}

bool Hazard::wait(uint32_t key, const ProtectionDomain& domain, Clock::time_point deadline) {
  // A copy takes microseconds, as a rule; who takes longer is looked at less and less often.
  for (long pause = 20'000; holds(key, domain); pause = std::min(2 * pause, 5'000'000L)) {
    if (given_up() || Clock::now() > deadline) {
      give_up();
      return false;
    }
    const timespec time{0, pause};
    nanosleep(&time, nullptr);
  }
  return true;
}

}  // namespace rdmakit::shm
