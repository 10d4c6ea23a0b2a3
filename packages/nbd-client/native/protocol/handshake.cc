// The states of the negotiation, in the order in which a session meets them.
#include "protocol/handshake.h"

#include <algorithm>
#include <cstring>

namespace rdmakit::nbd {

Handshake::Handshake(const Offer& offer) : offer_(offer) {
  Greeting greeting;
  greeting.magic = kInitMagic;
  greeting.option_magic = kOptionMagic;
  greeting.handshake_flags = kHandshakeFixedNewstyle | kHandshakeNoZeroes;
  put(&greeting, sizeof greeting);
  expect(sizeof(Be32), &Handshake::on_client_flags);
}

void Handshake::on_client_flags() {
  Be32 flags;
  std::memcpy(&flags, input_.data(), sizeof flags);
  // "The server MUST close the connection" on flags that it did not offer.
  if ((flags & ~uint32_t{kHandshakeFixedNewstyle | kHandshakeNoZeroes}) != 0)
    return close("unknown client flags");
  fixed_newstyle_ = (flags & kHandshakeFixedNewstyle) != 0;
  no_zeroes_ = (flags & kHandshakeNoZeroes) != 0;
  expect_option();
}

void Handshake::on_option_header() {
  OptionHeader header;
  std::memcpy(&header, input_.data(), sizeof header);
  if (header.magic != kOptionMagic) return close("bad option magic");
  if (++options_ > kMaxOptions) return close("too many options");
  option_ = header.option;
  option_length_ = header.length;
  if (option_length_ > kMaxOptionLength) return close("option too long");
  // Without fixed newstyle a client would not understand an option reply.
  if (!fixed_newstyle_ && option_ != kOptExportName) return close("option without fixed newstyle");
  if (option_length_ > input_.size()) return discard_payload(&Handshake::on_discarded);
  expect(option_length_, &Handshake::on_option_payload);
}

void Handshake::on_option_payload() {
  // "FORCEDTLS mode": nothing else is said, not even whether an option is known. ABORT is always answered.
  if (needs_tls() && option_ != kOptStartTls && option_ != kOptAbort) {
    if (option_ == kOptExportName) return close("plaintext client, TLS is required");
    return refuse_option(kRepErrTlsRequired, "this server requires TLS");
  }
  switch (option_) {
    case kOptExportName:
      return on_export_name();
    case kOptAbort:
      return on_abort();
    case kOptList:
      return on_list();
    case kOptStartTls:
      return on_start_tls();
    case kOptInfo:
    case kOptGo:
      return on_info_or_go();
    case kOptStructuredReply:
      return on_structured_reply();
    case kOptListMetaContext:
    case kOptSetMetaContext:
      return on_meta_context();
    default:
      // EXTENDED_HEADERS and any future option.
      return refuse_option(kRepErrUnsup, "option not supported");
  }
}

// The payload did not fit what any option of ours may hold, and is gone now.
void Handshake::on_discarded() {
  if (needs_tls() && option_ != kOptExportName && option_ != kOptAbort && option_ != kOptStartTls)
    return refuse_option(kRepErrTlsRequired, "this server requires TLS");
  switch (option_) {
    case kOptExportName:
      return close("export name too long");
    case kOptAbort:
      return on_abort();
    case kOptList:
    case kOptStartTls:
    case kOptStructuredReply:
      return refuse_option(kRepErrInvalid, "the option takes no payload");
    case kOptSetMetaContext:
      base_allocation_of_ = nullptr;
      [[fallthrough]];
    case kOptListMetaContext:
    case kOptInfo:
    case kOptGo:
      return refuse_option(kRepErrTooBig, "option too big");
    default:
      return refuse_option(kRepErrUnsup, "option not supported");
  }
}

// ---- Feeding and draining ----

std::span<uint8_t> Handshake::input() {
  if (phase_ != Phase::negotiating || filled_ != sent_) return {};
  if (discarding_ > 0) return {input_.data(), std::min(discarding_, input_.size())};
  return {input_.data() + have_, expected_ - have_};
}

void Handshake::received(size_t bytes) {
  if (discarding_ > 0) {
    discarding_ -= std::min(bytes, discarding_);
    if (discarding_ > 0) return;
    return (this->*after_discard_)();
  }
  have_ += bytes;
  if (have_ == expected_) (this->*step_)();
}

void Handshake::sent(size_t bytes) {
  sent_ += bytes;
  if (sent_ < filled_) return;
  sent_ = filled_ = 0;
  if (lists_) list_next();
}

void Handshake::expect(size_t bytes, Step step) {
  expected_ = bytes;
  have_ = 0;
  step_ = step;
  if (bytes == 0) (this->*step)();
}

void Handshake::expect_option() { expect(sizeof(OptionHeader), &Handshake::on_option_header); }

void Handshake::discard_payload(Step then) {
  discarding_ = option_length_;
  after_discard_ = then;
}

void Handshake::put(const void* bytes, size_t length) {
  if (length == 0) return;  // memcpy wants a pointer even then
  std::memcpy(output_.data() + filled_, bytes, length);
  filled_ += length;
}

void Handshake::reply(OptionReplyType type, std::span<const uint8_t> payload) {
  // STARTTLS only says that something is to come.
  if (type < kRepErrUnsup && option_ != kOptStartTls) negotiated_ = true;
  OptionReply header;
  header.magic = kOptionReplyMagic;
  header.option = option_;
  header.type = type;
  header.length = static_cast<uint32_t>(payload.size());
  put(&header, sizeof header);
  put(payload.data(), payload.size());
}

void Handshake::refuse_option(OptionReplyType type, std::string_view text) {
  reply(type, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  expect_option();
}

void Handshake::close(const char* reason) {
  reason_ = reason;
  phase_ = Phase::closed;
}

}  // namespace rdmakit::nbd
