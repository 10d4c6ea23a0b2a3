// MPA setup of the iWARP provider, either end of it, over TCP on loopback. The input is the peer's data, in
// pieces: raw bytes, or a frame of any fields, whole or not, and what follows it. Listener, connections and
// queue pairs are the real ones. A responder reports to its application exactly the requests that are whole
// and well-formed, with their private data, and answers in their revision; an initiator reports how it ended,
// with the private data of the reply; a peer that sent invalid data is disconnected.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../fuzz_check.h"
#include "base/unique_fd.h"
#include "iwarp/wire/mpa.h"
#include "provider/provider.h"

using namespace rdmakit;
using namespace rdmakit::iwarp;
using fuzz::Input;

namespace {

using Bytes = std::vector<uint8_t>;
constexpr int kHangMs = 20'000;  // less than libFuzzer's limit, which would not say what was waited for

// An id's events for its application, for a thread that waits for them.
class Events {
 public:
  void watch(ConnectionId& id) {
    id.set_sink([this](CmEvent&& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      const uint64_t one = 1;
      CHECK(write(ready_.get(), &one, sizeof one) == sizeof one);
    });
  }
  int fd() const { return ready_.get(); }
  CmEvent next() {
    pollfd ready{fd(), POLLIN, 0};
    CHECK(fuzz::uninterrupted([&] { return poll(&ready, 1, kHangMs); }) == 1);
    uint64_t one;
    CHECK(read(fd(), &one, sizeof one) == sizeof one);
    const std::lock_guard lock(mutex_);
    CHECK(!events_.empty());
    CmEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  UniqueFd ready_{eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)};
  std::mutex mutex_;
  std::deque<CmEvent> events_;
};

struct World {
  static World& instance() {
    static World* world = std::make_unique<World>().release();
    return *world;
  }
  World() {
    ibv_context* context = iwarp_provider().open_device("iwarp0");
    pd = iwarp_provider().alloc_pd(context);
    cq = iwarp_provider().create_cq(context, 64, nullptr, nullptr, Progress::manual);
    CHECK(pd != nullptr && cq != nullptr);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* address = reinterpret_cast<const sockaddr*>(&any);
    listener = iwarp_provider().create_id();
    requests.watch(*listener);
    CHECK(listener->listen(address, sizeof any, 64) == 0);
    const sockaddr_storage local = listener->local_address();
    std::copy_n(reinterpret_cast<const char*>(&local), sizeof ours, reinterpret_cast<char*>(&ours));
    CHECK(bind(plain.get(), address, sizeof any) == 0 && ::listen(plain.get(), 64) == 0);
    socklen_t length = sizeof theirs;
    CHECK(getsockname(plain.get(), reinterpret_cast<sockaddr*>(&theirs), &length) == 0);
  }

