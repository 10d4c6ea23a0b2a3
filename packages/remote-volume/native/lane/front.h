// How requests come to a lane and how they are answered. A lane is built with its front as a template
// argument: no virtual call and no branch lies between them.
//
//   front  ── begin(Request), write(payload) ──>  RequestExecutor  ──>  RdmaQueue
//          <── answered(), with slot.error ─────
//          ── sent() ──────────────────────────>
//
// A front owns its framing, the buffers that requests lie in, their registration, and back-pressure: it takes
// a request only when RequestExecutor::has_room(). Where a page is and whether it is right is the volume's.
// All functions are called on the lane's thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <utility>

namespace rdmakit::volume {

template <typename F>
concept Front = requires(F front, const F constant, typename F::Client client, uint64_t now,
                         const char* reason) {
  // Client: what one is given to serve. Only when the executor is idle; opens it.
  front.open(std::move(client));
  // Ends now, without answers to outstanding requests.
  front.drop(reason);
  { constant.is_open() } -> std::same_as<bool>;
  { constant.reason() } -> std::convertible_to<const char*>;
  // The descriptor that a sleeping lane polls, also after drop(), until close(); -1: there is no client.
  { constant.descriptor() } -> std::same_as<int>;
  front.close();

  // From now on every new request is answered ESHUTDOWN, or is left to the client's next server process.
  front.refuse_new();
  // A client beyond our control, which should hear why its requests fail before its lane ends.
  { constant.outlasts_lane() } -> std::same_as<bool>;
  // From now on no request is begun. When may_part(), part() ends it here and gives its descriptor; -1: it
  // cannot be given away, and rests until resume().
  front.yield();
  { constant.may_part() } -> std::same_as<bool>;
  { front.part() } -> std::same_as<int>;
  front.resume();

  // ---- hot path; true: something moved ----
  { front.receive() } -> std::same_as<bool>;
  // Begins the requests that have arrived.
  { front.take(now) } -> std::same_as<bool>;
  // The slot whose data are being sent in parts, or kNone.
  { constant.sending() } -> std::same_as<uint16_t>;
  // Nothing is left to be sent, and more is wanted.
  { constant.may_read_ahead() } -> std::same_as<bool>;
  // The end of what its client may take time for; drops it if that is over.
  front.end_turn(now);
  // Sends answers, and drops those that are sent.
  { front.send(now) } -> std::same_as<bool>;

  // There is more to receive, as far as it knows.
  { constant.more_input() } -> std::same_as<bool>;
  // There was no room to receive into.
  { constant.input_full() } -> std::same_as<bool>;
  // For how long (ns, a millisecond at most) a sleeping lane need not listen for input, because what comes
  // next is known not to be all here before; 0: it must.
  { front.pause(now) } -> std::same_as<uint64_t>;
  // The events that a sleeping lane must poll for.
  { constant.wants_input() } -> std::same_as<bool>;
  { constant.wants_output() } -> std::same_as<bool>;
  // block() waits for what comes next and receives it, for up to kBlockTime (ns) in which nothing else is
  // heard. False: nothing came. Only where may_block().
  { constant.may_block() } -> std::same_as<bool>;
  { front.block() } -> std::same_as<bool>;
  { F::kBlockTime } -> std::convertible_to<uint64_t>;
  // Calls it with each time (ns) at which it must be looked at; 0: none.
  constant.deadlines([](uint64_t) {});
};

}  // namespace rdmakit::volume
