// Messages of a service to the process that started it (sd_notify(3)), by system calls: Node.js has no
// datagram sockets of the Unix family, and a helper program would be a fork of a process whose memory devices
// know.
#pragma once

#include <string>

namespace rdmakit {

// Sends `state`, lines of NAME=VALUE, to the socket NOTIFY_SOCKET names, and a barrier behind it: the
// descriptor `read`, the caller's, comes to its end once the manager has read both (sd_notify_barrier(3)). 0
// or an errno value; EAGAIN: its queue is full now.
int notify_service_manager(const std::string& socket, const std::string& state, int& read);

}  // namespace rdmakit
