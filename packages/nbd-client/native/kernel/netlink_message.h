// A generic netlink message under construction, and a look at one that came (netlink(7)).
#pragma once

#include <linux/genetlink.h>
#include <linux/netlink.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace rdmakit::nbd {

class NetlinkMessage {
 public:
  NetlinkMessage(uint16_t type, uint8_t command, uint8_t version) {
    nlmsghdr header{};
    header.nlmsg_type = type;
    header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
    header.nlmsg_seq = 1;
    append(&header, sizeof header);
    genlmsghdr generic{};
    generic.cmd = command;
    generic.version = version;
    append(&generic, sizeof generic);
  }

  void add(uint16_t type, const void* value, size_t length) {
    const nlattr attribute{static_cast<uint16_t>(NLA_HDRLEN + length), type};
    append(&attribute, sizeof attribute);
    append(value, length);
  }
  void add(uint16_t type, uint32_t value) { add(type, &value, sizeof value); }
  void add(uint16_t type, uint64_t value) { add(type, &value, sizeof value); }
  void add(uint16_t type, const std::string& text) { add(type, text.c_str(), text.size() + 1); }

  // begin() … end(begin()'s result): what lies between becomes the attribute's content.
  size_t begin(uint16_t type) {
    const size_t start = bytes_.size();
    const nlattr attribute{NLA_HDRLEN, static_cast<uint16_t>(type | NLA_F_NESTED)};
    append(&attribute, sizeof attribute);
    return start;
  }
  void end(size_t start) {
    const auto length = static_cast<uint16_t>(bytes_.size() - start);
    std::memcpy(bytes_.data() + start, &length, sizeof length);
  }

  std::span<const uint8_t> finish() {
    const auto length = static_cast<uint32_t>(bytes_.size());
    std::memcpy(bytes_.data(), &length, sizeof length);
    return bytes_;
  }

 private:
  void append(const void* value, size_t length) {
    const auto* from = static_cast<const uint8_t*>(value);
    bytes_.insert(bytes_.end(), from, from + length);
    bytes_.resize(NLA_ALIGN(bytes_.size()));
  }
  std::vector<uint8_t> bytes_;
};

// Calls visit(type, content) for each attribute; stops at the first malformed one.
template <typename Visit>
void for_each_attribute(std::span<const uint8_t> bytes, Visit visit) {
  while (bytes.size() >= NLA_HDRLEN) {
    nlattr attribute;
    std::memcpy(&attribute, bytes.data(), sizeof attribute);
    if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > bytes.size()) return;
    visit(attribute.nla_type & NLA_TYPE_MASK, bytes.subspan(NLA_HDRLEN, attribute.nla_len - NLA_HDRLEN));
    const size_t step = NLA_ALIGN(attribute.nla_len);
    if (step >= bytes.size()) return;
    bytes = bytes.subspan(step);
  }
}

template <typename Integer>
bool attribute_value(std::span<const uint8_t> content, Integer& value) {
  if (content.size() < sizeof value) return false;
  std::memcpy(&value, content.data(), sizeof value);
  return true;
}

}  // namespace rdmakit::nbd