  ibv_pd* pd;
  ibv_cq* cq;
  std::shared_ptr<ConnectionId> listener;
  Events requests;
  sockaddr_in ours{};                                              // where the listener is
  UniqueFd plain{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};  // a peer that initiators connect to
  sockaddr_in theirs{};
};

// The peer's end of a TCP connection.
class Peer {
 public:
  explicit Peer(UniqueFd socket) : socket_(std::move(socket)) {
    CHECK(socket_);
    const int yes = 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    // It ends by a reset, or the ports of a fuzzer's thousands would all be waiting.
    const linger reset{1, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    const timeval hang{kHangMs / 1000, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &hang, sizeof hang);
  }
  static Peer connected() {
    UniqueFd made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in& to = World::instance().ours;
    if (connect(made.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
      // It goes on without the one who was interrupted: connect(2).
      pollfd ready{made.get(), POLLOUT, 0};
      CHECK(errno == EINTR && fuzz::uninterrupted([&] { return poll(&ready, 1, kHangMs); }) == 1);
    }
    return Peer(std::move(made));
  }
  static Peer accepted() {
    return Peer(UniqueFd(fuzz::uninterrupted(
        [] { return accept4(World::instance().plain.get(), nullptr, nullptr, SOCK_CLOEXEC); })));
  }

  // In pieces of `piece` bytes. What the other end does not want any more is lost.
  void say(const Bytes& bytes, size_t piece) {
    for (size_t at = 0; at < bytes.size(); at += piece)
      if (fuzz::uninterrupted([&] {
            return send(socket_.get(), bytes.data() + at, std::min(piece, bytes.size() - at), MSG_NOSIGNAL);
          }) <= 0)
        return;
  }
  // A whole frame, or that the other end has hung up.
  bool hear(MpaFrame& frame) {
    Bytes bytes;
    size_t wanted = 0;
    for (MpaParse parse; (parse = parse_mpa(bytes, frame, wanted)) != MpaParse::complete;) {
      CHECK(parse == MpaParse::incomplete);  // what we say is well-formed
      const size_t have = bytes.size();
      bytes.resize(wanted);
      const ssize_t got =
          fuzz::uninterrupted([&] { return recv(socket_.get(), bytes.data() + have, wanted - have, 0); });
      CHECK(got >= 0 || errno != EAGAIN);  // else it hangs
      if (got <= 0) return false;
      bytes.resize(have + static_cast<size_t>(got));
    }
    return true;
  }
  void say_no_more() { shutdown(socket_.get(), SHUT_WR); }

 private:
  UniqueFd socket_;
};

ibv_qp* queue_pair(ConnectionId& id) {
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = attributes.recv_cq = World::instance().cq;
  attributes.cap = {4, 4, 1, 1, 0};
  ibv_qp* made = id.create_qp(World::instance().pd, &attributes);
  CHECK(made != nullptr);
  return made;
}

Bytes taken(Input& input, size_t length) {
  const std::span<const uint8_t> bytes = input.take(length);
  return {bytes.begin(), bytes.end()};
}

// A frame with whatever fields the input says, or bytes as they are.
Bytes words(Input& input, bool reply) {
  const uint8_t how = input.byte();
  if ((how & 3) == 3) return taken(input, input.two() % 1024);
  MpaFrame frame;
  frame.reply = reply != ((how & 0x7c) == 0x40);
  const uint16_t flags = input.two();
  frame.markers = flags & 1;
  frame.crc = flags & 2;
  frame.reject = flags & 4;
  frame.enhanced = flags & 8;
  frame.peer_to_peer = flags & 16;
  frame.rtr_send = flags & 32;
  frame.rtr_write = flags & 64;
  frame.rtr_read = flags & 128;
  frame.revision = static_cast<uint8_t>((flags >> 8) % 4);
  frame.ird = input.two();
  frame.ord = input.two();
  frame.private_data = taken(input, input.two() % 600);
  Bytes bytes = build_mpa(frame);
  if ((how & 3) == 2) bytes.resize(input.two() % (bytes.size() + 1));
  if ((how & 3) == 1) bytes[input.two() % bytes.size()] ^= input.byte();
  return bytes;
}

void respond(Input& input) {
  World& world = World::instance();
  const uint8_t how = input.byte();
  const size_t piece = size_t{input.byte()} + 1;
  Bytes said = words(input, false);
  MpaFrame request;
  size_t length = 0;
  const MpaParse parse = parse_mpa(said, request, length);
  if (parse == MpaParse::complete) said.resize(length);
  Peer peer = Peer::connected();
  peer.say(said, piece);
  MpaFrame reply;
  if (parse == MpaParse::incomplete) {
    // It waits for the rest, for a while. If it is told that there is none, it hangs up.
    if (how % 32 != 0) return;
    peer.say_no_more();
    CHECK(!peer.hear(reply));
    return;
  }
  if (parse == MpaParse::malformed || request.reply) {
    CHECK(!peer.hear(reply));
    return;
  }
  CmEvent event = world.requests.next();
  CHECK(event.type == CmEvent::Type::connect_request && event.request != nullptr);
  CHECK(event.private_data == request.private_data);
  const std::shared_ptr<ConnectionId> id = std::move(event.request);
  const Bytes answer = taken(input, input.byte());
  if ((how & 1) == 0) {
    CHECK(id->reject(answer) == 0);
    CHECK(peer.hear(reply) && reply.reply && reply.reject && reply.private_data == answer);
    CHECK(reply.revision == request.revision && reply.enhanced == request.enhanced);
    id->close();
    return;
  }
  Events events;
  events.watch(*id);
  ConnectParameters parameters;
  parameters.private_data = answer;
  parameters.qp = queue_pair(*id);
  CHECK(id->accept(parameters) == 0);
  CHECK(peer.hear(reply) && reply.reply && !reply.reject && reply.private_data == answer);
  CHECK(reply.revision == request.revision && reply.enhanced == request.enhanced);
  CHECK(reply.peer_to_peer ? request.peer_to_peer : true);
  // The initiator's first words, of which it may be waiting for.
  peer.say(taken(input, 256), piece);
  if (!reply.peer_to_peer) CHECK(events.next().type == CmEvent::Type::established);
  CHECK(iwarp_provider().destroy_qp(parameters.qp) == 0);
  id->close();
}

void initiate(Input& input) {
  World& world = World::instance();
  const uint8_t how = input.byte();
  const size_t piece = size_t{input.byte()} + 1;
  const auto id = iwarp_provider().create_id();
  Events events;
  events.watch(*id);
  CHECK(id->resolve(reinterpret_cast<const sockaddr*>(&world.theirs), sizeof world.theirs, kHangMs) == 0);
  CHECK(events.next().type == CmEvent::Type::route_resolved);
  ConnectParameters parameters;
  parameters.private_data = taken(input, input.byte());
  parameters.qp = queue_pair(*id);
  CHECK(id->connect(parameters) == 0);
  // A responder of the first revision is asked again in that.
  MpaFrame reply;
  bool whole = false, over = false;
  for (int tries = 0; !over; ++tries) {
    pollfd ready[] = {{world.plain.get(), POLLIN, 0}, {events.fd(), POLLIN, 0}};
    CHECK(fuzz::uninterrupted([&] { return poll(ready, 2, kHangMs); }) > 0);
    over = ready[1].revents != 0;
    if (over) break;
    CHECK(tries < 2);
    Peer peer = Peer::accepted();
    MpaFrame request;
    CHECK(peer.hear(request) && !request.reply && request.private_data == parameters.private_data);
    CHECK(request.revision == (tries == 0 ? kMpaEnhancedRevision : 1));
    Bytes said = words(input, true);
    const Bytes behind = taken(input, how);
    said.insert(said.end(), behind.begin(), behind.end());
    size_t length = 0;
    whole = parse_mpa(said, reply, length) == MpaParse::complete;
    peer.say(said, piece);
  }
  const CmEvent event = events.next();
  // What it is told is in the last reply.
  if (event.type == CmEvent::Type::established || event.type == CmEvent::Type::rejected) {
    CHECK(whole && reply.reply && event.private_data == reply.private_data);
    CHECK(reply.reject == (event.type == CmEvent::Type::rejected));
  } else {
    CHECK(event.type == CmEvent::Type::connect_failed && event.status != 0);
  }
  CHECK(iwarp_provider().destroy_qp(parameters.qp) == 0);
  id->close();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  if ((input.byte() & 1) == 0) {
    respond(input);
  } else {
    initiate(input);
  }
  return 0;
}
