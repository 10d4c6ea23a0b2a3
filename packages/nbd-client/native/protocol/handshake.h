// The server's side of the fixed newstyle negotiation: bytes in, bytes out, and a decision.
// No I/O, no allocation after construction, no exception. Specification: proto.md, "Handshake phase".
//
//   greeting -> client flags -> option header -> option payload -> (answer) -> option header …
//                                    |                                 |
//                                    +-- STARTTLS --> TLS ------------>+
//                                    +-- EXPORT_NAME, GO --> asks for a lane --> transmission
//
// Its owner repeats: send output(); when that is empty, receive at most input().size() bytes. It never
// asks for more bytes than the negotiation still needs, so no byte of the transmission phase is taken,
// and none outlives a change of state: what an attacker put behind a plaintext STARTTLS is read by TLS.
// It answers one option at a time, and a LIST one export at a time, which bounds both buffers.
//
// handshake.cc          states, feeding and draining
// handshake_options.cc  the options
// handshake_meta.cc     the options about metadata contexts
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/payload.h"
#include "protocol/request.h"

namespace rdmakit::nbd {

inline constexpr uint32_t kMaxString = 4096;         // "Values": strings
inline constexpr uint32_t kMaxOptions = 32;          // in one session
inline constexpr uint32_t kMaxOptionLength = 32768;  // a longer one ends the session unread

struct ExportDescription {
  std::string name;         // ≤ kMaxString bytes
  std::string description;  // ≤ kMaxString bytes
  Export exported;
  uint32_t preferred_block_size = 4096;
};

enum class TlsMode { off, on, required };

// The exports of a server. The empty name means the export that has it, or else the first.
struct Offer {
  std::vector<ExportDescription> exports;  // at least one
  TlsMode tls = TlsMode::off;
  uint16_t withheld_flags = 0;  // transmission flags that are off for now; each answer checks again
};

class Handshake {
 public:
  enum class Phase {
    negotiating,
    wants_tls,     // once output() is sent, shake hands; then tls_started()
    wants_lane,    // answer with grant() or refuse()
    transmission,  // once output() is sent, the connection belongs to a lane
    closed,        // once output() is sent, close; reason() says why
  };

  // The offer must outlive it.
  explicit Handshake(const Offer& offer);

  std::span<const uint8_t> output() const { return {output_.data() + sent_, filled_ - sent_}; }
  void sent(size_t bytes);
  // Where the next bytes go. Empty while output waits, while a lane is awaited, and at the end.
  std::span<uint8_t> input();
  void received(size_t bytes);

  Phase phase() const { return phase_; }
  const char* reason() const { return reason_; }
  // The client has shaken hands over TLS where there must be TLS, or has been answered an option by something
  // else than an error.
  bool has_negotiated() const { return negotiated_; }
  // The client said goodbye, which is no failure.
  bool aborted() const { return phase_ == Phase::closed && option_ == kOptAbort; }

  // From here on all bytes go through TLS. Nothing that was negotiated before is kept.
  void tls_started();
  // A lane is reserved: go.
  void grant();
  // No lane: reports it (GO, the client may continue) or closes (EXPORT_NAME has no error reply).
  void refuse(OptionReplyType type, const char* reason);
  // In Phase::transmission.
  Terms terms() const;

 private:
  using Step = void (Handshake::*)();

  // One per state; each is called when all the bytes that it waited for are there.
  void on_client_flags();
  void on_option_header();
  void on_option_payload();
  void on_discarded();

  // One per option.
  void on_export_name();
  void on_abort();
  void on_list();
  void on_start_tls();
  void on_info_or_go();
  void on_structured_reply();
  void on_meta_context();

  void want_lane();
  bool needs_tls() const { return offer_.tls == TlsMode::required && !encrypted_; }
  bool takes_no_payload();
  void list_next();
  void answer_info();
  void answer_export_name();

  void expect(size_t bytes, Step step);
  void expect_option();
  void discard_payload(Step then);
  void reply(OptionReplyType type, std::span<const uint8_t> payload = {});
  void refuse_option(OptionReplyType type, std::string_view text);
  void reply_string(InfoType type, std::string_view text);
  void put(const void* bytes, size_t length);
  void close(const char* reason);
  const ExportDescription* find(std::string_view name) const;
  uint16_t flags_of(const ExportDescription& description) const;

  const Offer& offer_;
  Phase phase_ = Phase::negotiating;
  const char* reason_ = "";
  Step step_ = nullptr;
  Step after_discard_ = nullptr;
  size_t expected_ = 0;    // bytes that step_ waits for
  size_t have_ = 0;        // of them
  size_t discarding_ = 0;  // payload bytes to skip
  uint32_t options_ = 0;
  uint32_t option_ = 0;
  uint32_t option_length_ = 0;
  uint32_t infos_ = 0;  // bit per InfoType asked for
  size_t listing_ = 0;  // exports that LIST has told
  bool lists_ = false;  // a LIST is being answered
  bool fixed_newstyle_ = false;
  bool no_zeroes_ = false;
  bool encrypted_ = false;
  bool negotiated_ = false;
  // State that STARTTLS resets.
  bool structured_ = false;
  const ExportDescription* base_allocation_of_ = nullptr;  // the export that the context was selected for
  const ExportDescription* chosen_ = nullptr;
  size_t filled_ = 0;
  size_t sent_ = 0;
  // The largest option looked into: a name and as many information requests or queries as fit.
  std::array<uint8_t, kMaxString + 1024> input_;
  // The largest answer: EXPORT, NAME, DESCRIPTION, BLOCK_SIZE and ACK.
  std::array<uint8_t, 2 * kMaxString + 512> output_;
};

}  // namespace rdmakit::nbd
