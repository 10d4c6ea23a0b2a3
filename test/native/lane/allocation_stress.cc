// The page path allocates nothing: many requests of every kind, with every allocation that a lane's
// thread (and that of a backup) makes counted from the first request on.
#include <sys/prctl.h>

#include <random>

#include "../nbd/negotiated_client.h"

namespace {

std::atomic<bool> armed{false};
std::atomic<uint64_t> allocations{0};

// By its name: nothing else tells a lane's thread from the outside.
bool on_lane() {
  thread_local int known = -1;
  if (known < 0) {
    char name[17] = {};
    prctl(PR_GET_NAME, name);
    known = std::strncmp(name, "nbd-lane-", 9) == 0 || std::strcmp(name, "nbd-backup") == 0 ? 1 : 0;
  }
  return known == 1;
}

[[maybe_unused]] void count() {
  if (armed.load(std::memory_order_relaxed) && on_lane()) allocations++;
}

}  // namespace

// operator new comes down to malloc, so counting that is enough. A sanitizer has its own malloc, and a
// hook for it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));
namespace {
[[maybe_unused]] const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { count(); }, [](const volatile void*) {});
}
#else
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
void* calloc(size_t items, size_t bytes) {
  count();
  return __libc_calloc(items, bytes);
}
void* realloc(void* memory, size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}
}
#endif

using namespace fixture;

