// The options: the valid contents and the answer of each.
#include <algorithm>
#include <cstring>

#include "protocol/handshake.h"

namespace rdmakit::nbd {

const ExportDescription* Handshake::find(std::string_view name) const {
  const auto found = std::find_if(offer_.exports.begin(), offer_.exports.end(),
                                  [name](const ExportDescription& each) { return each.name == name; });
  if (found != offer_.exports.end()) return &*found;
  return name.empty() ? &offer_.exports.front() : nullptr;
}

uint16_t Handshake::flags_of(const ExportDescription& description) const {
  const uint16_t df = structured_ ? kFlagSendDf : 0;
  return static_cast<uint16_t>((description.exported.flags | df) & ~offer_.withheld_flags);
}

bool Handshake::takes_no_payload() {
  if (option_length_ == 0) return true;
  refuse_option(kRepErrInvalid, "the option takes no payload");
  return false;
}

// NBD_OPT_EXPORT_NAME: the payload is the name. There is no error reply, so a bad one closes.
void Handshake::on_export_name() {
  if (option_length_ > kMaxString) return close("export name too long");
  chosen_ = find({reinterpret_cast<const char*>(input_.data()), option_length_});
  if (chosen_ == nullptr) return close("unknown export name");
  want_lane();
}

void Handshake::want_lane() {
  negotiated_ = true;
  phase_ = Phase::wants_lane;
}

void Handshake::answer_export_name() {
  ExportNameReply reply{};
  reply.size = chosen_->exported.size;
  reply.transmission_flags = flags_of(*chosen_);
  put(&reply, no_zeroes_ ? sizeof reply - sizeof reply.zeroes : sizeof reply);
}

// NBD_OPT_ABORT: acknowledged whatever its payload, then the end.
void Handshake::on_abort() {
  reply(kRepAck);
  close("aborted by the client");
}

// NBD_OPT_LIST: one NBD_REP_SERVER with the name and, after it, the description, for each export.
void Handshake::on_list() {
  if (!takes_no_payload()) return;
  lists_ = true;
  listing_ = 0;
  list_next();
}

// The next one when the last one is sent, so that one fits always.
void Handshake::list_next() {
  if (listing_ == offer_.exports.size()) {
    lists_ = false;
    reply(kRepAck);
    return expect_option();
  }
  const ExportDescription& each = offer_.exports[listing_++];
  std::array<uint8_t, sizeof(Be32) + 2 * kMaxString> payload;
  const Be32 name_length(static_cast<uint32_t>(each.name.size()));
  uint8_t* end = payload.data();
  const auto append = [&end](const void* bytes, size_t length) {
    std::memcpy(end, bytes, length);
    end += length;
  };
  append(&name_length, sizeof name_length);
  append(each.name.data(), each.name.size());
  append(each.description.data(), each.description.size());
  reply(kRepServer, {payload.data(), end});
}

// NBD_OPT_STARTTLS: acknowledged in plaintext, everything after it is TLS.
void Handshake::on_start_tls() {
  if (!takes_no_payload()) return;
  if (offer_.tls == TlsMode::off) return refuse_option(kRepErrUnsup, "TLS is not set up on this server");
  if (encrypted_) return refuse_option(kRepErrInvalid, "TLS has been started before");
  reply(kRepAck);
  phase_ = Phase::wants_tls;
}

void Handshake::tls_started() {
  if (phase_ != Phase::wants_tls) return;
  encrypted_ = negotiated_ = true;
  structured_ = false;
  base_allocation_of_ = chosen_ = nullptr;
  infos_ = 0;
  input_.fill(0);
  phase_ = Phase::negotiating;
  expect_option();
}

// NBD_OPT_STRUCTURED_REPLY: asked twice, agreed twice.
void Handshake::on_structured_reply() {
  if (!takes_no_payload()) return;
  structured_ = true;
  reply(kRepAck);
  expect_option();
}

// NBD_OPT_INFO and NBD_OPT_GO: name, number of information requests, the requests.
void Handshake::on_info_or_go() {
  PayloadReader payload({input_.data(), option_length_});
  std::string_view name;
  uint16_t requests;
  if (!payload.read(name)) return refuse_option(kRepErrInvalid, "malformed option");
  if (name.size() > kMaxString) return refuse_option(kRepErrTooBig, "export name too long");
  if (!payload.read(requests) || payload.left() != requests * sizeof(Be16))
    return refuse_option(kRepErrInvalid, "malformed option");
  infos_ = 1u << kInfoExport;
  for (uint16_t type; payload.read(type);) {
    // Unknown information requests may be ignored; repeated ones are answered once.
    if (type <= kInfoBlockSize) infos_ |= 1u << type;
  }
  chosen_ = find(name);
  if (chosen_ == nullptr) return refuse_option(kRepErrUnknown, "unknown export name");
  if (option_ == kOptGo) return want_lane();
  answer_info();
  expect_option();
}

void Handshake::answer_info() {
  InfoExport size;
  size.type = kInfoExport;
  size.size = chosen_->exported.size;
  size.transmission_flags = flags_of(*chosen_);
  reply(kRepInfo, {reinterpret_cast<uint8_t*>(&size), sizeof size});
  if ((infos_ & 1u << kInfoName) != 0) reply_string(kInfoName, chosen_->name);
  if ((infos_ & 1u << kInfoDescription) != 0) reply_string(kInfoDescription, chosen_->description);
  // Told unasked too: a client that knows better sizes than it asked for may use them.
  InfoBlockSize blocks;
  blocks.type = kInfoBlockSize;
  blocks.minimum = chosen_->exported.minimum_block;
  blocks.preferred = chosen_->preferred_block_size;
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
  phase_ = Phase::negotiating;
  refuse_option(type, reason);
}

Terms Handshake::terms() const {
  Terms terms;
  terms.exported = chosen_->exported;
  terms.exported.flags = flags_of(*chosen_);
  terms.structured = structured_;
  // A context counts only for the export that it was selected for.
  terms.base_allocation = structured_ && base_allocation_of_ == chosen_;
  terms.remote = true;
  return terms;
}

}  // namespace rdmakit::nbd
