// The transmission phase of one connection, on a lane's parts without its thread: a script of requests, good
// and bad, whole and cut off, with a server that may die. Every answer is held against the specification.
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>

#include "../../native/engine/fixture/memory_device.h"
#include "../../native/nbd/reply_reader.h"
#include "../fuzz_check.h"
#include "export/whole_export.h"
#include "front/nbd_front.h"
#include "lane/serve_requests.h"

using namespace rdmakit;
using namespace rdmakit::nbd;
using namespace rdmakit::volume;

namespace {

constexpr uint64_t kSize = 2 << 20;
constexpr uint64_t kSecond = 1'000'000'000;

// The parts of a lane, driven by hand. One for many inputs; a new one when its server has failed.
class World final : private OperationListener {
 public:
  explicit World(bool checksums)
      : server_(kSize, 7), channel_(device_.channel()), cq_(device_.queue(channel_)), arena_(memory()) {
    std::string why;
    CHECK(volume_.open({.size = kSize, .slab_size = 1 << 20, .checksums = checksums}, why) == 0);
    for (uint32_t slab = 0; slab < 2; slab++)
      CHECK(volume_.map_slab(slab, 0, server_.key(), server_.address() + slab * (uint64_t{1} << 20)) == 0);
    OperationListener& listener = *this;
    rdma_ = std::make_unique<RdmaQueue>(volume_, statistics_, listener, cq_, 10 * kSecond, Acknowledge::all,
                                        arena_.scratch(), nullptr);
    CHECK(rdma_->connect(0, device_.queue_pair(cq_, server_, {}), device_.region(memory(), Arena::kBytes)) ==
          0);
    LaneOptions options;
    options.read_ahead = 256 << 10;
    work_ =
        std::make_unique<ServeRequests<NbdFront>>(volume_, arena_, *rdma_, statistics_, listener, options);
  }
  ~World() {
    work_.reset();
    rdma_.reset();
  }

