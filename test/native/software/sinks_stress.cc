// The sink of a connection id: one that was replaced has returned, and is not called any more.
#include <netinet/in.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "../stress.h"
#include "provider/provider.h"

namespace software_sinks_stress {

using namespace fixture;
using namespace rdmakit;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

Address address_of(const Provider& provider) {
  Address out;
  if (std::strcmp(provider.name(), "shm") == 0) {
    auto* path = reinterpret_cast<sockaddr_un*>(&out.storage);
    path->sun_family = AF_UNIX;
    std::strcpy(path->sun_path, "/nowhere");
    out.length = sizeof *path;
  } else {
    auto* host = reinterpret_cast<sockaddr_in*>(&out.storage);
    host->sin_family = AF_INET;
    host->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    out.length = sizeof *host;
  }
  return out;
}

// An id with `sink`, of which an event is on its way to it.
std::shared_ptr<ConnectionId> told(Provider& provider, ConnectionId::Sink sink) {
  std::shared_ptr<ConnectionId> id = provider.create_id();
  CHECK(id != nullptr);
  id->set_sink(std::move(sink));
  const Address to = address_of(provider);
  CHECK(id->resolve(reinterpret_cast<const sockaddr*>(&to.storage), to.length, 1000) == 0);
  return id;
}

// What it uses may go as soon as set_sink has returned: a function of JavaScript's, for instance.
void replaced_while_it_runs(Provider& provider) {
  std::atomic<bool> inside{false}, replaced{false};
  const auto id = told(provider, [&](CmEvent&&) {
    inside = true;
    // That set_sink waits is no event. It has this long to return too early.
    const auto until = Clock::now() + std::chrono::milliseconds(100);
    while (!replaced && Clock::now() < until) std::this_thread::yield();
    CHECK(!replaced, "%s: it was replaced while it ran", provider.name());
    inside = false;
  });
  await([&] { return inside.load(); });
  id->set_sink([](CmEvent&&) { CHECK(false); });
  CHECK(!inside, "%s: it runs, and was replaced", provider.name());
  replaced = true;
  id->close();
}

// It may replace itself, without waiting for its own end.
void replaced_by_itself(Provider& provider) {
  std::atomic<bool> done{false};
  std::shared_ptr<ConnectionId> id = provider.create_id();
  id->set_sink([&](CmEvent&&) {
    id->set_sink([](CmEvent&&) {});
    done = true;
  });
  const Address to = address_of(provider);
  CHECK(id->resolve(reinterpret_cast<const sockaddr*>(&to.storage), to.length, 1000) == 0);
  await([&] { return done.load(); });
  id->close();
}

STRESS(software_sinks) {
  for (Provider* provider : {&iwarp_provider(), &shm_provider()}) {
    timed(provider->name(), [&] {
      replaced_while_it_runs(*provider);
      replaced_by_itself(*provider);
    });
  }
  std::puts("ok");
  return 0;
}

}  // namespace software_sinks_stress
