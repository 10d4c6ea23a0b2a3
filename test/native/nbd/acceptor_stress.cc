// The acceptor with hostile peers: handshakes that never end, floods, no free lane, and the socket file.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "negotiated_client.h"

namespace nbd_acceptor_stress {

using namespace fixture;

int dial_tcp(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Greets and asks to go. The type of the last answer.
uint32_t go(int fd) {
  Greeting greeting;
  if (!read_all(fd, &greeting, sizeof greeting)) return 0;
  Bytes bytes;
  append(bytes, Be32(3));
  const Bytes request = option(kOptGo, info_payload(""));
  bytes.insert(bytes.end(), request.begin(), request.end());
  if (!write_all(fd, bytes.data(), bytes.size())) return 0;
  for (;;) {
    OptionReply reply;
    if (!read_all(fd, &reply, sizeof reply)) return 0;
    Bytes payload(reply.length);
    if (!read_all(fd, payload.data(), payload.size())) return 0;
    if (reply.type != kRepInfo) return reply.type;
  }
}

// Greets, and asks what there is: the server has answered it something.
void list(int fd, bool greeted) {
  Greeting greeting;
  Bytes bytes;
  if (!greeted) CHECK(read_all(fd, &greeting, sizeof greeting));
  if (!greeted) append(bytes, Be32(3));
  const Bytes request = option(kOptList);
  bytes.insert(bytes.end(), request.begin(), request.end());
  CHECK(write_all(fd, bytes.data(), bytes.size()));
  for (uint32_t type = 0; type != kRepAck;) {
    OptionReply reply;
    CHECK(read_all(fd, &reply, sizeof reply));
    Bytes payload(reply.length);
    CHECK(read_all(fd, payload.data(), payload.size()));
    type = reply.type;
    CHECK(type == kRepServer || type == kRepAck);
  }
}

// Whatever it still says is not heard.
void await_end(int fd) {
  uint8_t bytes[256];
  while (recv(fd, bytes, sizeof bytes, 0) > 0) {
  }
}

// An acceptor on a Unix socket and on a TCP port, for one lane.
struct Served {
  const std::string path = fresh_path("/tmp/nbd_acceptor");
  NbdVolume volume;
  uint16_t port = 0;

  explicit Served(uint64_t handshake_timeout, uint64_t lane_wait, uint64_t idle = kNever)
      : volume(shape_of(handshake_timeout, lane_wait, idle)) {
    std::string why;
    std::string host;
    CHECK(volume.engine->bind_unix(path, why) == 0);
    CHECK(volume.engine->bind_tcp("127.0.0.1", 0, host, port, why) == 0 && port != 0);
    volume.engine->accept_clients();
  }
  // A client that gets the lane, whatever time it takes.
  int good() const {
    int fd = -1;
    await([&] {
      fd = dial_unix(path);
      const uint32_t answer = go(fd);
      if (answer != kRepAck) close(fd);
      return answer == kRepAck;
    });
    return fd;
  }

 private:
  static NbdShape shape_of(uint64_t handshake_timeout, uint64_t lane_wait, uint64_t idle) {
    NbdShape shape;
    shape.options.acceptor.handshake_timeout_ns = handshake_timeout;
    shape.options.acceptor.lane_wait_ns = lane_wait;
    shape.options.acceptor.max_handshakes = 20;
    shape.options.acceptor.idle_ns = idle;
    return shape;
  }
};

// Silent peers, one with half a header, occupy no lane, and are gone when their time is up.
void silent_peers() {
  Served served(1'000'000'000, kNever);
  const auto start = Clock::now();
  std::vector<int> silent;
  for (int i = 0; i < 10; i++) silent.push_back(dial_tcp(served.port));
  Greeting greeting;
  CHECK(read_all(silent[0], &greeting, sizeof greeting));
  Bytes half;
  append(half, Be32(3));
  const Bytes header = option(kOptGo);
  half.insert(half.end(), header.begin(), header.begin() + 9);
  CHECK(write_all(silent[0], half.data(), half.size()));
  {
    SocketClient client(served.good());
    Bytes page(4096, 5);
    CHECK(client.write(0, page.data(), 4096) == kOk);
  }
  for (const int fd : silent) {
    await_end(fd);
    close(fd);
  }
  CHECK(seconds_since(start) > 0.9);
  CHECK(served.volume.wait_for(Event::Type::handshake_refused).reason[0] != 0);
}

// No lane left: told so after the wait.
void no_lane() {
  constexpr uint64_t kLaneWait = 300'000'000;
  Served served(kNever, kLaneWait);
  const int first = served.good();
  const auto start = Clock::now();
  const int late = dial_tcp(served.port);
  CHECK(go(late) == kRepErrPolicy);
  // Nearly all of it: the acceptor goes by the time at which its present turn began.
  CHECK(seconds_since(start) > 0.2);
  close(late);
  close(first);
}

// A waiting client gets the lane when it becomes free.
void lane_becomes_free() {
  Served served(kNever, kNever);
  const int first = dial_tcp(served.port);
  CHECK(go(first) == kRepAck);
  std::thread leaver([&] {
    usleep(50'000);  // nothing tells that the other one waits
    close(first);
  });
  const int second = dial_tcp(served.port);
  CHECK(go(second) == kRepAck);
  leaver.join();
  close(second);
}

// In a flood the oldest make room: at most 20 are kept, and a good client gets in.
void flood() {
  Served served(kNever, kNever);
  const uint64_t before = served.volume.engine->acceptor().refused();
  std::vector<int> peers;
  for (int i = 0; i < 60; i++) peers.push_back(dial_unix(served.path));
  {
    const int fd = dial_unix(served.path);
    CHECK(go(fd) == kRepAck);
    close(fd);
  }
  CHECK(served.volume.engine->acceptor().refused() - before >= 41);
  for (int i = 0; i < 40; i++) await_end(peers[static_cast<size_t>(i)]);
  for (const int fd : peers) close(fd);
  // Peers that leave while they wait for a lane, or send noise.
  for (int i = 0; i < 20; i++) {
    const int fd = dial_unix(served.path);
    const Bytes noise(static_cast<size_t>(20 + i), static_cast<uint8_t>(i));
    write_all(fd, noise.data(), noise.size());
    close(fd);
  }
  close(served.good());
}

// When the process has no descriptor left, the oldest of those that say nothing makes room, too. Alone: the
// limit is the process's.
void no_descriptor() {
  Served served(kNever, kNever);
  std::vector<int> silent;
  Greeting greeting;
  for (int i = 0; i < 3; i++) {
    silent.push_back(dial_unix(served.path));
    CHECK(read_all(silent.back(), &greeting, sizeof greeting));
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int next = dup(fd);
  close(next);
  rlimit before{};
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit full{static_cast<rlim_t>(next), before.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &full) == 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  served.path.copy(address.sun_path, sizeof address.sun_path - 1);
  CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK(go(fd) == kRepAck);
  await_end(silent[0]);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  for (const int each : silent) close(each);
  close(fd);
}

// A client that has negotiated stays, however many come that have not; and when all have, a new one is
// refused.
void negotiated_stay() {
  Served served(kNever, kNever);
  std::vector<int> peers;
  for (int i = 0; i < 20; i++) {
    peers.push_back(dial_unix(served.path));
    list(peers.back(), false);
    std::vector<int> silent;
    if (i == 0)
      for (int j = 0; j < 60; j++) silent.push_back(dial_unix(served.path));
    for (const int fd : silent) close(fd);
    list(peers.front(), true);
  }
  const int late = dial_unix(served.path);
  await_end(late);
  close(late);
  for (const int fd : peers) list(fd, true);
  for (const int fd : peers) close(fd);
  close(served.good());
}

// A client that negotiates and then says nothing cannot keep others out for as long as a handshake may take:
// the one that has been silent for longest goes.
void negotiated_and_silent() {
  Served served(kNever, kNever, 1);
  std::vector<int> peers;
  for (int i = 0; i < 20; i++) {
    peers.push_back(dial_unix(served.path));
    list(peers.back(), false);
  }
  list(peers.front(), true);
  const int late = dial_unix(served.path);
  CHECK(go(late) == kRepAck);
  await_end(peers[1]);
  list(peers.front(), true);
  for (const int fd : peers) close(fd);
  close(late);
}

// The other end of a connection in this process.
int other_end(int fd) {
  sockaddr_in ours{};
  socklen_t length = sizeof ours;
  CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &length) == 0);
  for (int each = 0; each < 4096; each++) {
    sockaddr_in peer{};
    length = sizeof peer;
    if (each != fd && getpeername(each, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sin_family == AF_INET && peer.sin_port == ours.sin_port)
      return each;
  }
  return -1;
}

// A host that is gone without a word is noticed: the kernel asks after 10 s, not after two hours, and nothing
// that it was sent is repeated for longer than a client may let its answers lie. That the kernel keeps to it
// is not waited for.
void hosts_that_are_gone() {
  Served served(kNever, kNever);
  const int client = dial_tcp(served.port);
  CHECK(go(client) == kRepAck);
  const int server = other_end(client);
  CHECK(server >= 0);
  const auto value = [server](int level, int option) {
    int got = 0;
    socklen_t length = sizeof got;
    CHECK(getsockopt(server, level, option, &got, &length) == 0);
    return got;
  };
  CHECK(value(SOL_SOCKET, SO_KEEPALIVE) == 1);
  CHECK(value(IPPROTO_TCP, TCP_KEEPIDLE) == 10 && value(IPPROTO_TCP, TCP_KEEPINTVL) == 2);
  CHECK(value(IPPROTO_TCP, TCP_KEEPCNT) == 5 && value(IPPROTO_TCP, TCP_USER_TIMEOUT) == 30'000);
  close(client);
}

void socket_file() {
  Served served(kNever, kNever);
  const std::string& path = served.path;
  Engine& engine = *served.volume.engine;
  struct stat status;
  CHECK(stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);
  std::string why;
  std::string host;
  uint16_t port = served.port;
  CHECK(engine.bind_unix(path, why) == EADDRINUSE);
  const std::string file = path + ".file";
  std::fclose(std::fopen(file.c_str(), "w"));
  CHECK(engine.bind_unix(file, why) == EEXIST);
  unlink(file.c_str());
  CHECK(engine.bind_unix(std::string(200, 'x'), why) == EINVAL);
  CHECK(engine.bind_tcp("127.0.0.1", port, host, port, why) == EADDRINUSE);
  CHECK(engine.bind_tcp("not an address", 1, host, port, why) == EINVAL);
  CHECK(engine.close(kCloseTime) == 0);
  CHECK(stat(path.c_str(), &status) != 0);  // removed
  // A stale socket file is replaced.
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  CHECK(bind(stale, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  close(stale);
  NbdVolume next(NbdShape{});
  CHECK(next.engine->bind_unix(path, why) == 0);
  next.engine->accept_clients();
  const int again = dial_unix(path);
  CHECK(go(again) == kRepAck);
  close(again);
}

STRESS(nbd_acceptor) {
  side_by_side({
      {"silent peers", silent_peers},
      {"no lane is left", no_lane},
      {"a lane becomes free", lane_becomes_free},
      {"a flood", flood},
      {"who has negotiated stays", negotiated_stay},
      {"who has negotiated and is silent", negotiated_and_silent},
      {"hosts that are gone", hosts_that_are_gone},
      {"the socket file", socket_file},
  });
  timed("no descriptor is left", no_descriptor);
  std::printf("ok\n");
  return 0;
}

}  // namespace nbd_acceptor_stress
