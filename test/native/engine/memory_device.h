// A verbs device made of memory: WRITE and READ are memcpy, late and in order, with failures on demand.
// It lets tests of the block engine reach what no working network shows: a server that hangs, one that
// dies in the middle of a batch, a completion that comes before the data are placed (iWARP).
//
// It runs when the queue is polled, on the poller's thread; a timerfd is its completion channel.
#pragma once

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "rdmakit/handle.h"

namespace memory_device {

using namespace rdmakit;

inline uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// A handle that owns its object.
template <typename Object>
struct Owned : Handle {
  template <typename... Arguments>
  explicit Owned(HandleKind what, const DataPathVerbs* table, Arguments&&... arguments)
      : value(std::forward<Arguments>(arguments)...) {
    abi = kHandleAbi;
    kind = what;
    object = &value;
    verbs = table;
    capabilities = 0;
    max_inline_data = 0;
    retain = [](Handle* self) { static_cast<Owned*>(self)->references++; };
    release = [](Handle* self) {
      auto* owned = static_cast<Owned*>(self);
      if (--owned->references == 0) std::unique_ptr<Owned>{owned};
    };
  }
  Object value;
  std::atomic<int> references{0};
};

// Of memory that nobody else knows yet. ThreadSanitizer would keep two bytes for each that it sees written:
// for most tests more work than all else that they do.
__attribute__((no_sanitize("thread"), noinline)) inline void fill_unwatched(uint8_t* memory, size_t bytes,
                                                                            uint8_t byte) {
  auto* const words =
      reinterpret_cast<volatile uint64_t*>(memory);  // or it becomes a memset, which is watched
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) words[i] = byte * 0x0101010101010101u;
}

// A swap-server: memory behind one rkey.
class Server {
 public:
  enum class Mode { healthy, hung, dead };

  Server(size_t bytes, uint32_t key) : bytes_(bytes), key_(key) {
    memory_ = static_cast<uint8_t*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    // Never zeros: a page that was not filled before its first partial write would show.
    fill_unwatched(memory_, bytes, 0xdb);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() { munmap(memory_, bytes_); }

  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_); }
  uint32_t key() const { return key_; }
  void set_mode(Mode mode) { mode_ = mode; }
  Mode mode() const { return mode_; }
  // Somebody takes the session up: queue pairs of before are destroyed, and the memory is as they left it.
  void resume() {
    const std::unique_lock lock(using_);
    session_++;
    mode_ = Mode::healthy;
  }
  uint32_t session() const { return session_; }
  // While it is held the session is not taken up.
  std::shared_lock<std::shared_mutex> use() { return std::shared_lock(using_); }

  bool covers(uint64_t address, uint32_t length, uint32_t key) const {
    return key == key_ && address >= this->address() && length <= bytes_ &&
           address - this->address() <= bytes_ - length;
  }
  // One page at a time under a lock: overlapping requests of a test are its business, data races
  // between lanes are ours.
  void copy(uint64_t address, uint8_t* local, uint32_t length, bool write) {
    while (length > 0) {
      const uint64_t at = address - this->address();
      const auto step = static_cast<uint32_t>(std::min<uint64_t>(length, 4096 - at % 4096));
      const std::lock_guard lock(locks_[at / 4096 % locks_.size()]);
      if (write) {
        std::memcpy(memory_ + at, local, step);
      } else {
        std::memcpy(local, memory_ + at, step);
      }
      address += step;
      local += step;
      length -= step;
    }
  }

 private:
  const size_t bytes_;
  const uint32_t key_;
  uint8_t* memory_;
  std::atomic<Mode> mode_{Mode::healthy};
  std::atomic<uint32_t> session_{0};
  std::shared_mutex using_;
  std::array<std::mutex, 64> locks_;
};

struct Behaviour {
  uint64_t delay_ns = 0;       // until an operation is done, at least
  uint64_t jitter_ns = 0;      // and at most this much longer
  uint64_t ns_per_byte = 0;    // of a wire that each queue pair has to itself
  bool iwarp = false;          // a WRITE completes at once and is placed later
  bool keeps_flushes = false;  // after an error nothing completes any more: a broken device
};

class QueuePair;

struct Channel : ibv_comp_channel {
  ~Channel() { close(fd); }
  std::atomic<int> event_error{0};
  std::atomic<uint64_t> looks{0};
};

struct CompletionQueue : ibv_cq {
  // An event, also where the queue is just being armed.
  void look() {
    const std::lock_guard holds(lock);
    const itimerspec now{{0, 0}, {0, 1}};
    timerfd_settime(channel->fd, 0, &now, nullptr);
  }
  std::mutex lock;  // servers come while others are polled
  std::vector<QueuePair*> queue_pairs;
  std::atomic<pid_t> poller{0};  // the thread that polls it
  std::atomic<int> arm_error{0};
  // Until the queue is armed next this server hangs, and what it then completes raises no event, for it has
  // come before.
  std::atomic<Server*> completes_before_armed{nullptr};
};

