// The engine without any protocol: requests of a thread of this process, in memory of its own.
#include <sys/mman.h>

#include <map>
#include <random>

#include "../stress.h"
#include "fixture/memory_device.h"
#include "front-in-process/in_process_engine.h"

namespace engine_in_process_stress {

using namespace rdmakit;
using namespace rdmakit::volume;
using memory_device::Server;
using namespace fixture;

constexpr uint64_t kSlabs = 8;
constexpr uint64_t kSlabSize = 1 << 20;
constexpr uint32_t kServers = 2;
constexpr uint32_t kBuffer = kMaxWrite;
constexpr uint64_t kNever = uint64_t{3'600} * 1'000'000'000;

// Two replicas of each slab, one lane, and as many buffers as requests may be under way.
class InProcess {
 public:
  explicit InProcess(Acknowledge acknowledge = Acknowledge::all) {
    VolumeEngineOptions options;
    options.acknowledge = acknowledge;
    options.operation_timeout_ns = kNever;
    options.volume.size = kSlabs * kSlabSize;
    options.volume.slab_size = kSlabSize;
    int error = 0;
    std::string why;
    engine = InProcessEngine::open(
        options, [this](const Event& event) { failures += event.type == Event::Type::server_failed; }, error,
        why);
    CHECK(engine != nullptr, "%s", why.c_str());
    for (uint32_t i = 0; i < kServers; i++)
      servers.push_back(std::make_unique<Server>(options.volume.size, 0x1000 + i));
    for (uint32_t slab = 0; slab < kSlabs; slab++) {
      std::vector<Replica> place;
      for (uint32_t i = 0; i < kServers; i++)
        place.push_back(
            {servers[i]->address() + slab * kSlabSize, servers[i]->key(), static_cast<uint16_t>(i), true});
      CHECK(engine->volume().map_slab(slab, place) == 0);
    }
    memory_ = static_cast<uint8_t*>(
        mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    LaneResources resources;
    resources.channel = device_.channel();
    resources.cq = cq_ = device_.queue(resources.channel);
    for (auto& server : servers)
      resources.queue_pairs.push_back(
          device_.queue_pair(resources.cq, *server, {.delay_ns = 2'000, .jitter_ns = 20'000}));
    resources.memory_regions.push_back(device_.region(memory_, kMemory));
    uint32_t index = 0;
    std::vector<std::string> warnings;
    CHECK(engine->add_lane(std::move(resources), index, warnings, why) == 0, "%s", why.c_str());
  }
  ~InProcess() {
    engine.reset();
    munmap(memory_, kMemory);
  }

  std::shared_ptr<InProcessQueue> attach() {
    std::shared_ptr<InProcessQueue> queue;
    await([&] {
      const int error = engine->attach(0, queue);
      CHECK(error == 0 || error == EBUSY);
      return error == 0;
    });
    return queue;
  }
  void set_mode(uint32_t server, Server::Mode mode) {
    servers[server]->set_mode(mode);
    static_cast<memory_device::CompletionQueue*>(cq_.get())->look();
  }
  uint8_t* buffer(uint64_t tag) const { return memory_ + Arena::kBytes + tag * kBuffer; }
  // One request, answered.
  int call(InProcessQueue& queue, RequestKind kind, uint64_t offset, uint32_t length) {
    CHECK(queue.submit({kind, offset, length, buffer(0)}, 0));
    InProcessQueue::Answer answer;
    if (!queue.await(answer)) return -1;
    const int error = answer.error;
    while (answer.memory_in_use) CHECK(queue.await(answer));
    return error;
  }

  std::vector<std::unique_ptr<Server>> servers;
  InProcessEngine::Owner engine;
  std::atomic<uint32_t> failures{0};

 private:
  static constexpr size_t kMemory = Arena::kBytes + size_t{InProcessQueue::kDepth} * kBuffer;
  memory_device::Device device_{false};
  CqRef cq_;
  uint8_t* memory_ = nullptr;
};

// Each request has pages of its own while it is under way; what is read is what was written last.
void random_io(bool dies) {
  InProcess with;
  const auto queue = with.attach();
  std::mt19937_64 random(7);
  struct UnderWay {
    uint64_t page;
    uint32_t pages;
    RequestKind kind;
    uint8_t byte;
  };
  std::vector<uint8_t> model(kSlabs * kSlabSize / kPage);
  std::vector<bool> busy(model.size());
  std::map<uint64_t, UnderWay> under_way;
  std::vector<uint64_t> tags;
  for (uint64_t tag = 0; tag < InProcessQueue::kDepth; tag++) tags.push_back(tag);
  const auto finish = [&] {
    InProcessQueue::Answer answer;
    CHECK(queue->await(answer) && answer.error == 0, "errno %d", answer.error);
    if (!answer.memory_in_use) tags.push_back(answer.tag);
    if (under_way.count(answer.tag) == 0) return;  // answered before, when its memory was in use
    const UnderWay done = under_way.at(answer.tag);
    under_way.erase(answer.tag);
    for (uint32_t i = 0; i < done.pages; i++) {
      if (done.kind == RequestKind::read) {
        CHECK(is_filled(with.buffer(answer.tag) + uint64_t{i} * kPage, kPage, model[done.page + i]));
      } else {
        model[done.page + i] = done.byte;
      }
      busy[done.page + i] = false;
    }
  };
  const int operations = effort(3'000);
  for (int i = 0; i < operations; i++) {
    if (dies && i == operations / 2) with.servers[0]->set_mode(Server::Mode::dead);
    while (tags.empty()) finish();
    UnderWay next{random() % model.size(), 1 + static_cast<uint32_t>(random() % 16), RequestKind::read,
                  static_cast<uint8_t>(1 + random() % 255)};
    if (const uint64_t what = random() % 8; what < 4) {
      next.kind = RequestKind::write;
    } else if (what == 4) {
      next.kind = random() % 2 == 0 ? RequestKind::trim : RequestKind::write_zeroes;
      next.byte = 0;
    }
    next.pages = std::min<uint32_t>(next.pages, static_cast<uint32_t>(model.size() - next.page));
    bool free = true;
    for (uint32_t page = 0; page < next.pages; page++) free &= !busy[next.page + page];
    if (!free) continue;
    for (uint32_t page = 0; page < next.pages; page++) busy[next.page + page] = true;
    const uint64_t tag = tags.back();
    tags.pop_back();
    if (next.kind == RequestKind::write)
      std::memset(with.buffer(tag), next.byte, uint64_t{next.pages} * kPage);
    CHECK(queue->submit({next.kind, next.page * kPage, next.pages * kPage, with.buffer(tag)}, tag));
    under_way[tag] = next;
  }
  while (!under_way.empty()) finish();
  queue->leave();
  if (dies) await([&] { return with.failures == 1; });
  CHECK(with.engine->close(kNever) == 0);
}

void errors() {
  InProcess with;
  const auto queue = with.attach();
  const uint64_t size = with.engine->volume().size();
  CHECK(with.call(*queue, RequestKind::flush, 0, 0) == 0);
  CHECK(with.call(*queue, RequestKind::read, size, kPage) == EINVAL);
  CHECK(with.call(*queue, RequestKind::write, size - kPage, 2 * kPage) == EINVAL);
  CHECK(with.call(*queue, RequestKind::write, 0, kMaxWrite + kPage) == EINVAL);
  CHECK(with.call(*queue, RequestKind::read, 0, 0) == EINVAL);
  // No replica is left of what was written; what never was reads as zeros.
  std::memset(with.buffer(0), 0x5a, kPage);
  CHECK(with.call(*queue, RequestKind::write, 0, kPage) == 0);
  for (auto& server : with.servers) server->set_mode(Server::Mode::dead);
  CHECK(with.call(*queue, RequestKind::read, 0, kPage) == EIO);
  CHECK(with.call(*queue, RequestKind::read, kSlabSize, kPage) == 0);
  CHECK(is_filled(with.buffer(0), kPage, 0));
}

// The next caller gets the lane when the first has left; one that is in the middle of a request when the
// engine ends hears of it.
void callers() {
  InProcess with;
  for (int i = 0; i < 3; i++) {
    const auto queue = with.attach();
    std::memset(with.buffer(0), 1 + i, kPage);
    CHECK(with.call(*queue, RequestKind::write, 0, kPage) == 0);
    std::shared_ptr<InProcessQueue> another;
    CHECK(with.engine->attach(0, another) == EBUSY);
    queue->leave();
  }
  const auto queue = with.attach();
  CHECK(with.call(*queue, RequestKind::read, 0, kPage) == 0 && is_filled(with.buffer(0), kPage, 3));
  for (auto& server : with.servers) server->set_mode(Server::Mode::hung);
  CHECK(queue->submit({RequestKind::read, 0, kPage, with.buffer(0)}, 0));
  CHECK(with.engine->close(1) == 0);
  InProcessQueue::Answer answer;
  CHECK(!queue->await(answer) || answer.error != 0);
}

// A WRITE is answered when one replica has it (--ack one), and the other is written from the same memory
// later: reusing the memory earlier would leave two replicas that differ.
void memory_in_use() {
  InProcess with(Acknowledge::one);
  const auto queue = with.attach();
  with.set_mode(1, Server::Mode::hung);
  std::memset(with.buffer(0), 0x22, kPage);
  CHECK(queue->submit({RequestKind::write, 0, kPage, with.buffer(0)}, 5));
  InProcessQueue::Answer answer;
  CHECK(queue->await(answer) && answer.tag == 5 && answer.error == 0);
  if (!answer.memory_in_use) std::memset(with.buffer(0), 0x33, kPage);
  CHECK(answer.memory_in_use && queue->under_way() == 1);
  // Other requests go on meanwhile.
  std::memset(with.buffer(1), 0x44, kPage);
  CHECK(queue->submit({RequestKind::read, kSlabSize, kPage, with.buffer(1)}, 6));
  CHECK(queue->await(answer) && answer.tag == 6 && !answer.memory_in_use);
  CHECK(is_filled(with.buffer(1), kPage, 0));

  with.set_mode(1, Server::Mode::healthy);
  CHECK(queue->await(answer) && answer.tag == 5 && !answer.memory_in_use && queue->under_way() == 0);
  std::memset(with.buffer(0), 0x33, kPage);
  for (auto& server : with.servers) {
    server->copy(server->address(), with.buffer(1), kPage, false);
    CHECK(is_filled(with.buffer(1), kPage, 0x22));
  }
}

STRESS(engine_in_process) {
  timed("random I/O", [] { random_io(false); });
  timed("random I/O while a server dies", [] { random_io(true); });
  timed("errors", errors);
  timed("callers", callers);
  timed("memory that a replica is still written from", memory_in_use);
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_in_process_stress
