#include "shm/queue-pair/queue_pair.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "shm/completion/completion_channel.h"
#include "shm/completion/completion_queue.h"
#include "shm/device.h"
#include "shm/memory/protection_domain.h"
#include "shm/queue-pair/queue_pair_request.h"
#include "shm/setup/connection.h"

namespace rdmakit::shm {
namespace {

std::atomic<uint32_t> next_queue_pair_number{0};

}  // namespace

std::unique_ptr<QueuePair> QueuePair::create(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  errno = attributes->srq == nullptr ? check_attributes(*attributes) : EOPNOTSUPP;
  if (errno != 0) return nullptr;
  const ibv_qp_cap& cap = attributes->cap = granted(*attributes);
  const AreaShape shape{cap.max_recv_wr, cap.max_recv_sge,
                        CompletionQueue::of(attributes->recv_cq)->stamped()};
  UniqueFd fd;
  std::shared_ptr<SharedMapping> area =
      SharedMapping::create("rdmakit-queue-pair", shape.size(), Sharing::writable, fd);
  if (area == nullptr) return nullptr;
  return std::unique_ptr<QueuePair>(new QueuePair(pd, *attributes, shape, std::move(area), std::move(fd)));
}

QueuePair::QueuePair(ibv_pd* pd, const ibv_qp_init_attr& attributes, AreaShape shape,
                     std::shared_ptr<SharedMapping> area, UniqueFd area_fd)
    : QueuePairBase(
          pd, attributes, attributes.cap,
          next_queue_pair_number.fetch_add(1, std::memory_order_relaxed) % 0xffffff + 1),  // never 0
      shape_(shape),
      area_fd_(std::move(area_fd)),
      area_(std::move(area)),
      hazard_(std::make_shared<Hazard>(area_)),
      header_(reinterpret_cast<AreaHeader*>(area_->data())),
      slots_(reinterpret_cast<Slot*>(area_->data() + shape.slots_at())),
      stamps_(reinterpret_cast<const uint64_t*>(area_->data() + shape.stamps_at())) {
  header_->floor.store(UINT32_MAX, std::memory_order_relaxed);
  send_mask_ = cap_.max_send_wr - 1;
  receive_mask_ = shape_.entries - 1;
  // One piece, and left untouched: an idle queue pair costs address space, not memory.
  const size_t send_sges = size_t{cap_.max_send_wr} * cap_.max_send_sge;
  const size_t receive_sges = size_t{cap_.max_recv_wr} * cap_.max_recv_sge;
  const size_t inline_bytes = size_t{cap_.max_send_wr} * cap_.max_inline_data;
  static_assert(sizeof(ReceiveWork) % 8 == 0 && sizeof(ibv_sge) % 8 == 0 && sizeof(SendWork) % 8 == 0);
  rings_ = std::make_unique_for_overwrite<uint8_t[]>(cap_.max_recv_wr * sizeof(ReceiveWork) +
                                                     (receive_sges + send_sges) * sizeof(ibv_sge) +
                                                     cap_.max_send_wr * sizeof(SendWork) + inline_bytes);
  receive_works_ = reinterpret_cast<ReceiveWork*>(rings_.get());
  receive_sges_ = reinterpret_cast<ibv_sge*>(receive_works_ + cap_.max_recv_wr);
  send_sges_ = receive_sges_ + receive_sges;
  send_works_ = reinterpret_cast<SendWork*>(send_sges_ + send_sges);
  inline_ = reinterpret_cast<uint8_t*>(send_works_ + cap_.max_send_wr);
  send_queue()->users++;
  receive_queue()->users++;
  domain()->join(this);  // last: from here on the ends of regions, on other threads, come by
}

QueuePair::~QueuePair() {
  domain()->leave(this);
  // The end of a region that has given the peer up may have asked for it since retire().
  ProgressThread::instance().cancel(errand_);
  send_queue()->users--;
  receive_queue()->users--;
}

CompletionQueue* QueuePair::send_queue() const { return CompletionQueue::of(send_cq); }
CompletionQueue* QueuePair::receive_queue() const { return CompletionQueue::of(recv_cq); }
ProtectionDomain* QueuePair::domain() const { return static_cast<ProtectionDomain*>(pd); }

int QueuePair::table_fd() const { return domain()->table_fd(); }
int QueuePair::event_fd() const {
  CompletionChannel* channel = receive_queue()->event_channel();
  return channel == nullptr ? -1 : channel->peers_fd();
}

void QueuePair::set_connection(const std::shared_ptr<Connection>& connection) {
  connection_ = connection;
  connection_number_ = connection->number();
}

std::shared_ptr<Link> QueuePair::link() {
  const std::lock_guard lock(send_lock_);
  return link_;
}

int QueuePair::modify(ibv_qp_attr* attributes, int mask) {
  if ((mask & IBV_QP_STATE) == 0) return mask == 0 ? 0 : EOPNOTSUPP;
  switch (attributes->qp_state) {
    case IBV_QPS_ERR:
      fail(Failure{});
      return 0;
    case IBV_QPS_INIT: {
      const std::lock_guard lock(send_lock_);
      if (state_.load() != State::reset) return EINVAL;
      enter(State::init, IBV_QPS_INIT);
      return 0;
    }
    case IBV_QPS_RESET:
      return reset();
    default:
      return EOPNOTSUPP;  // connecting takes a ConnectionId
  }
}

// Only a queue pair that was never connected leaves the error state: the area of a connection stays closed,
// so that a peer which has not noticed finds it closed.
int QueuePair::reset() {
  const std::lock_guard ending(ending_mutex_);
  const std::lock_guard members_lock(receive_queue()->members_lock());
  const std::lock_guard lock(send_lock_);
  const std::lock_guard receive_lock(receive_lock_);
  if (link_ != nullptr || !connection_.expired()) return EOPNOTSUPP;
  enter(State::reset, IBV_QPS_RESET);
  // Posted requests are dropped, and so are their completions: they would count as those of new requests.
  send_queue()->forget(&send_polled_);
  receive_queue()->forget(&receive_polled_);
  send_head_ = send_tail_ = 0;
  send_polled_.store(0);
  receive_head_ = 0;
  receive_polled_.store(0);
  receive_tail_.store(0);
  header_->posted.store(0);
  header_->closed.store(0);
  broken_ = ended_ = at_rest_ = false;
  return 0;
}

void QueuePair::query(ibv_qp_attr* attributes, ibv_qp_init_attr* init) const {
  if (query_base(attributes, init) != State::connected) return;
  attributes->dest_qp_num = peer_->queue_pair();
  attributes->rnr_retry = 7;
}

int QueuePair::start(std::unique_ptr<Peer> peer, std::shared_ptr<Link> link) {
  {
    const std::lock_guard lock(send_lock_);
    if (state_.load() != State::init) return ECONNABORTED;
    peer_ = std::move(peer);
    peer_stamped_ = peer_->stamped();
    link_ = std::move(link);
    area_fd_.reset();  // the peer has it
    enter(State::connected, IBV_QPS_RTS);
  }
  domain()->announce_all(*this);
  receive_queue()->attach(this);
  if (send_queue() != receive_queue()) send_queue()->attach(this);
  return 0;
}

int QueuePair::fail(const Failure& failure) {
  const std::lock_guard ending(ending_mutex_);
  if (ended_) {
    finish_end();  // the peer may have cleared its hazard, or died
    return ending_.status;
  }
  ended_ = true;
  ending_ = failure;
  ending_since_ = Hazard::Clock::now();
  {
    const std::lock_guard lock(send_lock_);
    enter(State::error, IBV_QPS_ERR);
    flush_sends(failure.oldest_send);
  }
  // Close, then check who is using it; the peer announces its use, then checks whether this is closed.
  header_->closed.store(1, std::memory_order_seq_cst);
  for (int i = 0; i < kHazardSpins && hazard_->names_anything(); i++) {
  }
  if (!finish_end()) look_soon();
  return ending_.status;
}

// The last part of an end, under ending_mutex_. False, and nothing was done, while the peer may end its copy
// in time.
bool QueuePair::finish_end() {
  if (!ended_ || at_rest_) return true;
  if (ending_.peer_keeps_rules && !hazard_->given_up() && hazard_->holds_anything()) {
    if (Hazard::Clock::now() - ending_since_ < kPeerPatience) return false;
    hazard_->give_up();
  }
  at_rest_ = true;
  {
    // Complete messages are delivered, the other receives are flushed.
    const std::lock_guard lock(receive_queue()->members_lock());
    ibv_wc arrival;
    while (take_next(arrival)) receive_queue()->push(arrival, true, &receive_polled_, receive_head_);
    broken_ = true;
    flush_receives();
  }
  if (ending_.event != Failure::kNothing) {
    events_.fetch_or(ending_.event);
    ProgressThread::instance().call(errand_);
  }
  const std::shared_ptr<Link> link = this->link();
  if (link == nullptr) return true;
  link->end(ending_.peer_status, ending_.peer_blame);
  Connection::queue_pair_ended(connection_, ending_.status);
  return true;
}

// The progress thread looks at the end again, the later the longer the peer takes. Under ending_mutex_.
void QueuePair::look_soon() {
  const auto waited = Hazard::Clock::now() - ending_since_;
  ProgressThread::instance().call_at(connection_number_,
                                     Hazard::Clock::now() + std::chrono::milliseconds(1) + waited / 8);
}

void QueuePair::fail_later(const Failure& failure) {
  {
    const std::lock_guard lock(later_lock_);
    if (fails_later_) return;
    fails_later_ = true;
    later_ = failure;
  }
  ProgressThread::instance().call(errand_);
}

void QueuePair::run_errand() {
  bool fails;
  Failure failure;
  {
    const std::lock_guard lock(later_lock_);
    fails = fails_later_;
    failure = later_;
  }
  if (fails) fail(failure);
  if (ticks_.exchange(false)) {
    if (const std::shared_ptr<Link> at = link()) at->wake_soon();
  }
  raise_events();
}

void QueuePair::raise_events() {
  const uint32_t events = events_.exchange(0);
  const auto raise = [&](uint32_t event, ibv_event_type type) {
    if (events & event) async_events().emit({type, reinterpret_cast<uint64_t>(static_cast<ibv_qp*>(this))});
  };
  raise(Failure::kAccess, IBV_EVENT_QP_ACCESS_ERR);
  raise(Failure::kRequest, IBV_EVENT_QP_REQ_ERR);
  raise(Failure::kFatal, IBV_EVENT_QP_FATAL);
}

bool QueuePair::retire() {
  fail(Failure{});
  const auto at_rest = [this] {
    const std::lock_guard ending(ending_mutex_);
    return finish_end();
  };
  for (long pause = 20'000; !at_rest(); pause = std::min(2 * pause, 5'000'000L)) {
    const timespec time{0, pause};
    nanosleep(&time, nullptr);
  }
  receive_queue()->detach(this);
  send_queue()->detach(this);
  ProgressThread::instance().cancel(errand_);  // now that no completion queue asks for it any more
  send_queue()->forget(&send_polled_);
  receive_queue()->forget(&receive_polled_);
  return !hazard_->holds_anything();
}

bool QueuePair::gives_unshared() { return static_cast<ProtectionDomain*>(pd)->gives_unshared(); }

bool QueuePair::out_of_reach() { return static_cast<ProtectionDomain*>(pd)->out_of_reach(this); }

int QueuePair::add_segment(uint32_t number, uint32_t generation, int fd) {
  // What else peers have mapped is bounded by the number of connections.
  if (SharedMapping::of_peers() >= most_mappings_of_peers()) return ENOMEM;
  // Mapped and populated before the lock: a post must not wait for that.
  std::shared_ptr<SharedMapping> mapping = SharedMapping::open(fd, 1, Sharing::writable);
  if (mapping == nullptr) return errno;
  mapping->populate(fd);
  const std::lock_guard lock(send_lock_);
  return peer_ == nullptr ? 0 : peer_->add_segment(number, generation, std::move(mapping));
}

void QueuePair::remove_segment(uint32_t number, uint32_t generation) {
  const std::lock_guard lock(send_lock_);
  if (peer_ != nullptr) peer_->remove_segment(number, generation);
}

void QueuePair::finish_own_copies() {
  { const std::lock_guard sends(send_lock_); }
  { const std::lock_guard receives(receive_queue()->members_lock()); }
}

void QueuePair::announce(const std::shared_ptr<Segment>& segment, uint32_t number) {
  if (const std::shared_ptr<Link> at = link()) at->announce(segment, number);
}

void QueuePair::withdraw(const std::shared_ptr<Segment>& segment, uint32_t number) {
  if (const std::shared_ptr<Link> at = link()) at->withdraw(segment, number);
}

}  // namespace rdmakit::shm
