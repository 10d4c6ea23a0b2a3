// The handshake: each state, answer, limit and past CVE class; then the acceptor with hostile peers.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string_view>

#include "nbd_fixture.h"
#include "protocol/handshake.h"

using namespace fixture;

namespace {

using Bytes = std::vector<uint8_t>;

template <typename Value>
void append(Bytes& bytes, const Value& value) {
  const auto* from = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}
void append(Bytes& bytes, std::string_view text) { bytes.insert(bytes.end(), text.begin(), text.end()); }

Bytes option(uint32_t type, const Bytes& payload, uint32_t claimed_length) {
  OptionHeader header;
  header.magic = kOptionMagic;
  header.option = type;
  header.length = claimed_length;
  Bytes bytes;
  append(bytes, header);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}
Bytes option(uint32_t type, const Bytes& payload = {}) {
  return option(type, payload, static_cast<uint32_t>(payload.size()));
}
Bytes text(std::string_view from) { return {from.begin(), from.end()}; }

Bytes info_payload(std::string_view name, const std::vector<uint16_t>& infos = {}) {
  Bytes bytes;
  append(bytes, Be32(static_cast<uint32_t>(name.size())));
  append(bytes, name);
  append(bytes, Be16(static_cast<uint16_t>(infos.size())));
  for (const uint16_t info : infos) append(bytes, Be16(info));
  return bytes;
}

const ExportDescription kDescription{"volume", "a test", {1 << 30, kFlagHasFlags | kFlagSendFlush}, 4096};

// Plays the owner of a Handshake: bytes in, all of what it answers out.
class Session {
 public:
  explicit Session(uint32_t flags = kHandshakeFixedNewstyle | kHandshakeNoZeroes, size_t piece = SIZE_MAX,
                   const ExportDescription& description = kDescription)
      : handshake(description), piece_(piece) {
    drain();
    Greeting greeting;
    CHECK(out.size() == sizeof greeting);
    std::memcpy(&greeting, out.data(), sizeof greeting);
    CHECK(greeting.magic == kInitMagic && greeting.option_magic == kOptionMagic);
    CHECK(greeting.handshake_flags == (kHandshakeFixedNewstyle | kHandshakeNoZeroes));
    out.clear();
    Bytes bytes;
    append(bytes, Be32(flags));
    feed(bytes);
  }

  // How many of the bytes were wanted.
  size_t feed(const Bytes& bytes) {
    size_t used = 0;
    while (used < bytes.size()) {
      const auto room = handshake.input();
      if (room.empty()) break;
      const size_t step = std::min({room.size(), bytes.size() - used, piece_});
      std::memcpy(room.data(), bytes.data() + used, step);
      used += step;
      handshake.received(step);
      drain();
    }
    return used;
  }
  // The type of the next answer to `to`; its payload is kept.
  uint32_t answer(uint32_t to) {
    OptionReply reply;
    CHECK(out.size() >= sizeof reply);
    std::memcpy(&reply, out.data(), sizeof reply);
    CHECK(reply.magic == kOptionReplyMagic && reply.option == to);
    CHECK(out.size() >= sizeof reply + reply.length);
    payload.assign(out.begin() + sizeof reply, out.begin() + static_cast<long>(sizeof reply + reply.length));
    out.erase(out.begin(), out.begin() + static_cast<long>(sizeof reply + reply.length));
    return reply.type;
  }
  void drain() {
    while (!handshake.output().empty()) {
      const auto bytes = handshake.output();
      const size_t step = std::min(bytes.size(), piece_);
      out.insert(out.end(), bytes.begin(), bytes.begin() + static_cast<long>(step));
      handshake.sent(step);
    }
  }
  bool open() const { return handshake.phase() == Handshake::Phase::negotiating; }
  bool closed() const { return handshake.phase() == Handshake::Phase::closed; }

  Handshake handshake;
  Bytes out;
  Bytes payload;