struct Region : ibv_mr {};

class QueuePair : public ibv_qp {
 public:
  QueuePair(const CqRef& cq, Server& target, const Behaviour& how, uint32_t number)
      : server(target), behaviour(how), session(target.session()), entries(kDepth), queue_(cq) {
    qp_num = number;
    send_cq = recv_cq = cq.get();
    const std::lock_guard lock(queue().lock);
    queue().queue_pairs.push_back(this);
  }
  ~QueuePair() {
    const std::lock_guard lock(queue().lock);
    std::erase(queue().queue_pairs, this);
  }

  int post(ibv_send_wr* wr, ibv_send_wr** refused) {
    const uint64_t time = now();
    for (; wr != nullptr; wr = wr->next) {
      if (tail - std::min(head, placed) == kDepth) {
        *refused = wr;
        return ENOMEM;
      }
      Entry& entry = entries[tail++ % kDepth];
      entry.id = wr->wr_id;
      entry.write = wr->opcode == IBV_WR_RDMA_WRITE;
      entry.local = reinterpret_cast<uint8_t*>(wr->sg_list[0].addr);
      entry.length = wr->sg_list[0].length;
      entry.remote = wr->wr.rdma.remote_addr;
      entry.key = wr->wr.rdma.rkey;
      entry.executed = false;
      entry.status = IBV_WC_SUCCESS;
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const uint64_t jitter = behaviour.jitter_ns == 0 ? 0 : (seed >> 33) % behaviour.jitter_ns;
      last_due =
          std::max(last_due, time + behaviour.delay_ns + jitter) + entry.length * behaviour.ns_per_byte;
      entry.due = last_due;
      // Completed before placed: the caller may reuse its buffer, so the bytes are kept here.
      if (behaviour.iwarp && entry.write) entry.kept.assign(entry.local, entry.local + entry.length);
    }
    return 0;
  }

  int poll(int count, ibv_wc* completions, uint64_t time) {
    execute(time);
    int done = 0;
    while (done < count && head != tail) {
      Entry& entry = entries[head % kDepth];
      const bool early = behaviour.iwarp && entry.write && !failed && mode() == Server::Mode::healthy;
      if (!entry.executed && !early) break;
      completions[done] = {};
      completions[done].wr_id = entry.id;
      completions[done].status = entry.executed ? entry.status : IBV_WC_SUCCESS;
      completions[done].qp_num = qp_num;
      done++;
      head++;
    }
    return done;
  }

  void to_error() {
    if (failed) return;
    failed = true;
    fail_from(now());
  }

  // When poll() may have something; 0: unknown.
  uint64_t next_event() const {
    if (head == tail) return 0;
    const Entry& entry = entries[head % kDepth];
    if (entry.executed || (behaviour.iwarp && entry.write)) return 1;
    if (failed) return behaviour.keeps_flushes ? 0 : std::max<uint64_t>(flush_at, 1);
    return mode() == Server::Mode::hung ? 0 : entry.due;
  }

 private:
  static constexpr size_t kDepth = 512;
  struct Entry {
    uint64_t id = 0;
    uint64_t remote = 0;
    uint64_t due = 0;
    uint8_t* local = nullptr;
    uint32_t length = 0;
    uint32_t key = 0;
    bool write = false;
    bool executed = false;
    ibv_wc_status status = IBV_WC_SUCCESS;
    std::vector<uint8_t> kept;
  };

  void execute(uint64_t time) {
    // Entries completed early are still executed, in order.
    for (; placed != tail; placed++) {
      Entry& entry = entries[placed % kDepth];
      if (failed) {
        if (behaviour.keeps_flushes || time < flush_at) return;
        if (!entry.executed) entry.status = IBV_WC_WR_FLUSH_ERR;
        entry.executed = true;
        continue;
      }
      const auto using_it = server.use();
      const Server::Mode how = mode();
      if (how == Server::Mode::hung || entry.due > time) return;
      entry.executed = true;
      if (how == Server::Mode::dead) {
        entry.status = IBV_WC_RETRY_EXC_ERR;
      } else if (!server.covers(entry.remote, entry.length, entry.key)) {
        entry.status = IBV_WC_REM_ACCESS_ERR;
      } else {
        uint8_t* local = behaviour.iwarp && entry.write ? entry.kept.data() : entry.local;
        server.copy(entry.remote, local, entry.length, entry.write);
        continue;
      }
      failed = true;
      fail_from(time);
    }
  }
  Server::Mode mode() const { return session == server.session() ? server.mode() : Server::Mode::dead; }
  CompletionQueue& queue() const { return *static_cast<CompletionQueue*>(send_cq); }
  void fail_from(uint64_t time) { flush_at = time + behaviour.delay_ns + behaviour.jitter_ns; }

