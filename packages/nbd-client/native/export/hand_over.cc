// A connection goes on in another process: its lane reads no further request, ends in the middle of none,
// answers what it has, and gives the socket away. What the client sends meanwhile stays in the socket.
//
// A queue of a ublk device cannot be given away: its lane rests. When its thread has ended the driver asks
// what was not answered again, of the next thread that fetches.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "export/engine.h"
#include "export/whole_export.h"
#include "system/error_reason.h"

namespace rdmakit::nbd {

using namespace volume;

int Engine::attach_socket(uint32_t lane, int descriptor, std::string& why) {
  int type = 0;
  socklen_t length = sizeof type;
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM)
    return refuse(why, EINVAL, "it is not a stream socket");
  const std::lock_guard lock(control_);
  if (lane >= lane_count()) return EINVAL;
  if (closed_) return ESHUTDOWN;
  if (!lanes_[lane]->reserve()) return refuse(why, EBUSY, "the lane serves another connection");
  UniqueFd own(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!own) {
    lanes_[lane]->give_up();
    return errno;
  }
  Terms terms;
  terms.exported = whole_export(volume_);
  lanes_[lane]->attach(own.release(), terms);
  return 0;
}

int Engine::yield_lane(uint32_t lane) {
  const std::lock_guard lock(control_);
  if (lane >= lane_count()) return EINVAL;
  if (closed_) return ESHUTDOWN;
  return lanes_[lane]->yield();
}

int Lane::command(Command::Type type, uint32_t server) {
  {
    const std::lock_guard lock(producers_);
    if (!commands_.push({type, -1, server, 0, nullptr, nullptr, {}})) return EAGAIN;
  }
  wake();
  return 0;
}

int Engine::resume_lane(uint32_t lane) {
  const std::lock_guard lock(control_);
  if (lane >= lane_count()) return EINVAL;
  if (closed_) return ESHUTDOWN;
  return lanes_[lane]->resume();
}

int Lane::yield() { return command(Command::Type::yield); }

int Lane::resume() { return command(Command::Type::resume); }

// Called when there is nothing to wait for: the connection is at the end of an answered request, or gone.
void Lane::hand_over() {
  yielding_ = false;
  int descriptor = -1;
  if (connection_.is_open() && !connection_.of_device()) {
    descriptor = connection_.part();
    volume_.connection_closed();
    state_.store(State::draining, std::memory_order_release);
  }
  tell_yielded(descriptor);
}

// Control yields a lane again only when it has heard of this.
void Lane::tell_yielded(int descriptor) {
  if (yielded_.push(descriptor))
    wake_control_();
  else if (descriptor >= 0)
    close(descriptor);
}

void Connection::yield() { yielding_ = true; }

void Connection::resume() { yielding_ = false; }

int Connection::part() {
  open_ = false;
  yielding_ = false;
  ahead_.stop([](Operation&) {});  // a quiet connection has no READ that waits
  reason_ = "handed over";
  linger_deadline_ = input_deadline_ = output_deadline_ = 0;
  return socket_.release();
}

}  // namespace rdmakit::nbd
