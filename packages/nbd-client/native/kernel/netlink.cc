#include "kernel/netlink.h"

#include <linux/nbd-netlink.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>

#include "base/unique_fd.h"
#include "kernel/netlink_answer.h"
#include "kernel/netlink_message.h"
#include "system/error_reason.h"

namespace rdmakit::nbd {

using namespace volume;

namespace {

constexpr timeval kAnswerTime{10, 0};

class GenericNetlink {
 public:
  int open(std::string& why) {
    socket_.reset(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC));
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    if (!socket_ || bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      return with_reason(why, errno, std::string("generic netlink: ") + strerror(errno));
    const int on = 1;
    setsockopt(socket_.get(), SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on);
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kAnswerTime, sizeof kAnswerTime);
    return 0;
  }

  // Sends, and reads until the acknowledgement.
  NetlinkAnswer ask(NetlinkMessage& message) {
    NetlinkAnswer answer;
    const auto bytes = message.finish();
    if (send(socket_.get(), bytes.data(), bytes.size(), 0) < 0) {
      answer.error = errno;
      return answer;
    }
    alignas(nlmsghdr) uint8_t buffer[16384];
    for (;;) {
      const ssize_t received = recv(socket_.get(), buffer, sizeof buffer, 0);
      if (received < 0) {
        if (errno == EINTR) continue;
        answer.error = errno == EAGAIN ? ETIMEDOUT : errno;
        return answer;
      }
      if (read_datagram({buffer, static_cast<size_t>(received)}, answer)) return answer;
    }
  }

 private:
  UniqueFd socket_;
};

int explain(const NetlinkAnswer& answer, std::string& why) {
  if (answer.error == 0) return 0;
  switch (answer.error) {
    case EPERM:
    case EACCES:
      why = "the kernel's nbd device needs root (CAP_SYS_ADMIN)";
      break;
    case EBUSY:
      why = "the nbd device is in use";
      break;
    default:
      why = strerror(answer.error);
  }
  if (!answer.text.empty()) why += ": " + answer.text;
  return answer.error;
}

// Opens the socket and finds the family's number.
int open_family(GenericNetlink& netlink, uint16_t& family, std::string& why) {
  if (const int error = netlink.open(why); error != 0) return error;
  NetlinkMessage message(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1);
  message.add(CTRL_ATTR_FAMILY_NAME, std::string(NBD_GENL_FAMILY_NAME));
  const NetlinkAnswer answer = netlink.ask(message);
  if (answer.error == ENOENT) return with_reason(why, ENOENT, "the kernel has no nbd driver: modprobe nbd");
  if (answer.error != 0) return explain(answer, why);
  family = 0;
  for_each_attribute(answer.payload, [&family](int type, std::span<const uint8_t> content) {
    if (type == CTRL_ATTR_FAMILY_ID) attribute_value(content, family);
  });
  if (family != 0) return 0;
  return with_reason(why, EPROTO, "the kernel did not tell the nbd family's number");
}

void describe(const KernelDevice& device, NetlinkMessage& message) {
  if (device.index >= 0) message.add(NBD_ATTR_INDEX, static_cast<uint32_t>(device.index));
  message.add(NBD_ATTR_SIZE_BYTES, device.size);
  message.add(NBD_ATTR_BLOCK_SIZE_BYTES, device.block_size);
  message.add(NBD_ATTR_TIMEOUT, device.timeout);
  message.add(NBD_ATTR_SERVER_FLAGS, device.server_flags);
  message.add(NBD_ATTR_CLIENT_FLAGS, device.client_flags);
  message.add(NBD_ATTR_DEAD_CONN_TIMEOUT, device.dead_connection_timeout);
  if (!device.identifier.empty()) message.add(NBD_ATTR_BACKEND_IDENTIFIER, device.identifier);
  const size_t sockets = message.begin(NBD_ATTR_SOCKETS);
  for (const int fd : device.sockets) {
    const size_t item = message.begin(NBD_SOCK_ITEM);
    message.add(NBD_SOCK_FD, static_cast<uint32_t>(fd));
    message.end(item);
  }
  message.end(sockets);
}

// Gives the family a command. `fill` adds what it is about. 0 or an errno value with `why`.
template <typename Fill>
int ask_family(uint8_t command, Fill fill, NetlinkAnswer& answer, std::string& why) {
  GenericNetlink netlink;
  uint16_t family;
  if (const int error = open_family(netlink, family, why); error != 0) return error;
  NetlinkMessage message(family, command, NBD_GENL_VERSION);
  fill(message);
  answer = netlink.ask(message);
  return explain(answer, why);
}

}  // namespace

int kernel_connect(const KernelDevice& device, uint32_t& index, std::string& why) {
  NetlinkAnswer answer;
  const auto about = [&device](NetlinkMessage& message) { describe(device, message); };
  if (const int error = ask_family(NBD_CMD_CONNECT, about, answer, why); error != 0) return error;
  index = static_cast<uint32_t>(device.index);
  for_each_attribute(answer.payload, [&index](int type, std::span<const uint8_t> content) {
    if (type == NBD_ATTR_INDEX) attribute_value(content, index);
  });
  return 0;
}

int kernel_reconfigure(const KernelDevice& device, std::string& why) {
  NetlinkAnswer answer;
  const auto about = [&device](NetlinkMessage& message) { describe(device, message); };
  return ask_family(NBD_CMD_RECONFIGURE, about, answer, why);
}

int kernel_disconnect(uint32_t index, std::string& why) {
  NetlinkAnswer answer;
  const auto about = [index](NetlinkMessage& message) { message.add(NBD_ATTR_INDEX, index); };
  return ask_family(NBD_CMD_DISCONNECT, about, answer, why);
}

int kernel_status(std::vector<KernelDeviceStatus>& devices, std::string& why) {
  NetlinkAnswer answer;
  if (const int error = ask_family(
          NBD_CMD_STATUS, [](NetlinkMessage&) {}, answer, why);
      error != 0)
    return error;
  devices = devices_of(answer.payload);
  return 0;
}

}  // namespace rdmakit::nbd
