// Gives a lane a client to serve: the end of a socket pair whose other end is the kernel's, a socket that
// another process has left, or the queues of a ublk device.
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "export/engine.h"
#include "export/whole_export.h"
#include "system/error_reason.h"

namespace rdmakit::nbd {

namespace {

// Buffer for a lane's answers in its end of the socket: a large READ at once. The kernel doubles both numbers
// (socket(7), SO_SNDBUF).
constexpr int kAnswerRoom = 4 << 20;
// Buffer for the kernel's requests in the other end: a few WRITEs of its size. With more room it sends pages
// as fast as it evicts them, in more and smaller requests, because it merges only requests that wait in its
// queue.
constexpr int kRequestRoom = 208 << 10;

// Root may pass the system's limit; others get what it allows.
void set_send_buffer(const UniqueFd& socket, int bytes) {
  if (setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

std::unique_ptr<NbdClient> client_of(const Volume& volume) {
  auto client = std::make_unique<NbdClient>();
  client->terms.exported = whole_export(volume);
  return client;
}

}  // namespace

int Engine::attach_socketpair(uint32_t lane, int& descriptor) {
  const std::lock_guard lock(control_);
  if (const int error = check_lane(lane); error != 0) return error;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  auto client = client_of(volume());
  client->socket = UniqueFd(pair[0]);
  UniqueFd theirs(pair[1]);
  set_send_buffer(client->socket, kAnswerRoom);
  set_send_buffer(theirs, kRequestRoom);
  if (!nbd_lane(lane).reserve()) return EBUSY;
  nbd_lane(lane).attach(std::move(client));
  descriptor = theirs.release();
  return 0;
}

int Engine::attach_socket(uint32_t lane, int descriptor, std::string& why) {
  int type = 0;
  socklen_t length = sizeof type;
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM)
    return with_reason(why, EINVAL, "it is not a stream socket");
  const std::lock_guard lock(control_);
  if (const int error = check_lane(lane); error != 0) return error;
  if (!nbd_lane(lane).reserve()) return with_reason(why, EBUSY, "the lane serves another connection");
  auto client = client_of(volume());
  client->socket = UniqueFd(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!client->socket) {
    nbd_lane(lane).give_up();
    return errno;
  }
  nbd_lane(lane).attach(std::move(client));
  return 0;
}

int Engine::attach_device(std::span<const uint32_t> lanes, int device, std::string& why) {
  const std::lock_guard lock(control_);
  if (closed_) return ESHUTDOWN;
  // The driver learns of the first queue when nothing can fail any more.
  std::vector<std::unique_ptr<NbdClient>> clients;
  for (const uint32_t lane : lanes) {
    if (lane >= lane_count()) return EINVAL;
    UniqueFd own(fcntl(device, F_DUPFD_CLOEXEC, 0));
    if (!own) return errno;
    int error = 0;
    auto client = client_of(volume());
    client->device = DeviceQueue::open(std::move(own), static_cast<uint16_t>(clients.size()), error, why);
    if (client->device == nullptr) return error;
    clients.push_back(std::move(client));
  }
  for (size_t i = 0; i < lanes.size(); i++) {
    if (nbd_lane(lanes[i]).reserve()) continue;
    while (i > 0) nbd_lane(lanes[--i]).give_up();
    return with_reason(why, EBUSY, "a lane serves another connection");
  }
  for (size_t i = 0; i < lanes.size(); i++) nbd_lane(lanes[i]).attach(std::move(clients[i]));
  return 0;
}

}  // namespace rdmakit::nbd
