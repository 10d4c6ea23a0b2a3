// A lane with an NBD connection and without a thread: its volume and its servers, and its client. Each turn
// is the test's, so what is under way stays as it is until the test goes on.
#pragma once

#include <optional>

#include "../engine/fixture/nbd_fixture.h"

namespace fixture {

// Of two servers, each has every other slab.
class BareLane final : public OperationListener {
 public:
  static constexpr uint64_t kSlab = kMinSlab;
  static constexpr uint64_t kSize = 16 * kSlab;

  struct Answer {
    uint64_t cookie;
    uint32_t error;
    bool operator==(const Answer&) const = default;
  };

  // `stall`: Terms::stall.
  explicit BareLane(uint64_t stall = 0) {
    VolumeOptions options;
    options.size = kSize;
    options.slab_size = kSlab;
    std::string why;
    CHECK(volume.open(options, why) == 0, "%s", why.c_str());
    queue.emplace(volume, statistics, *this, cq_, kNever, Acknowledge::all, arena_.scratch(), nullptr);
    for (const uint32_t i : {0, 1}) CHECK(connect() == i);
    for (uint32_t slab = 0; slab < kSize / kSlab; slab++)
      CHECK(volume.map_slab(slab, slab % 2, servers[slab % 2]->key(), address_of(slab * kSlab)) == 0);
    requests.emplace(volume, arena_, *queue, statistics, *this, 0);
    socket.emplace(*requests, arena_, volume);
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    client_.reset(ends[1]);
    Terms terms;
    terms.exported.size = kSize;
    terms.exported.flags = kFlagHasFlags | kFlagSendFlush;
    terms.stall = stall;
    socket->open(UniqueFd(ends[0]), terms, kMillisecond);
  }
  // Every request is over, and everything that was taken is free again.
  ~BareLane() {
    if (!dropped_) {
      turns();
      CHECK(requests->quiet() && answers().empty() && unsent() == 0);
      drop();
    }
    requests->check_rest();
    CHECK(queue->outstanding() == 0);
  }
  // As a lane drops a connection that has failed.
  void drop() {
    socket->drop();
    requests->drop();
    dropped_ = true;
  }

  // The client sends it, as soon as the socket has room.
  void send(const void* bytes, size_t length) {
    const auto* const from = static_cast<const uint8_t*>(bytes);
    unsent_.insert(unsent_.end(), from, from + length);
    turns();
  }
  // As much as there is memory for is here before the lane looks at it.
  void send_at_once(const void* bytes, size_t length) {
    const auto* const from = static_cast<const uint8_t*>(bytes);
    unsent_.insert(unsent_.end(), from, from + length);
    for (bool moved = true; moved;) {
      moved = exchange();
      moved |= socket->receive(false);
    }
    turns();
  }
  void begin(uint16_t command, uint64_t cookie, uint64_t offset, uint32_t length) {
    const RequestHeader request = header(command, cookie, offset, length);
    send(&request, sizeof request);
  }
  size_t unsent() const { return unsent_.size() - sent_; }
  // As the loop of a lane, until nothing moves any more.
  void turns() {
    for (bool moved = true; moved;) {
      moved = exchange();
      moved |= socket->receive(false);
      moved |= requests->resume(kNow);
      moved |= socket->take(kNow);
      queue->flush(kNow);
      moved |= queue->poll() > 0;
      moved |= socket->send(kNow);
      CHECK(socket->failure() == nullptr, "%s", socket->failure());
    }
  }
  void set_mode(uint32_t server, Server::Mode mode) {
    servers[server]->set_mode(mode);
    turns();
  }
  // The server of every other slab has failed, and is back with its memory empty: at the next index, as
  // control would have it.
  void come_back(uint32_t half) {
    come_back_later(half);
    turns();
  }
  void come_back_later(uint32_t half) {
    const uint32_t gone = at_[half];
    at_[half] = connect();
    for (uint32_t slab = half; slab < kSize / kSlab; slab += 2) {
      const Replica moved{.address = address_of(slab * kSlab),
                          .remote_key = servers[at_[half]]->key(),
                          .server = static_cast<uint16_t>(at_[half]),
                          .live = true};
      CHECK(volume.move_replica(slab, gone, moved) == 0);
    }
  }
  // The client closes, and still takes answers.
  void leave() {
    shut();
    turns();
  }
  void shut() { CHECK(shutdown(client_.get(), SHUT_WR) == 0); }
  // Those that came since the last call.
  std::vector<Answer> answers() { return std::exchange(answers_, {}); }