namespace {

// Under a sanitizer it is the sanitizer that is asked, and a fifth of them shows as much.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const uint64_t kRequests = static_cast<uint64_t>(effort(9'000));
#else
const uint64_t kRequests = static_cast<uint64_t>(effort(50'000));
#endif
constexpr uint32_t kDepth = 32;

// All chunks of one answer, whatever they say.
void read_chunks(int fd, std::vector<uint8_t>& data) {
  SimpleReply start;
  for (bool done = false; !done;) {
    CHECK(read_all(fd, &start, sizeof start));
    if (start.magic == kSimpleReplyMagic) {
      CHECK(start.error == kOk);
      return;
    }
    ChunkHeader header;
    std::memcpy(&header, &start, sizeof start);
    CHECK(header.magic == kStructuredReplyMagic && header.type != kChunkError);
    CHECK(read_all(fd, reinterpret_cast<uint8_t*>(&header) + sizeof start, sizeof header - sizeof start));
    CHECK(read_all(fd, data.data(), header.length));
    done = (header.flags & kChunkDone) != 0;
  }
}

// A bit of each page of slab 1 flips where it is read from; a refill of slab 0 from the start; and then the
// death of the server that it took the slab from.
void disturb(NbdVolume& volume, uint64_t request) {
  Volume& slabs = volume.engine->volume();
  const bool replicated = volume.shape.replicas > 1;
  if (replicated && request == kRequests / 8) {
    for (uint64_t page = 0; page < volume.shape.slab_size; page += 4096) {
      uint8_t byte;
      volume.servers[1]->copy(volume.replica(1, 1).address + page, &byte, 1, false);
      byte ^= 1;
      volume.servers[1]->copy(volume.replica(1, 1).address + page, &byte, 1, true);
    }
  }
  if (replicated && request == kRequests / 4) {
    Volume::Dropped dropped;
    std::string why;
    CHECK(slabs.retire_replica(0, 1) == 0 && slabs.drop_replica(0, 1, false, dropped) == 0 &&
          slabs.add_replica(0, volume.replica(0, volume.shape.replicas)) == 0);
    CHECK(volume.engine->refill(0, volume.shape.replicas, why) == 0);
  }
  if (request == kRequests / 2) volume.servers[1]->set_mode(Server::Mode::dead);
}

void run(const char* name, bool fenced, bool structured, uint32_t replicas, bool backup = false,
         bool thin = false, bool compress = false) {
  NbdShape shape;
  shape.size = 8 << 20;  // so small that most READs are of what was written
  shape.fenced = fenced;
  shape.replicas = replicas;
  shape.servers = replicas + 1;
  shape.refill_lane = replicas > 1 || backup;
  const std::string file = "/var/tmp/nbd_allocation." + std::to_string(getpid());
  if (backup) {
    shape.options.backup.path = file;
    shape.options.acknowledge = Acknowledge::backup;
  }
  shape.thin = thin;
  if (compress) shape.options.volume.compression = Compression::always;
  NbdVolume volume(shape);
  for (uint32_t id = 0; thin && id < volume.engine->volume().slabs(); id++) {
    const Replica place = volume.replica(id, id % shape.servers);
    CHECK(volume.engine->add_spare(id, {&place, 1}) == 0);
  }
  const std::string path = "/tmp/nbd_allocation." + std::to_string(getpid());
  std::string why;
  CHECK(!structured || volume.engine->bind_unix(path, why) == 0);
  volume.engine->accept_clients();
  const std::unique_ptr<NegotiatedClient> client =
      structured ? std::make_unique<NegotiatedClient>(path, true) : nullptr;
  const int fd = structured ? client->fd() : volume.attach(0);
  volume.wait_for(Event::Type::connection_opened);  // opening a connection is not the page path
  armed = true;

  std::vector<uint32_t> expected(kRequests);  // bytes of data in each reply, by cookie
  std::atomic<uint64_t> answered{0};
  std::thread receiver([&] {
    std::vector<uint8_t> data(4 << 20);
    SimpleReply reply;
    for (uint64_t i = 0; i < kRequests; i++, answered++, answered.notify_one()) {
      if (replicas > 1 || backup) disturb(volume, i);
      if (structured) {
        read_chunks(fd, data);
        continue;
      }
      CHECK(read_all(fd, &reply, sizeof reply) && reply.error == kOk);
      CHECK(read_all(fd, data.data(), expected[reply.cookie]));
    }
  });
  std::mt19937_64 random(5);
  const std::vector<uint8_t> payload(2 << 20, 0x77);
  for (uint64_t i = 0; i < kRequests; i++) {
    for (uint64_t now = answered; i - now >= kDepth; now = answered) answered.wait(now);
    uint64_t offset = random() % (shape.size / 4096 - 520) * 4096;
    uint32_t length = 4096;
    if (random() % 8 == 0 && !compress) {
      offset += random() % 4096;
      length = 1 + static_cast<uint32_t>(random() % 20'000);
    }
    if (random() % 1000 == 0) length = 2 << 20;
    uint64_t kind = random() % (structured ? 18 : 16);
    // Each slab gets its place from a first WRITE.
    if (thin && i < volume.engine->volume().slabs()) {
      offset = i * shape.slab_size;
      kind = 13;
    }
    const uint16_t command = kind < 7     ? kCmdRead
                             : kind < 14  ? kCmdWrite
                             : kind == 14 ? kCmdTrim
                             : kind == 15 ? kCmdWriteZeroes
                             : kind == 16 ? kCmdBlockStatus
                                          : kCmdCache;
    if (command == kCmdRead) expected[i] = length;
    const RequestHeader request = header(command, i, offset, length);
    CHECK(write_all(fd, &request, sizeof request));
    if (command == kCmdWrite) CHECK(write_all(fd, payload.data(), length));
  }
  receiver.join();
  armed = false;
  const LaneStatistics& statistics = volume.engine->lane(0).statistics();
  const uint64_t operations =
      statistics.rdma_reads.get() + statistics.rdma_writes.get() + statistics.rdma_fences.get();
  std::printf("%s, %u replicas: %llu requests, %llu RDMA operations, %llu allocations\n", name, replicas,
              static_cast<unsigned long long>(kRequests), static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(allocations.load()));
  CHECK(allocations == 0);
  CHECK((statistics.rdma_fences.get() > 0) == fenced);
  if (replicas > 1) {
    volume.wait_for(Event::Type::slab_refilled);
    CHECK(volume.engine->volume().failed(1));
    CHECK(statistics.pages_repaired.get() > 0);
  }
  if (backup) CHECK(volume.engine->backup()->statistics().bytes_read.get() > 0 && unlink(file.c_str()) == 0);
  if (compress) CHECK(statistics.pages_packed.get() > 0);
  if (thin) CHECK(volume.engine->volume().spares() == 0 && volume.count(Event::Type::slabs_changed) > 0);
  if (!structured) close(fd);
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  // The counter works: this thread takes the name of a lane for a moment.
  std::thread([] {
    prctl(PR_SET_NAME, "nbd-lane-test");
    armed = true;
    std::make_unique<std::vector<int>>(100);
    armed = false;
  }).join();
  CHECK(allocations.exchange(0) > 0);
  run("plain", false, false, 1);
  run("thin", false, false, 1, false, true);
  run("with fences", true, false, 1);
  run("structured replies", false, true, 1);
  run("plain", false, false, 2);
  run("with fences", true, false, 3);
  run("structured replies", false, true, 2);
  run("with a backup", false, false, 1, true);
  run("compressed", false, false, 2, false, false, true);
  std::printf("ok\n");
  return 0;
}
