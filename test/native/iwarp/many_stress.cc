// Many at once over iwarp: connections, queue pairs of one queue, threads, and regions that come and go.
#include <fcntl.h>

#include "iwarp/progress_thread.h"
#include "traffic.h"

namespace iwarp_many_stress {

using namespace fixture;

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; fd++) count += fcntl(fd, F_GETFD) != -1;
  return count;
}

void connect_and_disconnect(int threads, int each) {
  std::vector<std::thread> running;
  for (int t = 0; t < threads; t++) {
    running.emplace_back([=] {
      Listener listener;
      for (int i = 0; i < each; i++) {
        const Progress progress = i % 2 ? Progress::manual : Progress::automatic;
        Pair pair(listener, {.progress = progress, .channel = i % 3 == 0, .depth = 8},
                  {.progress = progress, .depth = 8});
        Memory near(pair.client->pd, 64), far(pair.server->pd, 64);
        near.fill(static_cast<uint64_t>(i));
        post_receive(*pair.server, 1, far.sge(0, 64));
        post(*pair.client, {.wr_id = 2}, {near.sge(0, 64)});
        pump(*pair.client, 1, *pair.server, 1);
        CHECK(near.bytes == far.bytes);
        if (i % 4 == 0) CHECK(pair.client->id.id->disconnect() == 0);
        if (i % 4 == 1) pair.server->destroy_qp();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

// Many queue pairs on one completion queue: the epoll path of manual progress.
void shared_queue(Progress progress, bool channel) {
  constexpr size_t kPairs = 40;
  Listener listener;
  ibv_comp_channel* channels[2] = {};
  ibv_cq* queues[2];
  for (int side = 0; side < 2; side++) {
    if (channel) channels[side] = provider().create_comp_channel(context());
    queues[side] = provider().create_cq(context(), 4096, nullptr, channels[side], progress);
    CHECK(queues[side] != nullptr);
  }
  {
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<std::unique_ptr<Memory>> near, far;
    for (size_t i = 0; i < kPairs; i++) {
      pairs.push_back(std::make_unique<Pair>(listener,
                                             Options{.progress = progress, .depth = 32, .cq = queues[0]},
                                             Options{.progress = progress, .depth = 32, .cq = queues[1]}));
      near.push_back(std::make_unique<Memory>(pairs[i]->client->pd, 20'000));
      far.push_back(std::make_unique<Memory>(pairs[i]->server->pd, 20'000));
      near[i]->fill(i);
    }
    // Those of connecting are over; each end has one for its next look at its peer's host.
    CHECK(rdmakit::iwarp::ProgressThread::instance().deadlines() == 2 * kPairs);
    for (int round = 0; round < 20; round++) {
      for (size_t i = 0; i < kPairs; i++) {
        post_receive(*pairs[i]->server, i, far[i]->sge(0, 20'000));
        post(*pairs[i]->client, {.wr_id = i}, {near[i]->sge(0, static_cast<size_t>(round) * 1000)});
      }
      pump(*pairs[0]->client, kPairs, *pairs[0]->server, kPairs);
      for (size_t i = 0; i < kPairs; i++) {
        CHECK(std::memcmp(near[i]->bytes.data(), far[i]->bytes.data(), static_cast<size_t>(round) * 1000) ==
              0);
      }
      if (round % 5 == 4) {  // some go away while others stay
        const size_t gone = static_cast<size_t>(round) / 5;
        near.erase(near.begin() + static_cast<long>(gone));
        far.erase(far.begin() + static_cast<long>(gone));
        pairs.erase(pairs.begin() + static_cast<long>(gone));
        pairs.push_back(std::make_unique<Pair>(listener,
                                               Options{.progress = progress, .depth = 32, .cq = queues[0]},
                                               Options{.progress = progress, .depth = 32, .cq = queues[1]}));
        near.push_back(std::make_unique<Memory>(pairs.back()->client->pd, 20'000));
        far.push_back(std::make_unique<Memory>(pairs.back()->server->pd, 20'000));
        near.back()->fill(gone);
      }
    }
  }
  for (int side = 0; side < 2; side++) {
    CHECK(provider().destroy_cq(queues[side]) == 0);
    if (channel) CHECK(provider().destroy_comp_channel(channels[side]) == 0);
  }
}

// Several threads post on one queue pair while others poll its queue.
void many_posters(Progress progress) {
  constexpr int kPosters = 3;
  const uint64_t kEach = effort(3000);
  Listener listener;
  Pair pair(listener, {.progress = progress, .depth = 64}, {.progress = progress});
  // READs land behind what WRITEs are sent from: an outstanding READ owns its sink.
  Memory near(pair.client->pd, 2 * kPosters * 64), far(pair.server->pd, kPosters * 64);
  std::atomic<uint64_t> completed{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kPosters; t++) {
    threads.emplace_back([&, t] {
      const size_t at = static_cast<size_t>(t) * 64;
      for (uint64_t i = 0; i < kEach; i++) {
        const bool read = i % 3 == 2;
        const Send send = read ? read_from(far, at, i) : write_to(far, at, i);
        const size_t local = read ? kPosters * 64 + at : at;
        int error;
        while ((error = try_post(*pair.client, send, {near.sge(local, 64)})) == ENOMEM)
          std::this_thread::yield();
        CHECK(error == 0);
      }
    });
  }
  for (int t = 0; t < 2; t++)
    threads.emplace_back([&] { take_completions(pair.client->cq, completed, kPosters * kEach); });
  std::thread server([&] {
    ibv_wc wc;
    while (!stop) {
      CHECK(ibv_poll_cq(pair.server->cq, 1, &wc) == 0);
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  server.join();
}

// Regions come and go while a peer writes to them: each WRITE lands or ends the connection.
void deregister_under_fire() {
  for (int round = 0; round < 5; round++) {
    Listener listener;
    Pair pair(listener, {}, {.progress = Progress::automatic});
    Memory near(pair.client->pd, 1 << 20);
    auto far = std::make_unique<Memory>(pair.server->pd, 1 << 20);
    const Send send = write_to(*far, 0, 1);
    std::atomic<int> written{0};
    std::thread remover([&] {
      while (written < 2 * round) std::this_thread::yield();
      far.reset();  // memory is freed right after dereg_mr
    });
    while (true) {
      const int error = try_post(*pair.client, send, {near.sge(0, 1 << 20)});
      CHECK(error == 0 || error == ENOMEM);
      ibv_wc wc;
      if (ibv_poll_cq(pair.client->cq, 1, &wc) != 1) continue;
      if (wc.status != IBV_WC_SUCCESS) break;
      written++;
    }
    remover.join();
  }
}

// A peer that never reads costs no more than its socket and its queues.
void peer_that_does_not_read() {
  Listener listener;
  Pair pair(listener, {.depth = 64, .reads = 4}, {.progress = Progress::automatic, .reads = 4});
  constexpr size_t kLength = 8 << 20;  // more than sockets hold
  Memory near(pair.client->pd, kLength), far(pair.server->pd, kLength);
  far.fill(1);
  for (uint64_t i = 0; i < 8; i++) post(*pair.client, read_from(far, 0, i), {near.sge(0, kLength)});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the responses back up; nothing tells of it
  for (uint64_t i = 0; i < 8; i++) pair.client->expect(i);
  CHECK(near.bytes == far.bytes);
}

// Of a deep send queue a program that has one request under way uses the first place, and few pages.
void deep_queue_little_used() {
  constexpr uint32_t kDepth = 4096;
  Listener listener;
  Pair pair(listener, {.depth = kDepth}, {.progress = Progress::automatic});
  Memory near(pair.client->pd, 512), far(pair.server->pd, 512);
  near.fill(1);
  Send send = write_to(far, 0, 0);
  send.flags |= IBV_SEND_INLINE;
  const auto write = [&] {
    post(*pair.client, send, {near.sge(0, 512)});
    pair.client->expect(0);
  };
  for (int i = 0; i < 100; i++) write();
  const long before = page_faults();
  for (uint32_t i = 0; i < kDepth; i++) write();
  CHECK(page_faults() - before < 250);  // with each place used, over 500: 2 MiB of inline bytes
  post_receive(*pair.server, 1, far.sge(0, 512));
  post(*pair.client, {.wr_id = 2, .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, {near.sge(0, 512)});
  pair.client->expect(2);
  pair.server->expect(1);  // behind all WRITEs
  CHECK(near.bytes == far.bytes);
}

STRESS(iwarp_many) {
  constexpr Progress kModes[] = {Progress::manual, Progress::automatic};
  for (const Progress mode : kModes) {
    timed("shared queue", [=] { shared_queue(mode, false); });
    timed("shared queue and channel", [=] { shared_queue(mode, true); });
    timed("many posters", [=] { many_posters(mode); });
  }
  timed("a deep queue", deep_queue_little_used);
  timed("deregister under fire", deregister_under_fire);
  timed("peer that does not read", peer_that_does_not_read);
  const size_t before = open_descriptors();
  timed("1,000 connections", [] { connect_and_disconnect(4, 250); });
  CHECK(open_descriptors() == before);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_many_stress
