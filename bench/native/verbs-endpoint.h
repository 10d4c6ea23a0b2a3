// The common part of the native benchmarks of verbs: a URI, and one end of a connection of any provider.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// Another checkout (--against) may have it in its old place.
#if __has_include("provider/provider.h")
#include "provider/provider.h"
#else
#include "provider.h"
#endif

namespace bench {

// Prints `what` and errno, and ends the process: a benchmark has nothing to save.
[[noreturn]] void fail(const std::string& what, int error = 0);
inline void must(int error, const char* what) {
  if (error != 0) fail(what, error);
}

// rdma://HOST:PORT, iwarp://HOST:PORT, shm://PATH
struct Uri {
  explicit Uri(const std::string& text);
  rdmakit::Provider* provider;
  sockaddr_storage address{};
  socklen_t length = 0;
  // With the port that the provider chose.
  std::string with(const sockaddr_storage& bound) const;

 private:
  std::string scheme_;
  std::string rest_;
};

// A connection id whose events can be waited for.
class Id {
 public:
  explicit Id(std::shared_ptr<rdmakit::ConnectionId> made);
  Id(Id&&) = default;
  ~Id();
  rdmakit::ConnectionId* operator->() const { return id_.get(); }

  // The next event if there is one.
  bool next(rdmakit::CmEvent& event);
  // The next event, which must be of this type, within 20 s.
  rdmakit::CmEvent expect(rdmakit::CmEvent::Type type);

 private:
  struct Events {
    std::mutex mutex;
    std::condition_variable arrived;
    std::deque<rdmakit::CmEvent> queue;
  };
  std::shared_ptr<rdmakit::ConnectionId> id_;
  std::shared_ptr<Events> events_ = std::make_shared<Events>();
};

Id listen(const Uri& uri);
Id resolve(const Uri& uri);

// The shared objects of one context's endpoints.
struct Queue {
  Queue(rdmakit::Provider& provider, ibv_context* context, int entries, rdmakit::Progress progress,
        bool with_channel = false);
  Queue(const Queue&) = delete;
  ~Queue();
  rdmakit::Provider& provider;
  ibv_pd* pd;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq;
};

// A queue pair of a resolved or accepted id, not yet connected.
struct Endpoint {
  Endpoint(Queue& queue, Id made, uint32_t depth, uint32_t inline_data);
  Endpoint(const Endpoint&) = delete;
  ~Endpoint();
  void connect(const std::vector<uint8_t>& greeting);
  void accept(const std::vector<uint8_t>& greeting);

  Queue& queue;
  Id id;
  ibv_qp* qp;
  uint32_t inline_data;  // granted
};

// Registered memory of map_memory.
struct Memory {
  Memory(Queue& queue, size_t bytes);
  Memory(const Memory&) = delete;
  ~Memory();
  Queue& queue;
  size_t bytes;
  uint8_t* data;
  ibv_mr* mr;
};

// A struct of plain numbers as private data, and back.
template <typename Numbers>
std::vector<uint8_t> told(const Numbers& numbers) {
  const auto* first = reinterpret_cast<const uint8_t*>(&numbers);
  return {first, first + sizeof numbers};
}
template <typename Numbers>
Numbers heard(const std::vector<uint8_t>& bytes) {
  Numbers numbers{};
  // InfiniBand pads private data with zeros.
  if (bytes.size() < sizeof numbers) fail("the other side speaks of something else");
  __builtin_memcpy(&numbers, bytes.data(), sizeof numbers);
  return numbers;
}

}  // namespace bench
