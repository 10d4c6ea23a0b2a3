// The common part of the native shm tests: checks, connected pairs of queue pairs, and a process for the
// other end.
#pragma once

#include <fcntl.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../connected.h"

namespace fixture {

inline Provider& provider() { return shm_provider(); }
inline ibv_context* context() { return provider().open_device("shm0"); }

inline sockaddr_un place(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CHECK(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}
inline const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// An unused path in the temporary folder.
inline std::string fresh_path() {
  static std::atomic<int> next{0};
  return "/tmp/rdmakit-shm-" + std::to_string(getpid()) + "-" + std::to_string(next++);
}

struct Listener : Id {
  std::string path;
  explicit Listener(std::string where = fresh_path()) : path(std::move(where)) {
    const sockaddr_un address = place(path);
    CHECK(id->listen(generic(address), sizeof address, 128) == 0);
  }
  sockaddr_un address() const { return place(path); }
};

inline constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

enum class Kind { shared, plain };

// Registered memory: the provider's own, or the heap's.
struct Memory {
  uint8_t* data;
  size_t size;
  Kind kind;
  ibv_mr* mr;

  Memory(ibv_pd* pd, size_t bytes, int access = kAllAccess, Kind wanted = Kind::shared)
      : size(bytes), kind(wanted) {
    data = static_cast<uint8_t*>(kind == Kind::shared ? provider().map_memory(std::max<size_t>(bytes, 1), {})
                                                      : std::calloc(std::max<size_t>(bytes, 1), 1));
    CHECK(data != nullptr);
    mr = provider().reg_mr(pd, data, bytes, access);
    CHECK(mr != nullptr);
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    deregister();
    if (kind == Kind::shared) {
      provider().unmap_memory(data, size, {});
    } else {
      std::free(data);
    }
  }
  void deregister() {
    if (mr != nullptr) CHECK(provider().dereg_mr(std::exchange(mr, nullptr)) == 0);
  }
  void fill(uint64_t seed) { fill_noise(data, size, seed); }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(data) + offset; }
  ibv_sge sge(size_t offset, size_t length) const {
    return {address(offset), static_cast<uint32_t>(length), mr->lkey};
  }
};

inline std::unique_ptr<End> resolve(const std::string& path, const Options& options) {
  Id connecting;
  const sockaddr_un address = place(path);
  CHECK(connecting.id->resolve(generic(address), sizeof address, kHangMs) == 0);
  connecting.events->expect(CmEvent::Type::route_resolved);
  CHECK(connecting.id->context() == context());
  return std::make_unique<End>(std::move(connecting), options);
}

inline void connect(End& end, const std::vector<uint8_t>& greeting = {}) {
  ConnectParameters parameters;
  parameters.qp = end.qp;
  parameters.private_data = greeting;
  CHECK(end.id.id->connect(parameters) == 0);
}
inline void accept(End& end, const std::vector<uint8_t>& greeting = {}) {
  ConnectParameters parameters;
  parameters.qp = end.qp;
  parameters.private_data = greeting;
  CHECK(end.id.id->accept(parameters) == 0);
}

// Two ends in this process, connected over a listener.
struct Pair {
  std::unique_ptr<End> client, server;

  Pair(Listener& listener, const Options& client_options, const Options& server_options,
       const std::vector<uint8_t>& greeting = {}) {
    client = resolve(listener.path, client_options);
    connect(*client, greeting);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    CHECK(request.private_data == greeting);
    server = std::make_unique<End>(Id(std::move(request.request)), server_options);
    accept(*server, greeting);
    CHECK(client->id.events->expect(CmEvent::Type::established).private_data == greeting);
    server->id.events->expect(CmEvent::Type::established);
  }
};

}  // namespace fixture
