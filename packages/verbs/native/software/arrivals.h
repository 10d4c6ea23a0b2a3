// Peers that have reached a listener and are not accepted yet: connections without a complete request, and
// requests that wait for the application's answer. They are not trusted. Each has a time limit, and when the
// places are full the oldest makes room, wherever it comes from: a genuine peer has sent its request within a
// round trip, so no number of others keeps it out.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace rdmakit::software {

// The maximum share of the process's descriptors: authenticated peers get the others.
constexpr size_t kArrivalsShare = 8;
constexpr size_t kLeastArrivals = 16;
constexpr size_t kMostArrivals = 2048;

inline size_t arrivals_for(size_t descriptors) {
  return std::clamp(descriptors / kArrivalsShare, kLeastArrivals, kMostArrivals);
}

// RLIMIT_NOFILE of now.
inline size_t descriptor_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<size_t>(limit.rlim_cur) : kMostArrivals;
}

// `Connection` has bool arriving() (it is at one of these stages) and void give_way() (it ends, without a
// report). Both are called under the listener's lock, which is this one's too.
template <typename Connection>
class Arrivals {
 public:
  explicit Arrivals(size_t limit) : limit_(limit) {}

  void enter(std::shared_ptr<Connection> id) {
    if (places_.size() >= limit_) {
      std::erase_if(places_, [](const Place& each) { return !each.is_taken(); });
      if (places_.size() >= limit_) make_room();
    }
    std::weak_ptr<Connection> known = id;
    places_.push_back({std::move(id), std::move(known)});
  }

  // It has shown a whole request: the application may have it, which answers it or lets it go. Null when it
  // is not one that has nothing shown.
  std::shared_ptr<Connection> shown(const Connection& id) {
    const auto found = find(id);
    return found == places_.end() ? nullptr : std::exchange(found->silent, nullptr);
  }

  // It ends before it has shown anything.
  std::shared_ptr<Connection> leave(const Connection& id) {
    const auto found = find(id);
    if (found == places_.end()) return nullptr;
    std::shared_ptr<Connection> left = std::move(found->silent);
    places_.erase(found);
    return left;
  }

  // The oldest ends. False: there is none.
  bool make_room() {
    while (!places_.empty()) {
      const std::shared_ptr<Connection> oldest = places_.front().id.lock();
      places_.erase(places_.begin());
      if (oldest == nullptr || !oldest->arriving()) continue;
      oldest->give_way();
      return true;
    }
    return false;
  }

  // The listener closes: connections without a request go with it.
  std::vector<std::shared_ptr<Connection>> end() {
    std::vector<std::shared_ptr<Connection>> silent;
    for (Place& each : std::exchange(places_, {}))
      if (each.silent != nullptr) silent.push_back(std::move(each.silent));
    return silent;
  }

 private:
  struct Place {
    std::shared_ptr<Connection> silent;  // the listener's, until it has shown a request
    std::weak_ptr<Connection> id;

    bool is_taken() const {
      const std::shared_ptr<Connection> there = id.lock();
      return there != nullptr && there->arriving();
    }
  };

  typename std::vector<Place>::iterator find(const Connection& id) {
    return std::ranges::find_if(places_, [&](const Place& each) { return each.silent.get() == &id; });
  }

  size_t limit_;
  std::vector<Place> places_;  // the oldest first
};

}  // namespace rdmakit::software
