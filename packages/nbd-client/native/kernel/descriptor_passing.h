// Open files that go from one process to another over a socket of their own (SCM_RIGHTS, unix(7)).
#pragma once

#include <cstddef>
#include <vector>

namespace rdmakit::nbd {

// The maximum of one message (SCM_MAX_FD).
constexpr size_t kMaxPassedDescriptors = 253;

// Both ends of such a socket. 0 or an errno value.
int descriptor_channel(int (&ends)[2]);
// One message that carries them all; they stay the caller's, too. 0 or an errno value: EAGAIN there is no
// room.
int send_descriptors(int channel, const std::vector<int>& descriptors);
// Those of the next message, closed at exec. 0 or an errno value: EAGAIN there is none, EBADMSG it is not one
// of these, EPIPE the other end is closed.
int receive_descriptors(int channel, std::vector<int>& descriptors);

}  // namespace rdmakit::nbd
