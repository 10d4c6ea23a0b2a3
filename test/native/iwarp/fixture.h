// The common part of the native iwarp tests: checks, and connected pairs of queue pairs.
#pragma once

#include <netinet/in.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../connected.h"

namespace fixture {

inline Provider& provider() { return iwarp_provider(); }
inline ibv_context* context() { return provider().open_device("iwarp0"); }

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

struct Listener : Id {
  Listener() {
    const sockaddr_in any = loopback(0);
    CHECK(id->listen(reinterpret_cast<const sockaddr*>(&any), sizeof any, 128) == 0);
  }
  sockaddr_in address() const {
    const sockaddr_storage local = id->local_address();
    sockaddr_in address;
    std::memcpy(&address, &local, sizeof address);
    return address;
  }
};

// Registered memory.
struct Memory {
  std::vector<uint8_t> bytes;
  ibv_mr* mr;

  Memory(ibv_pd* pd, size_t size,
         int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
      : bytes(size), mr(provider().reg_mr(pd, bytes.data(), size, access)) {
    CHECK(mr != nullptr);
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    if (mr != nullptr) CHECK(provider().dereg_mr(mr) == 0);
  }
  void fill(uint64_t seed) { fill_noise(bytes.data(), bytes.size(), seed); }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(bytes.data()) + offset; }
  ibv_sge sge(size_t offset, size_t length) const {
    return {address(offset), static_cast<uint32_t>(length), mr->lkey};
  }
};

// Two ends, connected over a listener.
struct Pair {
  std::unique_ptr<End> client, server;

  Pair(Listener& listener, const Options& client_options, const Options& server_options,
       const std::vector<uint8_t>& greeting = {}) {
    Id connecting;
    const sockaddr_in address = listener.address();
    CHECK(connecting.id->resolve(reinterpret_cast<const sockaddr*>(&address), sizeof address, kHangMs) == 0);
    connecting.events->expect(CmEvent::Type::route_resolved);
    CHECK(connecting.id->context() == context());
    client = std::make_unique<End>(std::move(connecting), client_options);
    ConnectParameters parameters;
    parameters.qp = client->qp;
    parameters.private_data = greeting;
    parameters.responder_resources = parameters.initiator_depth = client_options.reads;
    CHECK(client->id.id->connect(parameters) == 0);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    CHECK(request.private_data == greeting);
    server = std::make_unique<End>(Id(std::move(request.request)), server_options);
    ConnectParameters answer;
    answer.qp = server->qp;
    answer.private_data = greeting;
    answer.responder_resources = answer.initiator_depth = server_options.reads;
    CHECK(server->id.id->accept(answer) == 0);
    CHECK(client->id.events->expect(CmEvent::Type::established).private_data == greeting);
    server->id.events->expect(CmEvent::Type::established);
  }
};

}  // namespace fixture
