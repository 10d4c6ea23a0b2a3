// The acceptor with hostile peers: handshakes that never end, floods, no free lane, and the socket file.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

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

// Whatever it still says is not heard.
void await_end(int fd) {
  uint8_t bytes[256];
  while (recv(fd, bytes, sizeof bytes, 0) > 0) {
  }
}

void acceptor() {
  constexpr uint64_t kLaneWait = 1'000'000'000;
  const std::string path = "/tmp/nbd_acceptor." + std::to_string(getpid());
  Shape shape;
  shape.lanes = 1;
  shape.options.acceptor.handshake_timeout_ns = 2'500'000'000;
  shape.options.acceptor.lane_wait_ns = kLaneWait;
  shape.options.acceptor.max_handshakes = 20;
  TestVolume volume(shape);
  std::string why;
  std::string host;
  uint16_t port = 0;
  CHECK(volume.engine->listen_unix(path, why) == 0);
  CHECK(volume.engine->listen_tcp("127.0.0.1", 0, host, port, why) == 0 && port != 0);
  struct stat status;
  CHECK(stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);

  // Silent peers, one with half a header, occupy no lane, and are gone when their time is up.
  std::vector<int> silent;
  for (int i = 0; i < 10; i++) silent.push_back(dial_tcp(port));
  Greeting greeting;
  CHECK(read_all(silent[0], &greeting, sizeof greeting));
  Bytes half;
  append(half, Be32(3));
  const Bytes header = option(kOptGo);
  half.insert(half.end(), header.begin(), header.begin() + 9);
  CHECK(write_all(silent[0], half.data(), half.size()));
  {
    const int fd = dial_unix(path);
    CHECK(go(fd) == kRepAck);
    Client client(fd);
    Bytes page(4096, 5);
    CHECK(client.write(0, page.data(), 4096) == kOk);
    // No lane left: told so after the wait, and the session goes on.
    const auto start = memory_device::now();
    const int late = dial_tcp(port);
    CHECK(go(late) == kRepErrPolicy);
    CHECK(memory_device::now() - start >= kLaneWait);
    close(late);
  }
  for (const int fd : silent) {
    await_end(fd);
    close(fd);
  }
  CHECK(volume.wait_for(Event::Type::handshake_refused).reason[0] != 0);

  // Somebody who waits gets the lane when it becomes free.
  {
    const int first = dial_tcp(port);
    CHECK(go(first) == kRepAck);
    std::thread leaver([&] {
      usleep(50'000);
      close(first);
    });
    const int second = dial_tcp(port);
    CHECK(go(second) == kRepAck);
    leaver.join();
    close(second);
  }
  // In a flood the oldest make room: at most 20 are kept, and a good client gets in at once.
  const uint64_t before = volume.engine->acceptor().refused();
  std::vector<int> flood;
  for (int i = 0; i < 60; i++) flood.push_back(dial_unix(path));
  {
    const int fd = dial_unix(path);
    CHECK(go(fd) == kRepAck);
    close(fd);
  }
  CHECK(volume.engine->acceptor().refused() - before >= 41);
  for (int i = 0; i < 40; i++) await_end(flood[static_cast<size_t>(i)]);
  for (const int fd : flood) close(fd);
  usleep(50'000);
  // Peers that leave while they wait for a lane, or send noise.
  for (int i = 0; i < 20; i++) {
    const int fd = dial_unix(path);
    const Bytes noise(static_cast<size_t>(20 + i), static_cast<uint8_t>(i));
    write_all(fd, noise.data(), noise.size());
    close(fd);
  }
  int fd = -1;
  uint32_t answer = 0;
  for (int i = 0; i < 50 && answer != kRepAck; i++) {
    fd = dial_unix(path);
    answer = go(fd);
    if (answer != kRepAck) close(fd);
  }
  CHECK(answer == kRepAck);
  close(fd);

  // The socket file.
  CHECK(volume.engine->listen_unix(path, why) == EADDRINUSE);
  const std::string file = path + ".file";
  std::fclose(std::fopen(file.c_str(), "w"));
  CHECK(volume.engine->listen_unix(file, why) == EEXIST);
  unlink(file.c_str());
  CHECK(volume.engine->listen_unix(std::string(200, 'x'), why) == EINVAL);
  CHECK(volume.engine->listen_tcp("127.0.0.1", port, host, port, why) == EADDRINUSE);
  CHECK(volume.engine->listen_tcp("not an address", 1, host, port, why) == EINVAL);
  CHECK(volume.engine->close(1'000'000'000) == 0);
  CHECK(stat(path.c_str(), &status) != 0);  // removed
  // A stale socket file is replaced.
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  CHECK(bind(stale, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  close(stale);
  TestVolume next(Shape{});
  CHECK(next.engine->listen_unix(path, why) == 0);
  const int again = dial_unix(path);
  CHECK(go(again) == kRepAck);
  close(again);
}

STRESS(nbd_acceptor) {
  acceptor();
  std::printf("ok\n");
  return 0;
}

}  // namespace nbd_acceptor_stress
