// Connections that end where it is awkward: a client that leaves with a lane that it has not come to use, and
// a server whose READ fails when the client has been told that all is well.
#include <sys/time.h>

#include "negotiated_client.h"

namespace nbd_leaving_stress {

using namespace fixture;

// A volume whose only lane is served on a Unix socket.
struct Served {
  const std::string path = fresh_path("/tmp/nbd_leaving");
  NbdVolume volume;

  explicit Served(const NbdShape& shape) : volume(shape) {
    std::string why;
    CHECK(volume.engine->bind_unix(path, why) == 0);
    volume.engine->accept_clients();
  }
};

// Clients that ask for the lane and are gone when they could have it: the lane is given back each time.
void gone_before_the_lane() {
  NbdShape shape;
  shape.options.acceptor.lane_wait_ns = kNever;
  shape.options.acceptor.handshake_timeout_ns = kNever;
  Served served(shape);
  Bytes bytes;
  append(bytes, Be32(kHandshakeFixedNewstyle | kHandshakeNoZeroes));
  const Bytes request = option(kOptGo, info_payload(""));
  bytes.insert(bytes.end(), request.begin(), request.end());
  for (int i = 0; i < effort(30); i++) {
    const int fd = dial_unix(served.path);
    Greeting greeting;
    CHECK(read_all(fd, &greeting, sizeof greeting));
    CHECK(write_all(fd, bytes.data(), bytes.size()));
    close(fd);
  }
  NegotiatedClient client(served.path, false);
  CHECK(client.write(0, Bytes(4096, 5)) == kOk);
}

// A simple reply has said that its data follow. When they cannot, only the end of the connection tells.
void fails_after_its_reply() {
  NbdShape shape;
  shape.servers = 1;
  Served served(shape);
  const auto length = static_cast<uint32_t>(shape.size);
  {
    NegotiatedClient writer(served.path, false);
    for (uint64_t at = 0; at < length; at += 8 << 20) CHECK(writer.write(at, Bytes(8 << 20, 5)) == kOk);
  }
  NegotiatedClient client(served.path, false);
  // A wait without success is a hang.
  const timeval longest{kHang.count(), 0};
  CHECK(setsockopt(client.fd(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest) == 0);
  client.post(kCmdRead, 0, length);
  SimpleReply reply;
  CHECK(read_all(client.fd(), &reply, sizeof reply));
  CHECK(reply.error == kOk);
  // The socket holds a part of 32 MiB and the lane another one: most of it has not been asked for yet.
  served.volume.servers[0]->set_mode(Server::Mode::dead);
  Bytes piece(1 << 16);
  size_t got = 0;
  ssize_t bytes;
  while ((bytes = recv(client.fd(), piece.data(), piece.size(), 0)) > 0) {
    CHECK(is_filled(piece.data(), static_cast<size_t>(bytes), 5), "after %zu bytes", got);
    got += static_cast<size_t>(bytes);
  }
  CHECK(bytes == 0 || errno == ECONNRESET);
  CHECK(got < length);
  CHECK(std::string(served.volume.wait_for(Event::Type::connection_closed).reason.data()) != "");
}

STRESS(nbd_leaving) {
  timed("gone before the lane", gone_before_the_lane);
  timed("fails after its reply", fails_after_its_reply);
  return 0;
}

}  // namespace nbd_leaving_stress