 public:
  Server& server;
  const Behaviour behaviour;
  const uint32_t session;
  bool failed = false;

 private:
  std::vector<Entry> entries;
  size_t head = 0;    // next to complete
  size_t placed = 0;  // next to execute
  size_t tail = 0;
  uint64_t last_due = 0;
  uint64_t flush_at = 0;
  uint64_t seed = 88172645463325252u;
  CqRef queue_;
};

inline int poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
  const uint64_t time = now();
  int done = 0;
  auto* const queue = static_cast<CompletionQueue*>(cq);
  if (queue->poller.load(std::memory_order_relaxed) == 0) queue->poller = gettid();
  const std::lock_guard lock(queue->lock);
  for (QueuePair* qp : queue->queue_pairs) done += qp->poll(count - done, completions + done, time);
  return done;
}

inline int req_notify_cq(ibv_cq* cq, int) {
  if (const int error = static_cast<CompletionQueue*>(cq)->arm_error; error != 0) return error;
  if (Server* const late = static_cast<CompletionQueue*>(cq)->completes_before_armed.exchange(nullptr)) {
    late->set_mode(Server::Mode::healthy);
    return 0;
  }
  uint64_t first = UINT64_MAX;
  const std::lock_guard lock(static_cast<CompletionQueue*>(cq)->lock);
  for (const QueuePair* qp : static_cast<CompletionQueue*>(cq)->queue_pairs) {
    const uint64_t at = qp->next_event();
    if (at != 0) first = std::min(first, at);
  }
  itimerspec timer{};
  if (first != UINT64_MAX) {
    timer.it_value.tv_sec = static_cast<time_t>(first / 1'000'000'000);
    timer.it_value.tv_nsec = static_cast<long>(first % 1'000'000'000);
  }
  timerfd_settime(cq->channel->fd, TFD_TIMER_ABSTIME, &timer, nullptr);
  return 0;
}

inline int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** refused) {
  return static_cast<QueuePair*>(qp)->post(wr, refused);
}

inline constexpr DataPathVerbs kVerbs{
    [](ibv_comp_channel* channel, ibv_cq** cq, void** context) {
      auto* const own = static_cast<Channel*>(channel);
      own->looks++;
      if (const int error = own->event_error; error != 0) return error;
      uint64_t expirations;
      if (read(channel->fd, &expirations, sizeof expirations) != sizeof expirations) return EAGAIN;
      *cq = nullptr;
      *context = nullptr;
      return 0;
    },
    [](ibv_cq*, unsigned int) {},
    [](ibv_qp* qp) {
      static_cast<QueuePair*>(qp)->to_error();
      return 0;
    },
};

class Device {
 public:
  explicit Device(bool iwarp) {
    device_.transport_type = iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    context_.device = &device_;
    context_.ops.poll_cq = poll_cq;
    context_.ops.req_notify_cq = req_notify_cq;
    context_.ops.post_send = post_send;
    pd_.context = &context_;
  }
  ChannelRef channel() {
    auto owned = std::make_unique<Owned<Channel>>(HandleKind::completion_channel, &kVerbs);
    owned->value.context = &context_;
    owned->value.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return ChannelRef(owned.release());
  }
  CqRef queue(const ChannelRef& channel) {
    auto owned = std::make_unique<Owned<CompletionQueue>>(HandleKind::completion_queue, &kVerbs);
    owned->value.context = &context_;
    owned->value.channel = channel.get();
    owned->value.cqe = 2048;
    return CqRef(owned.release());
  }
  QpRef queue_pair(const CqRef& cq, Server& server, const Behaviour& behaviour) {
    auto owned = std::make_unique<Owned<QueuePair>>(HandleKind::queue_pair, &kVerbs, cq, server, behaviour,
                                                    ++numbers_);
    owned->value.context = &context_;
    owned->value.pd = &pd_;
    return QpRef(owned.release());
  }
  MrRef region(void* memory, size_t bytes) {
    auto owned = std::make_unique<Owned<Region>>(HandleKind::memory_region, &kVerbs);
    owned->value.context = &context_;
    owned->value.pd = &pd_;
    owned->value.addr = memory;
    owned->value.length = bytes;
    owned->value.lkey = 0x1ced;
    return MrRef(owned.release());
  }

 private:
  ibv_device device_{};
  ibv_context context_{};
  ibv_pd pd_{};
  uint32_t numbers_ = 0;
};

}  // namespace memory_device
