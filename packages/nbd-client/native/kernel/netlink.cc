#include "kernel/netlink.h"

#include <linux/nbd-netlink.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>

#include "engine/descriptor.h"
#include "engine/refuse.h"
#include "kernel/netlink_message.h"

namespace rdmakit::nbd {

namespace {

constexpr timeval kAnswerTime{10, 0};

struct Answer {
  int error = 0;
  std::string text;              // the kernel's own words, when it has some
  std::vector<uint8_t> payload;  // attributes of the last message that is no acknowledgement
};

class GenericNetlink {
 public:
  int open(std::string& why) {
    socket_.reset(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC));
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    if (!socket_ || bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      return refuse(why, errno, std::string("generic netlink: ") + strerror(errno));
    const int on = 1;
    setsockopt(socket_.get(), SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on);
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kAnswerTime, sizeof kAnswerTime);
    return 0;
  }

  // Sends, and reads until the acknowledgement.
  Answer ask(NetlinkMessage& message) {
    Answer answer;
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
  // True: the acknowledgement was in it.
  static bool read_datagram(std::span<const uint8_t> bytes, Answer& answer) {
    while (bytes.size() >= sizeof(nlmsghdr)) {
      nlmsghdr header;
      std::memcpy(&header, bytes.data(), sizeof header);
      if (header.nlmsg_len < NLMSG_HDRLEN || header.nlmsg_len > bytes.size()) break;
      const auto body = bytes.subspan(NLMSG_HDRLEN, header.nlmsg_len - NLMSG_HDRLEN);
      if (header.nlmsg_type == NLMSG_ERROR) {
        read_error(header, body, answer);
        return true;
      }
      if (body.size() >= GENL_HDRLEN) answer.payload.assign(body.begin() + GENL_HDRLEN, body.end());
      const size_t step = NLMSG_ALIGN(header.nlmsg_len);
      if (step >= bytes.size()) break;
      bytes = bytes.subspan(step);
    }
    return false;
  }

  static void read_error(const nlmsghdr& header, std::span<const uint8_t> body, Answer& answer) {
    nlmsgerr error;
    if (body.size() < sizeof error) {
      answer.error = EPROTO;
      return;
    }
    std::memcpy(&error, body.data(), sizeof error);
    answer.error = -error.error;
    if ((header.nlmsg_flags & NLM_F_ACK_TLVS) == 0) return;
    // The request is repeated in full unless it was capped.
    size_t skip = sizeof error;
    if ((header.nlmsg_flags & NLM_F_CAPPED) == 0) skip += NLMSG_ALIGN(error.msg.nlmsg_len) - sizeof error.msg;
    if (skip >= body.size()) return;
    for_each_attribute(body.subspan(skip), [&](int type, std::span<const uint8_t> content) {
      if (type == NLMSGERR_ATTR_MSG && !content.empty())
        answer.text.assign(reinterpret_cast<const char*>(content.data()), content.size() - 1);
    });
  }

  Descriptor socket_;
};

int explain(const Answer& answer, std::string& why) {
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
  const Answer answer = netlink.ask(message);
  if (answer.error == ENOENT) return refuse(why, ENOENT, "the kernel has no nbd driver: modprobe nbd");
  if (answer.error != 0) return explain(answer, why);
  family = 0;
  for_each_attribute(answer.payload, [&family](int type, std::span<const uint8_t> content) {
    if (type == CTRL_ATTR_FAMILY_ID) attribute_value(content, family);
  });
  if (family != 0) return 0;
  return refuse(why, EPROTO, "the kernel did not tell the nbd family's number");
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

}  // namespace

int kernel_connect(const KernelDevice& device, uint32_t& index, std::string& why) {
  GenericNetlink netlink;
  uint16_t family;
  if (const int error = open_family(netlink, family, why); error != 0) return error;
  NetlinkMessage message(family, NBD_CMD_CONNECT, NBD_GENL_VERSION);
  describe(device, message);
  const Answer answer = netlink.ask(message);
  if (answer.error != 0) return explain(answer, why);
  index = static_cast<uint32_t>(device.index);
  for_each_attribute(answer.payload, [&index](int type, std::span<const uint8_t> content) {
    if (type == NBD_ATTR_INDEX) attribute_value(content, index);
  });
  return 0;
}

int kernel_reconfigure(const KernelDevice& device, std::string& why) {
  GenericNetlink netlink;
  uint16_t family;
  if (const int error = open_family(netlink, family, why); error != 0) return error;
  NetlinkMessage message(family, NBD_CMD_RECONFIGURE, NBD_GENL_VERSION);
  describe(device, message);
  return explain(netlink.ask(message), why);
}

int kernel_disconnect(uint32_t index, std::string& why) {
  GenericNetlink netlink;
  uint16_t family;
  if (const int error = open_family(netlink, family, why); error != 0) return error;
  NetlinkMessage message(family, NBD_CMD_DISCONNECT, NBD_GENL_VERSION);
  message.add(NBD_ATTR_INDEX, index);
  return explain(netlink.ask(message), why);
}

int kernel_status(std::vector<KernelDeviceStatus>& devices, std::string& why) {
  GenericNetlink netlink;
  uint16_t family;
  if (const int error = open_family(netlink, family, why); error != 0) return error;
  NetlinkMessage message(family, NBD_CMD_STATUS, NBD_GENL_VERSION);
  const Answer answer = netlink.ask(message);
  if (answer.error != 0) return explain(answer, why);
  for_each_attribute(answer.payload, [&](int list, std::span<const uint8_t> items) {
    if (list != NBD_ATTR_DEVICE_LIST) return;
    for_each_attribute(items, [&](int, std::span<const uint8_t> item) {
      KernelDeviceStatus status{0, false};
      for_each_attribute(item, [&](int type, std::span<const uint8_t> content) {
        uint8_t connected = 0;
        if (type == NBD_DEVICE_INDEX) attribute_value(content, status.index);
        if (type == NBD_DEVICE_CONNECTED && attribute_value(content, connected))
          status.connected = connected != 0;
      });
      devices.push_back(status);
    });
  });
  return 0;
}

}  // namespace rdmakit::nbd