  void open(int socket, const Terms& terms) {
    volume_.clear_until_claimed(0, kSize / kPage, false);
    work_->front().open({UniqueFd(socket), nullptr, terms});
  }
  // One turn of a lane's loop.
  bool turn() {
    now_ += 1000;
    bool moved = rdma_->poll() > 0;
    if (work_->is_open()) {
      moved |= work_->start(now_, true);
      rdma_->flush(now_);
      moved |= work_->finish(now_);
    }
    return moved;
  }
  void kill_server() { server_.set_mode(memory_device::Server::Mode::dead); }
  bool damaged() const { return server_.mode() != memory_device::Server::Mode::healthy || volume_.failed(0); }
  void pass(uint64_t time) { now_ += time; }
  Export exported() const { return whole_export(volume_); }
  NbdFront& front() { return work_->front(); }
  void end() {
    front().drop("end of the script");
    for (int i = 0; !work_->idle(); i++) {
      CHECK(i < 100'000);
      turn();
    }
    front().close();
  }

 private:
  static void* memory() {
    static void* const made =
        mmap(nullptr, Arena::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return made;
  }
  void operation_acknowledged(Operation& operation) override {
    work_->operation_acknowledged(operation, now_);
  }
  void operation_decided(Operation& operation, bool succeeded) override {
    work_->operation_decided(operation, succeeded, now_);
  }
  void operation_over(Operation& operation) override { work_->operation_over(operation); }
  bool may_move(const Operation& operation) override { return work_->may_move(operation); }
  void server_failed(uint32_t server, const char*) override { volume_.fail(server); }
  void page_wrong(const WrongPage&) override { CHECK(!"a page is wrong"); }

  memory_device::Device device_{false};
  memory_device::Server server_;
  ChannelRef channel_;
  CqRef cq_;
  Arena arena_;
  Volume volume_;
  LaneStatistics statistics_;
  std::unique_ptr<RdmaQueue> rdma_;
  std::unique_ptr<ServeRequests<NbdFront>> work_;
  uint64_t now_ = kSecond;
};

class Script {
 public:
  Script(World& world, fuzz::Input& input) : world_(world), input_(input) {
    const uint8_t choice = input_.byte();
    Terms terms;
    terms.exported = world.exported();
    terms.structured = (choice & 1) != 0;
    terms.base_allocation = terms.structured && (choice & 2) != 0;
    terms.remote = (choice & 4) != 0;
    terms.stall = terms.remote ? 30 * kSecond : 0;
    if (terms.structured) terms.exported.flags |= kFlagSendDf;
    if ((choice & 8) != 0) terms.exported.flags |= kFlagReadOnly;
    if ((choice & 16) != 0) terms.exported.minimum_block = 512;
    if ((choice & 32) != 0) {
      terms.exported.offset = 64 << 10;
      terms.exported.size -= 128 << 10;
    }
    size_ = terms.exported.size;
    reader_ = std::make_unique<fixture::ReplyReader>(terms.structured);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    client_ = UniqueFd(pair[0]);
    world.open(pair[1], terms);
  }

  void run() {
    for (int steps = 0; !input_.empty() && steps < 200 && world_.front().is_open(); steps++) {
      switch (input_.byte() % 16) {
        case 0:
          garbage();
          break;
        case 1:
          work();
          break;
        case 2:
          if (input_.byte() % 8 == 0) world_.kill_server();
          break;
        case 3:
          if (input_.byte() % 8 == 0) world_.front().refuse_new();
          break;
        case 4:
          if (input_.byte() % 8 == 0) world_.pass(60 * kSecond);
          break;
        default:
          request();
      }
    }
    const bool whole = trusted_ && world_.front().is_open();
    work();
    // A client that sent only whole requests has got an answer to each of them.
    if (whole && world_.front().is_open()) CHECK(reader_->quiet());
    shutdown(client_.get(), SHUT_WR);
    work();
    world_.end();
  }

 private:
  void request() {
    NbdRequest request;
    const uint8_t command = input_.byte();
    request.command = command < 240 ? command % 8 : command;
    if (request.command == kCmdDisconnect && command != 2) request.command = kCmdRead;
    const uint8_t flags = input_.byte();
    request.flags = flags < 64 ? static_cast<uint16_t>(flags & 0x1f) : 0;
    request.cookie = ++cookies_ << 32 | 0xc00c1e;
    const uint16_t place = input_.two();
    const uint8_t extent = input_.byte();
    // Near pages and the end, and now and then beyond all reason.
    request.offset = place >= 0xff00   ? UINT64_MAX - (place & 0xff) * 512u
                     : place >= 0xf000 ? size_ - (place & 0xfff)
                                       : uint64_t{place} * 512 % size_ + (extent & 1 ? place % 7 : 0);
    request.length = extent < 200    ? (extent / 2u + 1) * 512 - (extent & 1) * 3
                     : extent < 250  ? (extent - 199u) * 40'000
                     : extent == 255 ? 0xffffffff
                                     : (extent - 250) * 16'777'216u;
    if (request.command == kCmdFlush && extent < 250) request.offset = request.length = 0;
    if (request.command == kCmdWrite) request.length %= 400'000;
    RequestHeader header;
    header.magic = kRequestMagic;
    header.flags = request.flags;
    header.type = request.command;
    header.cookie = request.cookie;
    header.offset = request.offset;
    header.length = request.length;
    if (request.command != kCmdDisconnect) reader_->expect(request);
    send(&header, sizeof header);
    if (request.command == kCmdDisconnect) trusted_ = false;
    if (request.command != kCmdWrite) return;
    static const std::vector<uint8_t> payload(400'000, 0x5a);
    send(payload.data(), request.length);
  }
  // From here on it is unknown what the server takes for a request.
  void garbage() {
    const auto bytes = input_.take(input_.byte());
    if (bytes.empty()) return;
    trusted_ = false;
    send(bytes.data(), bytes.size());
  }
  void send(const void* bytes, size_t length) {
    const auto* from = static_cast<const uint8_t*>(bytes);
    for (int i = 0; length > 0 && world_.front().is_open(); i++) {
      CHECK(i < 1'000'000);
      const ssize_t sent = ::send(client_.get(), from, length, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) {
        from += sent;
        length -= static_cast<size_t>(sent);
        continue;
      }
      world_.turn();
      receive();
    }
  }
  // Until nothing moves any more.
  void work() {
    int idle = 0;
    for (int i = 0; idle < 3; i++) {
      CHECK(i < 1'000'000);
      bool moved = world_.turn();
      moved |= receive();
      idle = moved ? 0 : idle + 1;
    }
  }
  bool receive() {
    static std::vector<uint8_t> bytes(1 << 20);
    const ssize_t got = recv(client_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return false;
    if (trusted_) reader_->feed({bytes.data(), static_cast<size_t>(got)}, [](const fixture::Answer&) {});
    return true;
  }

  World& world_;
  fuzz::Input& input_;
  UniqueFd client_;
  std::unique_ptr<fixture::ReplyReader> reader_;
  uint64_t size_ = 0;
  uint64_t cookies_ = 0;
  bool trusted_ = true;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::array<std::unique_ptr<World>, 2> worlds;
  const bool checksums = size > 0 && (data[0] & 64) != 0;
  std::unique_ptr<World>& world = worlds[checksums ? 1 : 0];
  if (world == nullptr || world->damaged()) world = std::make_unique<World>(checksums);
  fuzz::Input input(data, size);
  Script(*world, input).run();
  return 0;
}
