// The iwarp provider with manual progress: the kernel does not watch a socket (epoll_ctl(2): ENOSPC beyond
// max_user_watches, ENOMEM). Its queue pair would never hear of data, so its connection fails; the others
// stay.
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../raw_peer.h"

namespace {
std::atomic<bool> refusing{false};
std::atomic<int> of_thread{-1};  // the progress thread's set, where listeners are first
}  // namespace

// In place of the library's: while it is refusing, only the progress thread's set gets sockets.
extern "C" int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
  int type = 0;
  socklen_t length = sizeof type;
  const bool socket = ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
  if (socket && operation == EPOLL_CTL_ADD) {
    int none = -1;
    of_thread.compare_exchange_strong(none, set);
    if (refusing && set != of_thread) {
      errno = ENOSPC;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_epoll_ctl, set, operation, fd, event));
}

using namespace fixture;

namespace {

// What the application of a responder is told of its connection.
CmEvent accept(const Options& options) {
  Listener listener;
  RawPeer peer(listener);
  peer.send(build_mpa(enhanced_request()));
  CmEvent event = listener.events->expect(CmEvent::Type::connect_request);
  End end(Id(std::move(event.request)), options);
  ConnectParameters parameters;
  parameters.qp = end.qp;
  CHECK(end.id.id->accept(parameters) == 0);
  peer.receive_frame();
  peer.send_fpdu(tagged(Opcode::write, 0, 0, {}));
  return end.id.events->next();
}

void fails(const Options& options) {
  refusing = true;
  const CmEvent event = accept(options);
  refusing = false;
  CHECK(event.type == CmEvent::Type::connect_failed && event.status == ENOSPC);
}

void channel() {
  CHECK(accept({.channel = true}).type == CmEvent::Type::established);
  fails({.channel = true});
}

// Four are tried one by one, the fifth wants them all watched.
void many() {
  ibv_cq* cq = provider().create_cq(context(), 64, nullptr, nullptr, Progress::manual);
  {
    Listener listener;
    std::vector<std::unique_ptr<Pair>> pairs;
    const auto add = [&] { pairs.push_back(std::make_unique<Pair>(listener, Options{}, Options{.cq = cq})); };
    for (int i = 0; i < 4; i++) add();
    fails({.cq = cq});
    for (int round = 0; round < 2; round++) {
      for (const auto& pair : pairs) {
        post_receive(*pair->server, 1, {});
        post(*pair->client, {.wr_id = 2}, {});
        pump(*pair->client, 1, *pair->server, 1);
      }
      if (round == 0) add();
    }
  }
  CHECK(provider().destroy_cq(cq) == 0);
}

}  // namespace

int main() {
  timed("channel", channel);
  timed("many", many);
  std::puts("ok");
}
