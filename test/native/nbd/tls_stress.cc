// TLS: the modes, what survives STARTTLS (nothing), hostile handshakes, and traffic over several pumps while
// connections end in every way.
#include <poll.h>
#include <sys/stat.h>

#include <array>
#include <random>

#include "tls_client.h"

namespace nbd_tls_stress {

using namespace fixture;

const std::string kBase = "/tmp/nbd_tls." + std::to_string(getpid());
const std::string kKeys = kBase + ".psk";

class Served {
 public:
  explicit Served(TlsMode mode, uint32_t lanes = 2, AcceptorOptions acceptor = {})
      : volume(shape_of(mode, lanes, acceptor)) {
    std::string why;
    CHECK(volume.engine->bind_unix(path, why) == 0);
    volume.engine->accept_clients();
  }
  const std::string path = kBase + ".sock";
  NbdVolume volume;

 private:
  static NbdShape shape_of(TlsMode mode, uint32_t lanes, const AcceptorOptions& acceptor) {
    NbdShape shape;
    shape.lanes = lanes;
    shape.options.tls = {.mode = mode, .shared_keys = kKeys};
    shape.options.acceptor = acceptor;
    shape.options.acceptor.handshake_timeout_ns = kNever;
    shape.options.acceptor.lane_wait_ns = kNever;  // for one that has been left
    return shape;
  }
};

void modes() {
  Served forced(TlsMode::required);
  {
    TlsClient plain(forced.path);
    CHECK(plain.negotiate(kOptList) == kRepErrTlsRequired);
    CHECK(plain.negotiate(kOptGo, info_payload("")) == kRepErrTlsRequired);
    CHECK(plain.negotiate(kOptStructuredReply) == kRepErrTlsRequired);
    CHECK(plain.start_tls());  // on the same connection
    CHECK(plain.negotiate(kOptStartTls) == kRepErrInvalid);
    CHECK(plain.negotiate(kOptGo, info_payload("")) == kRepAck);
    std::vector<uint8_t> page(4096, 3);
    CHECK(plain.call(kCmdWrite, 0, 4096, nullptr, page.data()) == kOk);
    page.assign(4096, 0);
    CHECK(plain.call(kCmdRead, 0, 4096, page.data(), nullptr) == kOk && page[4095] == 3);
  }
  TlsClient wrong(forced.path);
  CHECK(!wrong.start_tls(kWrongKey));
  CHECK(std::string(forced.volume.wait_for(Event::Type::handshake_refused).reason.data()).starts_with("TLS"));
  TlsClient old(forced.path);
  CHECK(old.negotiate(kOptExportName) == 0);
  // Plaintext smuggled in behind STARTTLS is no part of the session.
  TlsClient smuggler(forced.path);
  CHECK(!smuggler.start_tls(kKey, option(kOptStructuredReply)));
}

void nothing_is_kept() {
  Served served(TlsMode::on);
  TlsClient client(served.path);
  CHECK(client.negotiate(kOptStructuredReply) == kRepAck);
  CHECK(client.start_tls());
  // Structured replies are gone, or this would be a chunk.
  CHECK(client.negotiate(kOptGo, info_payload("")) == kRepAck);
  std::vector<uint8_t> page(4096);
  CHECK(client.call(kCmdRead, 0, 4096, page.data(), nullptr) == kOk);
  TlsClient plain(served.path);
  CHECK(plain.negotiate(kOptGo, info_payload("")) == kRepAck);
}

void credentials() {
  const auto refused = [](const TlsOptions& tls) {
    EngineOptions options;
    options.volume.size = 1 << 20;
    options.tls = tls;
    int error = 0;
    std::string why;
    return Engine::open(
               options, [](const Event&) {}, error, why) == nullptr &&
           error == ENOKEY && !why.empty();
  };
  CHECK(refused({.mode = TlsMode::on}));
  CHECK(refused({.mode = TlsMode::on, .certificates = "/nonexistent"}));
  CHECK(refused({.mode = TlsMode::on, .shared_keys = "/nonexistent"}));
  CHECK(refused({.mode = TlsMode::on, .certificates = "/tmp", .shared_keys = kKeys}));
  CHECK(refused({.mode = TlsMode::on, .shared_keys = kKeys, .verify_peer = true}));
}

// A client that has proved to have a key never makes room, however long it says nothing; one that has only
// begun TLS does.
void proved_stay() {
  Served served(TlsMode::on, 2, {.max_handshakes = 3, .idle_ns = 1});
  TlsClient begun(served.path);
  const Bytes start = option(kOptStartTls);
  CHECK(write_all(begun.fd(), start.data(), start.size()));
  OptionReply reply;
  CHECK(read_all(begun.fd(), &reply, sizeof reply) && reply.type == kRepAck);
  std::vector<std::unique_ptr<TlsClient>> proved;
  for (int i = 0; i < 3; i++) {
    proved.push_back(std::make_unique<TlsClient>(served.path));
    CHECK(proved.back()->start_tls() && proved.back()->negotiate(kOptStructuredReply) == kRepAck);
  }
  uint8_t byte;
  CHECK(recv(begun.fd(), &byte, 1, 0) <= 0);
  const int late = dial_unix(served.path);
  while (recv(late, &byte, 1, 0) > 0) {
  }
  close(late);
  for (const auto& each : proved) CHECK(each->negotiate(kOptStructuredReply) == kRepAck);
}

void write_keys(const std::string& text, mode_t mode) {
  FILE* file = std::fopen(kKeys.c_str(), "w");
  CHECK(file != nullptr && fchmod(fileno(file), mode) == 0);
  CHECK(std::fputs(text.c_str(), file) >= 0 && std::fclose(file) == 0);
}

const std::string kLine = std::string(kName) + ":" + kKey + "\n";

// Keys that others can read, or write, prove nothing: not at the start, and not when it comes to that later.
void keys_of_others() {
  const auto failure = [](mode_t mode, const std::string& text) {
    write_keys(text, mode);
    EngineOptions options;
    options.volume.size = 1 << 20;
    options.tls = {.mode = TlsMode::on, .shared_keys = kKeys};
    int error = 0;
    std::string why;
    const bool opened = Engine::open(
                            options, [](const Event&) {}, error, why) != nullptr;
    CHECK(opened == (error == 0) && (opened || error == ENOKEY));
    CHECK(why.find(std::string(kKey).substr(0, 8)) == std::string::npos);
    return why;
  };
  for (const mode_t mode : {0644, 0640, 0620, 0602})
    CHECK(failure(mode, kLine).ends_with("run chmod 600 " + kKeys));
  CHECK(failure(0600, "alice;" + std::string(kKey)).ends_with("has no line \"name:hex key\""));
  CHECK(failure(0600, kLine).empty());
  Served served(TlsMode::required);
  CHECK(TlsClient(served.path).start_tls());
  write_keys(kLine, 0644);
  CHECK(!TlsClient(served.path).start_tls());
  write_keys("bob:00\n", 0600);
  CHECK(!TlsClient(served.path).start_tls());
  // Among others, with its name in hex.
  write_keys("bob:00\n\nalice\n#616c696365:" + std::string(kKey) + "\r\nalice:00\n", 0600);
  CHECK(TlsClient(served.path).start_tls());
  write_keys(kLine, 0600);
}

// Large and small, verified, from several clients; some leave in the middle of something.
void traffic() {
  Served served(TlsMode::required, 4);
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < 4; id++) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id);
      for (int round = 0; round < 4; round++) {
        TlsClient client(served.path);
        CHECK(client.start_tls());
        CHECK(client.negotiate(kOptGo, info_payload("")) == kRepAck);
        std::vector<uint8_t> data(1 << 20);
        std::vector<uint8_t> back(1 << 20);
        for (int i = 0; i < 12; i++) {
          const auto length = static_cast<uint32_t>(1 + random() % (i % 4 == 0 ? data.size() : 9'000));
          const uint64_t offset = id * (8 << 20) + random() % (7 << 20);
          std::fill_n(data.begin(), length, static_cast<uint8_t>(random()));
          CHECK(client.call(kCmdWrite, offset, length, nullptr, data.data()) == kOk);
          CHECK(client.call(kCmdRead, offset, length, back.data(), nullptr) == kOk);
          CHECK(std::memcmp(data.data(), back.data(), length) == 0);
        }
        // Leaves: with DISC, in the middle of a payload, with answers under way, or just so.
        const RequestHeader goodbye = header(kCmdDisconnect, 0, 0, 0);
        const RequestHeader half = header(kCmdWrite, 1, id * (8 << 20), 1 << 20);
        const RequestHeader read = header(kCmdRead, 1, id * (8 << 20), 4 << 20);
        if (round == 0) CHECK(client.send(&goodbye, sizeof goodbye));
        if (round == 0) CHECK(!client.receive(back.data(), 1));
        if (round == 1) CHECK(client.send(&half, sizeof half) && client.send(data.data(), 1000));
        if (round == 2) CHECK(client.send(&read, sizeof read));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(served.volume.count(Event::Type::server_failed) == 0);
}

// The engine closes under load: every client gets an answer or is disconnected, and none hangs.
void close_under_load() {
  Served served(TlsMode::required);
  // Of each: one may be through with all of its answers before the other has shaken hands.
  std::array<std::atomic<int>, 2> answers{};
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < answers.size(); id++) {
    threads.emplace_back([&, id] {
      TlsClient client(served.path);
      CHECK(client.start_tls() && client.negotiate(kOptGo, info_payload("")) == kRepAck);
      std::vector<uint8_t> data(100'000);
      uint32_t error = kOk;
      while (error == kOk) {
        error = client.call(kCmdRead, id * (8 << 20), 100'000, data.data(), nullptr);
        answers.at(id)++;
      }
      CHECK(error == kEshutdown || error == SocketClient::kGone);
    });
  }
  // One in the middle of its handshake.
  TlsClient slow(served.path);
  CHECK(slow.start_tls());
  await([&] { return answers[0] >= 10 && answers[1] >= 10; });
  CHECK(served.volume.engine->close(kCloseTime) == 0);
  for (auto& thread : threads) thread.join();
}

void hostile() {
  Served served(TlsMode::required);
  std::mt19937_64 random(3);
  std::vector<std::unique_ptr<TlsClient>> peers;
  for (int i = 0; i < 40; i++) {
    auto peer = std::make_unique<TlsClient>(served.path);
    const Bytes start = option(kOptStartTls);
    CHECK(write_all(peer->fd(), start.data(), start.size()));
    // A handshake record of each length, with noise in it; or nothing.
    Bytes noise = {22, 3, 1, static_cast<uint8_t>(i), static_cast<uint8_t>(random())};
    for (int j = 0; j < i * 13; j++) noise.push_back(static_cast<uint8_t>(random()));
    if (i % 3 != 0) write_all(peer->fd(), noise.data(), noise.size());
    peers.push_back(std::move(peer));
  }
  TlsClient good(served.path);
  CHECK(good.start_tls() && good.negotiate(kOptGo, info_payload("")) == kRepAck);
  std::vector<uint8_t> page(4096);
  CHECK(good.call(kCmdRead, 0, 4096, page.data(), nullptr) == kOk);
}

// A client that asks for more than all buffers hold and takes nothing: its lane ends it, and the pump that
// stays does not wait for it without end. It would be a thread for each such client.
void takes_no_answers() {
  Served served(TlsMode::on, 1, {.stall_timeout_ns = 1, .parting_ns = 1});
  TlsClient client(served.path);
  CHECK(client.start_tls() && client.negotiate(kOptGo, info_payload("")) == kRepAck);
  const RequestHeader read = header(kCmdRead, 1, 0, 8 << 20);
  CHECK(client.send(&read, sizeof read));
  const auto closed = served.volume.wait_for(Event::Type::connection_closed);
  CHECK(std::string(closed.reason.data()) == "the client does not take its answers");
  // Its end shows without anything being read.
  pollfd ended{client.fd(), POLLRDHUP, 0};
  CHECK(poll(&ended, 1, static_cast<int>(kHang.count() * 1'000)) == 1);
}

STRESS(nbd_tls) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  write_keys(kLine, 0600);
  timed("modes", modes);
  timed("nothing is kept", nothing_is_kept);
  timed("credentials", credentials);
  timed("who has proved stays", proved_stay);
  timed("keys of others", keys_of_others);
  timed("traffic", traffic);
  timed("close under load", close_under_load);
  timed("takes no answers", takes_no_answers);
  timed("hostile", hostile);
  unlink(kKeys.c_str());
  std::printf("ok\n");
  return 0;
}

}  // namespace nbd_tls_stress