  bool has_noise(uint64_t offset, uint32_t length, uint64_t seed) {
    std::vector<uint8_t> got(length);
    for (uint32_t at = 0; at < length;) {
      const auto some = static_cast<uint32_t>(std::min<uint64_t>(length - at, kSlab - (offset + at) % kSlab));
      server_of(offset + at).copy(address_of(offset + at), got.data() + at, some, false);
      at += some;
    }
    return is_noise(got.data(), length, seed);
  }
  PageState state(uint64_t offset) const { return volume.pages().get(offset / kPage); }

  void operation_acknowledged(Operation& operation) override {
    requests->operation_acknowledged(operation, kNow);
  }
  void operation_decided(Operation& operation, bool succeeded) override {
    requests->operation_decided(operation, succeeded, kNow);
  }
  void operation_over(Operation& operation) override { requests->operation_over(operation); }
  bool may_move(const Operation& operation) override { return requests->may_move(operation); }
  void server_failed(uint32_t server, const char* reason) override { volume.fail(server, 0, reason); }
  void page_wrong(const WrongPage&) override { CHECK(false); }

  static constexpr uint64_t kNow = kSecond;
  Volume volume;
  std::vector<std::unique_ptr<Server>> servers;
  LaneStatistics statistics;
  std::optional<RdmaQueue> queue;
  std::optional<RequestExecutor> requests;
  std::optional<NbdSocket> socket;

 private:
  Server& server_of(uint64_t offset) const { return *servers[at_[offset / kSlab % 2]]; }
  uint64_t address_of(uint64_t offset) const {
    return server_of(offset).address() + offset / kSlab / 2 * kSlab + offset % kSlab;
  }
  // One more server: its index.
  uint32_t connect() {
    const auto index = static_cast<uint32_t>(servers.size());
    servers.push_back(std::make_unique<Server>(kSize / 2, 0x1000 + index));
    CHECK(queue->connect(index, device_.queue_pair(cq_, *servers[index], {}),
                         device_.region(memory_.data(), memory_.size())) == 0);
    return index;
  }
  // The client sends what it can, and takes the answers. True: something went.
  bool exchange() {
    bool moved = false;
    ssize_t bytes = 0;
    while (unsent() > 0 && (bytes = ::send(client_.get(), unsent_.data() + sent_, unsent(),
                                           MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) {
      sent_ += static_cast<size_t>(bytes);
      moved = true;
    }
    CHECK(bytes >= 0 || errno == EAGAIN);
    for (SimpleReply reply; (bytes = recv(client_.get(), &reply, sizeof reply, MSG_DONTWAIT)) > 0;) {
      CHECK(bytes == sizeof reply && reply.magic == kSimpleReplyMagic);
      answers_.push_back({reply.cookie, reply.error});
      moved = true;
    }
    return moved;
  }

  memory_device::Device device_{false};
  ChannelRef channel_ = device_.channel();
  const CqRef cq_ = device_.queue(channel_);
  std::array<uint32_t, 2> at_{0, 1};  // the server of each half of the slabs
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(Arena::kBytes);
  const Arena arena_{memory_.data()};
  UniqueFd client_;
  bool dropped_ = false;
  std::vector<uint8_t> unsent_;
  size_t sent_ = 0;
  std::vector<Answer> answers_;
};

}  // namespace fixture
