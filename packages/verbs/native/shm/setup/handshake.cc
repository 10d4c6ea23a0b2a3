// Connection setup and the frames of an established connection. Under mutex_ on the progress thread.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "shm/queue-pair/copy.h"
#include "shm/setup/connection.h"

namespace rdmakit::shm {
namespace {

constexpr int kConnectTimeoutMs = 5'000;  // a full backlog, when resolve() named no other time
constexpr std::chrono::milliseconds kConnectRetry{5};
constexpr std::chrono::milliseconds kReplyTimeout{30'000};  // the peer's application decides
constexpr std::chrono::milliseconds kSegmentsTimeout{30'000};
constexpr int kFramesAtOnce = 64;  // then others have their turn

bool same_user_or_root(const Frame& frame) { return frame.uid == geteuid() || frame.uid == 0; }

}  // namespace

void Connection::fail(int status, Events& events) {
  stop_watching();
  socket_.reset();
  enter(State::ended);
  if (queue_pair_ != nullptr) queue_pair()->fail({.status = status, .peer_status = status});
  drop_link();
  events.push_back({CmEvent::Type::connect_failed, status, {}, nullptr});
}

void Connection::start_connect(Events& events) {
  if (state_ != State::connecting) return;
  UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (!made || setsockopt(made.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) {
    return fail(errno, events);
  }
  if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&peer_), peer_length_) != 0) {
    const auto now = ProgressThread::Clock::now();
    if (retry_until_ == ProgressThread::Clock::time_point::max()) {
      retry_until_ = now + std::chrono::milliseconds(timeout_ms_ > 0 ? timeout_ms_ : kConnectTimeoutMs);
    }
    if (errno != EAGAIN) return fail(errno == ENOENT ? ECONNREFUSED : errno, events);
    if (now > retry_until_) return fail(ETIMEDOUT, events);
    return set_deadline(kConnectRetry);  // the listener's backlog is full
  }
  socklen_t length = sizeof local_;
  getsockname(made.get(), reinterpret_cast<sockaddr*>(&local_), &length);
  if (queue_pair_ == nullptr) return fail(ECONNABORTED, events);
  make_link(std::move(made));
  int error = send_greeting(FrameType::request, 0);
  if (error == 0) error = ProgressThread::instance().watch(number_, socket());
  if (error != 0) return fail(error, events);
  enter(State::await_reply);
  set_deadline(kReplyTimeout);
}

void Connection::send_rejection(const std::vector<uint8_t>& private_data) {
  private_data_ = private_data;
  send_greeting(FrameType::reject, 0);
}

int Connection::send_greeting(FrameType type, int status) {
  GreetingFrame greeting{};
  greeting.header = header_of(type);
  greeting.status = status;
  greeting.private_length = static_cast<uint32_t>(private_data_.size());
  std::copy(private_data_.begin(), private_data_.end(), greeting.private_data);
  int fds[kMaxDescriptors];
  size_t count = 0;
  if (type != FrameType::reject) {
    greeting.receive_entries = queue_pair()->shape().entries;
    greeting.receive_sges = queue_pair()->shape().sges;
    greeting.queue_pair = queue_pair()->qp_num;
    fds[count++] = queue_pair()->area_fd();
    fds[count++] = queue_pair()->table_fd();
    if (queue_pair()->shape().stamped) greeting.flags |= kGreetingStamps;
    if (queue_pair()->event_fd() >= 0) {
      greeting.flags |= kGreetingEventFd;
      fds[count++] = queue_pair()->event_fd();
    }
  }
  return socket() < 0 ? ECONNRESET : send_frame(socket(), &greeting, sizeof greeting, {fds, count});
}

void Connection::read_reply(Events& events) {
  Frame frame;
  const int error = receive_frame(socket(), frame);
  if (error == EAGAIN) return;
  if (error != 0) return fail(error == EPIPE ? ECONNRESET : error, events);
  const GreetingFrame greeting = frame.greeting;
  const bool reply = frame.header.type == FrameType::accept || frame.header.type == FrameType::reject;
  if (!reply || greeting.private_length > kMaxPrivateData) return fail(EPROTO, events);
  if (!same_user_or_root(frame) && geteuid() != 0) return fail(EACCES, events);
  std::vector<uint8_t> bytes(greeting.private_data, greeting.private_data + greeting.private_length);
  if (frame.header.type == FrameType::reject) {
    if (greeting.status != 0) return fail(greeting.status, events);
    fail(ECONNREFUSED, events);
    events.back() = {CmEvent::Type::rejected, 0, std::move(bytes), nullptr};
    return;
  }
  peer_private_data_ = std::move(bytes);
  begin(greeting, frame, events);
}

void Connection::read_request() {
  auto frame = std::make_unique<Frame>();
  const int error = receive_frame(socket_.get(), *frame);
  if (error == EAGAIN) return;
  const GreetingFrame& greeting = frame->greeting;
  enter(State::ended);
  if (error == 0 && frame->header.type == FrameType::request && greeting.private_length <= kMaxPrivateData) {
    if (same_user_or_root(*frame)) {
      peer_private_data_.assign(greeting.private_data, greeting.private_data + greeting.private_length);
      request_ = std::move(frame);
      enter(State::requested);
      return;
    }
    GreetingFrame refusal{};
    refusal.header = header_of(FrameType::reject);
    refusal.status = EACCES;
    send_frame(socket_.get(), &refusal, sizeof refusal, {});
  }
  stop_watching();
  socket_.reset();
}

void Connection::finish_accept(Events& events) {
  if (state_ != State::requested) return;
  if (!socket_ || request_ == nullptr) return fail(ECONNRESET, events);
  if (queue_pair_ == nullptr) return fail(ECONNABORTED, events);
  const std::unique_ptr<Frame> request = std::move(request_);
  const GreetingFrame greeting = request->greeting;
  begin(greeting, *request, events);
}

// Both sides: the queue pair starts, the peer's regions are awaited.
void Connection::begin(const GreetingFrame& greeting, Frame& frame, Events& events) {
  if (queue_pair_ == nullptr) return fail(ECONNABORTED, events);
  std::unique_ptr<Peer> peer = Peer::open(greeting, frame);
  if (peer == nullptr) return fail(errno, events);
  const bool responder = frame.header.type == FrameType::request;
  const int reach = reach_of(peer->pid());
  if (responder) make_link(std::move(socket_));
  // The reply goes before the first announcement, and the area is in use from its arrival.
  const int error = responder ? send_greeting(FrameType::accept, reach) : 0;
  if (error != 0) return fail(error == EPIPE ? ECONNRESET : error, events);
  enter(State::completing);
  set_deadline(kSegmentsTimeout);
  started_ = queue_pair()->start(std::move(peer), link_) == 0;
  if (!started_) return fail(ECONNABORTED, events);
  // A responder with memory that the initiator may not reach waits for the initiator's report first: a
  // refusal comes before `established` at both ends.
  owes_synchronized_ = responder && queue_pair()->gives_unshared();
  if (owes_synchronized_) return;
  if (!responder && greeting.status != 0 && !queue_pair()->out_of_reach()) return fail(EPERM, events);
  link_->synchronized(responder ? 0 : reach);
}

void Connection::read_frames(Events& events) {
  for (int i = 0; i < kFramesAtOnce; i++) {
    Frame frame;
    int error = receive_frame(link_->socket(), frame);
    if (error == EAGAIN) break;
    if (error == EPIPE) return lost(Failure::lost(ECONNRESET), events);
    if (error == 0) error = take_frame(frame, events);
    if (error != 0) {
      if (queue_pair_ != nullptr)
        queue_pair()->fail(error == EPROTO ? Failure::violation() : Failure::fatal(error));
      return;
    }
    if (state_ != State::completing && state_ != State::established) return;
  }
  // Whatever came, it may be what a send has been waiting for.
  if (queue_pair_ != nullptr) queue_pair()->progress();
}

// 0 or an errno value, with which the connection ends.
int Connection::take_frame(Frame& frame, Events& events) {
  switch (frame.header.type) {
    case FrameType::announce:
      if (!frame.fds[0]) return EPROTO;
      if (queue_pair_ == nullptr) return 0;
      return queue_pair()->add_segment(frame.segment.number, frame.segment.generation, frame.fds[0].get());
    case FrameType::withdraw:
      if (queue_pair_ != nullptr)
        queue_pair()->remove_segment(frame.segment.number, frame.segment.generation);
      return 0;
    case FrameType::synchronized:
      if (state_ != State::completing) return EPROTO;
      if (frame.plain.status != 0 && queue_pair_ != nullptr && !queue_pair()->out_of_reach()) {
        fail(EPERM, events);
        return 0;
      }
      if (std::exchange(owes_synchronized_, false)) link_->synchronized(0);
      enter(State::established);
      events.push_back({CmEvent::Type::established, 0, std::move(peer_private_data_), nullptr});
      return 0;
    case FrameType::kick:
      return 0;
    case FrameType::end: {
      Failure failure{.status = frame.plain.status};
      if (frame.plain.blame == Blame::access) failure.event = Failure::kAccess;
      if (frame.plain.blame == Blame::request) failure.event = Failure::kRequest;
      lost(failure, events);
      return 0;
    }
    default:
      return EPROTO;
  }
}

// The peer has ended, or is dead.
void Connection::lost(const Failure& failure, Events& events) {
  stop_watching();
  link_->note_peer_over();
  const State before = state_;
  enter(State::ended);
  // When this side had failed by itself before, that is the reason.
  const int status = queue_pair_ != nullptr ? queue_pair()->fail(failure) : failure.status;
  const bool established = before == State::established;
  events.push_back({established ? CmEvent::Type::disconnected : CmEvent::Type::connect_failed,
                    established || status != 0 ? status : ECONNRESET,
                    {},
                    nullptr});
}

}  // namespace rdmakit::shm