 private:
  size_t piece_;
};

void greeting_and_flags() {
  CHECK(Session(0).open());
  CHECK(Session(1).open());
  CHECK(Session(3).open());
  Session unknown(4);
  CHECK(unknown.closed() && std::string(unknown.handshake.reason()) == "unknown client flags");
  CHECK(Session(0x80000003).closed());
  Session bad_magic;
  CHECK(bad_magic.feed(Bytes(16, 'x')) == 16 && bad_magic.closed());
  // Without fixed newstyle only EXPORT_NAME may come.
  Session plain(0);
  plain.feed(option(kOptList));
  CHECK(plain.closed());
}

void export_name() {
  for (const uint32_t flags :
       {kHandshakeFixedNewstyle | 0u, kHandshakeFixedNewstyle | kHandshakeNoZeroes | 0u, 0u}) {
    for (const std::string_view name : {"volume", ""}) {
      Session session(flags, 3);
      session.feed(option(kOptExportName, text(name)));
      CHECK(session.handshake.phase() == Handshake::Phase::wants_lane);
      CHECK(session.handshake.input().empty());
      session.handshake.grant();
      session.drain();
      CHECK(session.handshake.phase() == Handshake::Phase::transmission);
      ExportNameReply reply;
      CHECK(session.out.size() == sizeof reply - ((flags & kHandshakeNoZeroes) != 0 ? 124 : 0));
      std::memcpy(&reply, session.out.data(), 10);
      CHECK(reply.size == 1u << 30 && reply.transmission_flags == (kFlagHasFlags | kFlagSendFlush));
      CHECK(session.handshake.input().empty());  // not a byte of the transmission phase
    }
  }
  Session unknown;
  unknown.feed(option(kOptExportName, text("other")));
  CHECK(unknown.closed() && unknown.out.empty());
  Session busy;
  busy.feed(option(kOptExportName));
  busy.handshake.refuse(kRepErrPolicy, "busy");
  CHECK(busy.closed() && busy.out.empty());
}

void list_and_abort() {
  Session session;
  session.feed(option(kOptList));
  CHECK(session.answer(kOptList) == kRepServer);
  Bytes expected;
  append(expected, Be32(6));
  append(expected, std::string_view("volumea test"));
  CHECK(session.payload == expected);
  CHECK(session.answer(kOptList) == kRepAck && session.open());
  session.feed(option(kOptList, text("x")));
  CHECK(session.answer(kOptList) == kRepErrInvalid && session.open());
  session.feed(option(kOptAbort));
  CHECK(session.answer(kOptAbort) == kRepAck && session.closed() && session.handshake.aborted());
}

void info_and_go() {
  for (const size_t piece : {SIZE_MAX, size_t{1}, size_t{7}}) {
    Session session(3, piece);
    session.feed(option(
        kOptInfo, info_payload("volume", {kInfoName, kInfoBlockSize, kInfoDescription, 77, kInfoName})));
    CHECK(session.answer(kOptInfo) == kRepInfo);
    InfoExport size;
    CHECK(session.payload.size() == sizeof size);
    std::memcpy(&size, session.payload.data(), sizeof size);
    CHECK(size.type == kInfoExport && size.size == 1u << 30);
    CHECK(session.answer(kOptInfo) == kRepInfo && session.payload.size() == 2 + 6);  // name, once
    CHECK(session.answer(kOptInfo) == kRepInfo && session.payload.size() == 2 + 6);  // description
    CHECK(session.answer(kOptInfo) == kRepInfo && session.payload.size() == sizeof(InfoBlockSize));
    InfoBlockSize blocks;
    std::memcpy(&blocks, session.payload.data(), sizeof blocks);
    CHECK(blocks.minimum == 1 && blocks.preferred == 4096 && blocks.maximum == kMaxPayload);
    CHECK(session.answer(kOptInfo) == kRepAck && session.out.empty() && session.open());

    session.feed(option(kOptGo, info_payload("nothing")));
    CHECK(session.answer(kOptGo) == kRepErrUnknown && session.open());
    session.feed(option(kOptGo, info_payload("")));
    CHECK(session.handshake.phase() == Handshake::Phase::wants_lane);
    session.handshake.refuse(kRepErrPolicy, "busy");
    session.drain();
    CHECK(session.answer(kOptGo) == kRepErrPolicy && session.payload == text("busy") && session.open());
    session.feed(option(kOptGo, info_payload("")));
    session.handshake.grant();
    session.drain();
    CHECK(session.answer(kOptGo) == kRepInfo && session.answer(kOptGo) == kRepInfo);
    CHECK(session.answer(kOptGo) == kRepAck && session.out.empty());
    CHECK(session.handshake.phase() == Handshake::Phase::transmission);
  }
}

// Options that are not offered, whatever they hold; and nothing of a session changes by them.
void unsupported_options() {
  Session session;
  for (const uint32_t type : {4u, 5u, 8u, 9u, 10u, 11u, 12u, 0u, 0x7fffffffu, 0xffffffffu}) {
    for (const size_t length : {0u, 1u, 5000u}) {
      if (length == 5000 && type > 9) continue;  // 32 options a session
      Session fresh;
      fresh.feed(option(type, Bytes(length, 'z')));
      CHECK(fresh.answer(type) == kRepErrUnsup && fresh.open());
      fresh.feed(option(kOptGo, info_payload("")));
      CHECK(fresh.handshake.phase() == Handshake::Phase::wants_lane);
    }
  }
}

void limits() {
  // 32 options, then the end.
  Session many;
  for (int i = 0; i < 32; i++) {
    many.feed(option(kOptList));
    CHECK(many.open());
  }
  many.out.clear();
  many.feed(option(kOptList));
  CHECK(many.closed() && std::string(many.handshake.reason()) == "too many options");
  // 4 GiB - 1: refused at the header; nothing of it is read.
  for (const uint32_t type : {kOptGo + 0u, kOptExportName + 0u, 1234u}) {
    Session huge;
    CHECK(huge.feed(option(type, Bytes(100000, 'a'), 0xffffffff)) == sizeof(OptionHeader));
    CHECK(huge.closed() && std::string(huge.handshake.reason()) == "option too long");
  }
  Session at_limit;
  at_limit.feed(option(1234, Bytes(kMaxOptionLength, 'a')));
  CHECK(at_limit.answer(1234) == kRepErrUnsup && at_limit.open());
  // Names: 4096 bytes are heard, 5000 are not.
  Session name_ok;
  name_ok.feed(option(kOptGo, info_payload(std::string(4096, 'n'))));
  CHECK(name_ok.answer(kOptGo) == kRepErrUnknown && name_ok.open());
  Session name_long;
  name_long.feed(option(kOptGo, info_payload(std::string(4097, 'n'))));
  CHECK(name_long.answer(kOptGo) == kRepErrTooBig && name_long.open());
  Session name_longer;
  name_longer.feed(option(kOptGo, info_payload(std::string(6000, 'n'))));
  CHECK(name_longer.answer(kOptGo) == kRepErrTooBig && name_longer.open());
  Session old_style;
  old_style.feed(option(kOptExportName, Bytes(5000, 'n')));
  CHECK(old_style.closed() && std::string(old_style.handshake.reason()) == "export name too long");
  Session old_style_huge;
  old_style_huge.feed(option(kOptExportName, Bytes(20000, 'n')));
  CHECK(old_style_huge.closed());
  // The longest names and descriptions of our own fit the answer.
  const ExportDescription longest{std::string(4096, 'a'), std::string(4096, 'b'), {1, 1}, 4096};
  Session wide(3, 1000, longest);
  wide.feed(option(kOptInfo, info_payload(longest.name, {1, 2, 3})));
  CHECK(wide.answer(kOptInfo) == kRepInfo && wide.answer(kOptInfo) == kRepInfo);
  CHECK(wide.payload.size() == 4098);
  CHECK(wide.answer(kOptInfo) == kRepInfo && wide.answer(kOptInfo) == kRepInfo);
  CHECK(wide.answer(kOptInfo) == kRepAck);
  wide.feed(option(kOptList));
  CHECK(wide.answer(kOptList) == kRepServer && wide.payload.size() == 4 + 8192);
}

// Lengths that lie: the name's length that wraps, or goes past the option; counts of information
// requests that do not match; trailing bytes.
void malformed_info() {
  const auto payload = [](uint32_t name_length, const Bytes& rest) {
    Bytes bytes;
    append(bytes, Be32(name_length));
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes;
  };
  const std::vector<Bytes> bad = {
      {},
      {0, 0, 0},
      payload(0, {}),
      payload(0, {0}),
      payload(0xffffffff, {0, 0}),
      payload(0xfffffffe, {0, 0, 1, 2}),
      payload(0x80000000, text("volume")),
      payload(7, {'v', 'o', 'l', 'u', 'm', 'e'}),
      payload(6, {'v', 'o', 'l', 'u', 'm', 'e'}),
      payload(0, {0, 1}),
      payload(0, {0xff, 0xff, 0, 0}),
      payload(0, {0, 0, 0}),
      payload(0, {0, 1, 0, 0, 0, 0}),
  };
  for (const uint32_t type : {kOptInfo + 0u, kOptGo + 0u}) {
    for (const Bytes& each : bad) {
      Session session;
      session.feed(option(type, each));
      CHECK(session.answer(type) == kRepErrInvalid && session.open());
      session.feed(option(kOptGo, info_payload("volume")));
      CHECK(session.handshake.phase() == Handshake::Phase::wants_lane);
    }
  }
}

void random_bytes() {
  std::mt19937_64 random(99);
  for (int round = 0; round < 20'000; round++) {
    Session session(3, 1 + random() % 300);
    for (int i = 0; i < 8 && session.open(); i++) {
      Bytes payload(random() % 200);
      for (auto& byte : payload) byte = static_cast<uint8_t>(random() % 4 == 0 ? random() : 0);
      const uint32_t type = random() % 10 == 0 ? static_cast<uint32_t>(random()) : random() % 13;
      const uint32_t length =
          random() % 20 == 0 ? static_cast<uint32_t>(random()) : static_cast<uint32_t>(payload.size());
      session.feed(option(type, payload, length));
    }
    session.out.clear();
  }
}

// ---- The acceptor ----

int dial_unix(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

int dial_tcp(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Greets and asks to go. The type of the last answer.
uint32_t go(int fd) {
  Greeting greeting;
  if (!read_all(fd, &greeting, sizeof greeting)) return 0;
  Bytes bytes;
  append(bytes, Be32(3));
  const Bytes request = option(kOptGo, info_payload(""));
  bytes.insert(bytes.end(), request.begin(), request.end());
  if (!write_all(fd, bytes.data(), bytes.size())) return 0;
  for (;;) {
    OptionReply reply;
    if (!read_all(fd, &reply, sizeof reply)) return 0;
    Bytes payload(reply.length);
    if (!read_all(fd, payload.data(), payload.size())) return 0;
    if (reply.type != kRepInfo) return reply.type;
  }
}

bool ended(int fd) {
  uint8_t byte;
  return !read_all(fd, &byte, 1);
}

void acceptor() {
  const std::string path = "/tmp/nbd_acceptor." + std::to_string(getpid());
  Shape shape;
  shape.lanes = 1;
  shape.options.acceptor.handshake_timeout_ns = 400'000'000;
  shape.options.acceptor.lane_wait_ns = 150'000'000;
  shape.options.acceptor.max_handshakes = 20;
  TestVolume volume(shape);
  std::string why;
  std::string host;
  uint16_t port = 0;
  CHECK(volume.engine->listen_unix(path, why) == 0);
  CHECK(volume.engine->listen_tcp("127.0.0.1", 0, host, port, why) == 0 && port != 0);
  struct stat status;
  CHECK(stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);

  // Silent peers, one with half a header, occupy no lane, and are gone when their time is up.
  std::vector<int> silent;
  for (int i = 0; i < 10; i++) silent.push_back(dial_tcp(port));
  Greeting greeting;
  CHECK(read_all(silent[0], &greeting, sizeof greeting));
  Bytes half;
  append(half, Be32(3));
  const Bytes header = option(kOptGo);
  half.insert(half.end(), header.begin(), header.begin() + 9);
  CHECK(write_all(silent[0], half.data(), half.size()));
  {
    const int fd = dial_unix(path);
    CHECK(go(fd) == kRepAck);
    Client client(fd);
    Bytes page(4096, 5);
    CHECK(client.write(0, page.data(), 4096) == kOk);
    // No lane left: told so after the wait, and the session goes on.
    const auto start = memory_device::now();
    const int late = dial_tcp(port);
    CHECK(go(late) == kRepErrPolicy);
    CHECK(memory_device::now() - start >= 150'000'000);
    close(late);
  }
  for (const int fd : silent) {
    while (!ended(fd)) {
    }
    close(fd);
  }
  CHECK(volume.wait_for(Event::Type::handshake_refused).reason[0] != 0);

  // Somebody who waits gets the lane when it becomes free.
  {
    const int first = dial_tcp(port);
    CHECK(go(first) == kRepAck);
    std::thread leaver([&] {
      usleep(50'000);
      close(first);
    });
    const int second = dial_tcp(port);
    CHECK(go(second) == kRepAck);
    leaver.join();
    close(second);
  }
  // A flood is cut off at the limit; afterwards all is well.
  std::vector<int> flood;
  for (int i = 0; i < 60; i++) flood.push_back(dial_unix(path));
  size_t refused = 0;
  for (const int fd : flood) {
    uint8_t byte;
    refused += recv(fd, &byte, 1, 0) == 0;
  }
  CHECK(refused >= 30);
  for (const int fd : flood) close(fd);
  usleep(50'000);
  // Peers that leave while they wait for a lane, or send noise.
  for (int i = 0; i < 20; i++) {
    const int fd = dial_unix(path);
    const Bytes noise(static_cast<size_t>(20 + i), static_cast<uint8_t>(i));
    write_all(fd, noise.data(), noise.size());
    close(fd);
  }
  int fd = -1;
  uint32_t answer = 0;
  for (int i = 0; i < 50 && answer != kRepAck; i++) {
    fd = dial_unix(path);
    answer = go(fd);
    if (answer != kRepAck) close(fd);
  }
  CHECK(answer == kRepAck);
  close(fd);

  // The socket file.
  CHECK(volume.engine->listen_unix(path, why) == EADDRINUSE);
  const std::string file = path + ".file";
  std::fclose(std::fopen(file.c_str(), "w"));
  CHECK(volume.engine->listen_unix(file, why) == EEXIST);
  unlink(file.c_str());
  CHECK(volume.engine->listen_unix(std::string(200, 'x'), why) == EINVAL);
  CHECK(volume.engine->listen_tcp("127.0.0.1", port, host, port, why) == EADDRINUSE);
  CHECK(volume.engine->listen_tcp("not an address", 1, host, port, why) == EINVAL);
  CHECK(volume.engine->close(1'000'000'000) == 0);
  CHECK(stat(path.c_str(), &status) != 0);  // removed
  // A stale socket file is replaced.
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  CHECK(bind(stale, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  close(stale);
  TestVolume next(Shape{});
  CHECK(next.engine->listen_unix(path, why) == 0);
  const int again = dial_unix(path);
  CHECK(go(again) == kRepAck);
  close(again);
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::pair<const char*, void (*)()> tests[] = {
      {"greeting and client flags", greeting_and_flags},
      {"EXPORT_NAME", export_name},
      {"LIST and ABORT", list_and_abort},
      {"INFO and GO", info_and_go},
      {"options not offered", unsupported_options},
      {"limits", limits},
      {"malformed INFO and GO", malformed_info},
      {"random bytes", random_bytes},
      {"acceptor", acceptor},
  };
  for (const auto& [name, test] : tests) {
    test();
    std::printf("%s\n", name);
  }
  std::printf("ok\n");
  return 0;
}
