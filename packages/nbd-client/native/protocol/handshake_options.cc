// The options: what each may hold and what it is answered.
#include <algorithm>
#include <cstring>

#include "protocol/handshake.h"

namespace rdmakit::nbd {

bool Handshake::exports(std::string_view name) const { return name.empty() || name == description_.name; }

// NBD_OPT_EXPORT_NAME: the payload is the name. There is no error reply, so a bad one closes.
void Handshake::on_export_name() {
  if (option_length_ > kMaxString) return close("export name too long");
  if (!exports({reinterpret_cast<const char*>(input_.data()), option_length_}))
    return close("unknown export name");
  phase_ = Phase::wants_lane;
}

void Handshake::answer_export_name() {
  ExportNameReply reply{};
  reply.size = description_.exported.size;
  reply.transmission_flags = description_.exported.flags;
  put(&reply, no_zeroes_ ? sizeof reply - sizeof reply.zeroes : sizeof reply);
}

// NBD_OPT_ABORT: acknowledged whatever its payload, then the end.
void Handshake::on_abort() {
  reply(kRepAck);
  close("aborted by the client");
}

// NBD_OPT_LIST: one NBD_REP_SERVER with the name and, after it, the description.
void Handshake::on_list() {
  if (option_length_ != 0) {
    reply_error(kRepErrInvalid, "LIST takes no payload");
    return expect_option();
  }
  std::array<uint8_t, sizeof(Be32) + 2 * kMaxString> payload;
  const Be32 name_length(static_cast<uint32_t>(description_.name.size()));
  uint8_t* end = payload.data();
  const auto append = [&end](const void* bytes, size_t length) {
    std::memcpy(end, bytes, length);
    end += length;
  };
  append(&name_length, sizeof name_length);
  append(description_.name.data(), description_.name.size());
  append(description_.description.data(), description_.description.size());
  reply(kRepServer, {payload.data(), end});
  reply(kRepAck);
  expect_option();
}

// NBD_OPT_INFO and NBD_OPT_GO: name length, name, number of information requests, the requests.
// Every length is compared with what is left before it is used, and all of it must be used up.
void Handshake::on_info_or_go() {
  const uint8_t* position = input_.data();
  size_t left = option_length_;
  const auto malformed = [this] {
    reply_error(kRepErrInvalid, "malformed option");
    expect_option();
  };

  Be32 name_length;
  if (left < sizeof name_length) return malformed();
  std::memcpy(&name_length, position, sizeof name_length);
  position += sizeof name_length;
  left -= sizeof name_length;
  if (name_length > left) return malformed();
  if (name_length > kMaxString) {
    reply_error(kRepErrTooBig, "export name too long");
    return expect_option();
  }
  const std::string_view name(reinterpret_cast<const char*>(position), name_length);
  position += name.size();
  left -= name.size();

  Be16 requests;
  if (left < sizeof requests) return malformed();
  std::memcpy(&requests, position, sizeof requests);
  position += sizeof requests;
  left -= sizeof requests;
  if (left != requests * sizeof(Be16)) return malformed();

  infos_ = 1u << kInfoExport;
  for (; left > 0; position += sizeof(Be16), left -= sizeof(Be16)) {
    Be16 type;
    std::memcpy(&type, position, sizeof type);
    // What we do not know we may leave out; what is asked twice we tell once.
    if (type <= kInfoBlockSize) infos_ |= 1u << type;
  }

  if (!exports(name)) {
    reply_error(kRepErrUnknown, "unknown export name");
    return expect_option();
  }
  if (option_ == kOptGo) {
    phase_ = Phase::wants_lane;
    return;
  }
  answer_info();
  expect_option();
}

void Handshake::answer_info() {
  InfoExport size;
  size.type = kInfoExport;
  size.size = description_.exported.size;
  size.transmission_flags = description_.exported.flags;
  reply(kRepInfo, {reinterpret_cast<uint8_t*>(&size), sizeof size});
  if ((infos_ & 1u << kInfoName) != 0) reply_string(kInfoName, description_.name);
  if ((infos_ & 1u << kInfoDescription) != 0) reply_string(kInfoDescription, description_.description);
  // Told unasked too: a client that knows better sizes than it asked for may use them.
  InfoBlockSize blocks;
  blocks.type = kInfoBlockSize;
  blocks.minimum = 1;
  blocks.preferred = description_.preferred_block_size;
  blocks.maximum = kMaxPayload;
  reply(kRepInfo, {reinterpret_cast<uint8_t*>(&blocks), sizeof blocks});
  reply(kRepAck);
}

void Handshake::reply_string(InfoType type, std::string_view text) {
  std::array<uint8_t, sizeof(Be16) + kMaxString> payload;
  const Be16 wire_type(type);
  std::memcpy(payload.data(), &wire_type, sizeof wire_type);
  std::memcpy(payload.data() + sizeof wire_type, text.data(), text.size());
  reply(kRepInfo, {payload.data(), sizeof wire_type + text.size()});
}

void Handshake::grant() {
  if (phase_ != Phase::wants_lane) return;
  if (option_ == kOptGo) {
    answer_info();
  } else {
    answer_export_name();
  }
  phase_ = Phase::transmission;
}

void Handshake::refuse(OptionReplyType type, const char* reason) {
  if (phase_ != Phase::wants_lane) return;
  if (option_ != kOptGo) return close(reason);
  reply_error(type, reason);
  phase_ = Phase::negotiating;
  expect_option();
}

}  // namespace rdmakit::nbd
