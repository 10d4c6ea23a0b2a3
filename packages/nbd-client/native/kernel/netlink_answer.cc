#include "kernel/netlink_answer.h"

#include <linux/nbd-netlink.h>

#include <cerrno>

#include "kernel/netlink_message.h"

namespace rdmakit::nbd {

namespace {

void read_error(const nlmsghdr& header, std::span<const uint8_t> body, NetlinkAnswer& answer) {
  nlmsgerr error;
  answer.error = EPROTO;
  if (body.size() < sizeof error) return;
  std::memcpy(&error, body.data(), sizeof error);
  // Anything else is no error number, and would not end a request well either.
  if (error.error <= 0 && error.error >= -4095) answer.error = -error.error;
  if ((header.nlmsg_flags & NLM_F_ACK_TLVS) == 0) return;
  // The request is repeated in full unless it was capped.
  size_t skip = sizeof error;
  if ((header.nlmsg_flags & NLM_F_CAPPED) == 0 && error.msg.nlmsg_len > sizeof error.msg)
    skip += (size_t{error.msg.nlmsg_len} + 3) / 4 * 4 - sizeof error.msg;
  if (skip >= body.size()) return;
  for_each_attribute(body.subspan(skip), [&](int type, std::span<const uint8_t> content) {
    if (type == NLMSGERR_ATTR_MSG && !content.empty())
      answer.text.assign(reinterpret_cast<const char*>(content.data()), content.size() - 1);
  });
}

}  // namespace

bool read_datagram(std::span<const uint8_t> bytes, NetlinkAnswer& answer) {
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

std::vector<KernelDeviceStatus> devices_of(std::span<const uint8_t> payload) {
  std::vector<KernelDeviceStatus> devices;
  for_each_attribute(payload, [&](int list, std::span<const uint8_t> items) {
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
  return devices;
}

}  // namespace rdmakit::nbd
