// The shm provider: many connections, queue pairs and threads at once, and nothing left of them.
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "shm/progress_thread.h"
#include "traffic.h"

namespace shm_many_stress {

using namespace fixture;

void connect_and_disconnect(int threads, int each) {
  std::vector<std::thread> running;
  for (int t = 0; t < threads; t++) {
    running.emplace_back([=] {
      Listener listener;
      for (int i = 0; i < each; i++) {
        Pair pair(listener, {.channel = i % 3 == 0, .depth = 8}, {.channel = i % 5 == 0, .depth = 8});
        Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
        near.fill(static_cast<uint64_t>(i));
        post_receive(*pair.server, 1, far.sge(0, 64));
        post(*pair.client, {.wr_id = 2}, {near.sge(0, 64)});
        pump(*pair.client, 1, *pair.server, 1);
        CHECK(same(near, far, 64));
        if (i % 4 == 0) CHECK(pair.client->id.id->disconnect() == 0);
        if (i % 4 == 1) pair.server->destroy_qp();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

// Many queue pairs on one completion queue, more than one poll looks at.
void shared_queue(bool channel) {
  constexpr size_t kPairs = 70;
  Listener listener;
  ibv_comp_channel* channels[2] = {};
  ibv_cq* queues[2];
  for (int side = 0; side < 2; side++) {
    if (channel) channels[side] = provider().create_comp_channel(context());
    queues[side] = provider().create_cq(context(), 4096, nullptr, channels[side], Progress::manual);
    CHECK(queues[side] != nullptr);
  }
  {
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<std::unique_ptr<Memory>> near, far;
    const auto add = [&](uint64_t seed) {
      pairs.push_back(std::make_unique<Pair>(listener, Options{.depth = 32, .cq = queues[0]},
                                             Options{.depth = 32, .cq = queues[1]}));
      near.push_back(std::make_unique<Memory>(pairs.back()->client->pd, 20'000));
      far.push_back(std::make_unique<Memory>(pairs.back()->server->pd, 20'000));
      near.back()->fill(seed);
    };
    for (size_t i = 0; i < kPairs; i++) add(i);
    for (int round = 0; round < 20; round++) {
      const size_t length = static_cast<size_t>(round) * 40;
      for (size_t i = 0; i < kPairs; i++) {
        post_receive(*pairs[i]->server, i, far[i]->sge(0, 20'000));
        post(*pairs[i]->client, {.wr_id = i}, {near[i]->sge(0, length)});
      }
      pump(*pairs[0]->client, kPairs, *pairs[0]->server, kPairs);
      for (size_t i = 0; i < kPairs; i++) CHECK(same(*near[i], *far[i], length));
      if (round % 5 == 4) {  // some go away while others stay
        const long gone = round / 5;
        near.erase(near.begin() + gone);
        far.erase(far.begin() + gone);
        pairs.erase(pairs.begin() + gone);
        add(static_cast<uint64_t>(gone));
      }
    }
    if (channel) {  // the quietest of them wakes a sleeper
      for (size_t i = 0; i < kPairs; i += 23) {
        CHECK(ibv_req_notify_cq(queues[1], 0) == 0);
        ibv_wc wc;
        CHECK(ibv_poll_cq(queues[1], 1, &wc) == 0);
        post_receive(*pairs[i]->server, i, far[i]->sge(0, 20'000));
        post(*pairs[i]->client, {.wr_id = i, .flags = 0}, {near[i]->sge(0, 100)});
        pollfd waiting{channels[1]->fd, POLLIN, 0};
        CHECK(::poll(&waiting, 1, kHangMs) == 1);
        ibv_cq* ready = nullptr;
        void* ready_context = nullptr;
        CHECK(provider().data_path_verbs()->get_cq_event(channels[1], &ready, &ready_context) == 0);
        provider().data_path_verbs()->ack_cq_events(ready, 1);
        CHECK(pairs[i]->server->completion().wr_id == i);
      }
    }
  }
  for (int side = 0; side < 2; side++) {
    CHECK(provider().destroy_cq(queues[side]) == 0);
    if (channel) CHECK(provider().destroy_comp_channel(channels[side]) == 0);
  }
}

// Several threads post on one queue pair while others poll its queue.
void many_posters() {
  constexpr int kPosters = 3;
  const uint64_t kEach = effort(5000);
  Listener listener;
  Pair pair(listener, {.depth = 64}, {});
  Memory near(pair.client->pd, kPosters * 64), far(pair.server->pd, kPosters * 64);
  std::atomic<uint64_t> completed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kPosters; t++) {
    threads.emplace_back([&, t] {
      const size_t at = static_cast<size_t>(t) * 64;
      for (uint64_t i = 0; i < kEach; i++) {
        post_patiently(*pair.client,
                       i % 3 == 2 ? read_from(remote(far), at, i) : write_to(remote(far), at, i),
                       {near.sge(at, 64)});
      }
    });
  }
  for (int t = 0; t < 2; t++)
    threads.emplace_back([&] { take_completions(pair.client->cq, completed, kPosters * kEach); });
  for (std::thread& thread : threads) thread.join();
}

// --- A thousand connections that do nothing, both ends in this process.

size_t resident_bytes() {  // shared memory counts, once for the process
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  size_t pages = 0, resident = 0;
  CHECK(file != nullptr && std::fscanf(file, "%zu %zu", &pages, &resident) == 2);
  std::fclose(file);
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

std::chrono::nanoseconds processor_time() {
#if defined(__SANITIZE_THREAD__)
  // Of the provider's thread: TSan has one of its own, which looks at all of the process's memory.
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "rdmakit-shm") continue;
    long long used = -1;
    std::ifstream(task.path() / "schedstat") >> used;
    CHECK(used >= 0);
    return std::chrono::nanoseconds(used);
  }
  CHECK(false, "no thread is called rdmakit-shm");
#endif
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

void thousand_idle(uint32_t depth, [[maybe_unused]] size_t most_bytes) {
  constexpr size_t kPairs = 1000;
  rlimit files{};
  CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
  Listener listener;
  ibv_pd* pd = provider().alloc_pd(context());
  ibv_cq* queue = provider().create_cq(context(), 4096, nullptr, nullptr, Progress::manual);
  CHECK(pd != nullptr && queue != nullptr);
  {
    // Many regions of others: what a queue pair costs does not grow with them.
    ibv_pd* elsewhere = provider().alloc_pd(context());
    std::vector<std::unique_ptr<Memory>> others;
    for (int i = 0; i < 2000; i++) others.push_back(std::make_unique<Memory>(elsewhere, 4096));
    Memory memory(pd, 4096);
    others.clear();
    CHECK(provider().dealloc_pd(elsewhere) == 0);
    const Options options{.depth = depth, .sge = 1, .inline_data = 64, .cq = queue, .pd = pd};
    std::vector<std::unique_ptr<Pair>> pairs;
    const size_t before = resident_bytes();
    for (size_t i = 0; i < kPairs; i++) {
      pairs.push_back(std::make_unique<Pair>(listener, options, options));
      post_receive(*pairs.back()->server, i, memory.sge(0, 64));
      post(*pairs.back()->client, {.wr_id = i, .flags = 0}, {memory.sge(0, 64)});
    }
    ibv_wc wc;
    for (size_t received = 0; received < kPairs;) {
      const int count = ibv_poll_cq(queue, 1, &wc);
      CHECK(count == 0 || (count == 1 && wc.status == IBV_WC_SUCCESS));
      received += static_cast<size_t>(count);
    }
    const size_t each = (resident_bytes() - before) / (2 * kPairs);
    // The least of a few times: a progress thread that spins does so in each of them.
    std::chrono::nanoseconds idle = std::chrono::nanoseconds::max();
    for (int i = 0; i < 5 && idle >= std::chrono::milliseconds(10); i++) {
      const auto used = processor_time();
      std::this_thread::sleep_for(std::chrono::seconds(1));
      idle = std::min<std::chrono::nanoseconds>(idle, processor_time() - used);
    }
    std::printf("  depth %u: %zu bytes a queue pair; idle, %.3f%% of a core\n", depth, each,
                100.0 * static_cast<double>(idle.count()) / 1e9);
    CHECK(idle < std::chrono::milliseconds(10));
    CHECK(rdmakit::shm::ProgressThread::instance().deadlines() == 0);  // those of connecting are over
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(each < most_bytes);
#endif
  }
  CHECK(provider().destroy_cq(queue) == 0 && provider().dealloc_pd(pd) == 0);
}

STRESS(shm_many) {
  timed("1,000 idle, depth 16", [] { thousand_idle(16, 24 << 10); });
  timed("1,000 idle, depth 128", [] { thousand_idle(128, 24 << 10); });
  timed("shared queue", [] { shared_queue(false); });
  timed("shared queue and channel", [] { shared_queue(true); });
  timed("many posters", many_posters);
  const Holdings before = holdings();
  timed("connections come and go", [] { connect_and_disconnect(4, effort(250)); });
  const Holdings after = holdings();
  CHECK(after.descriptors == before.descriptors && after.mappings == before.mappings);
  std::puts("ok");
  return 0;
}

}  // namespace shm_many_stress
