// The front of a lane of nbd-client: an NBD connection, or a queue of a ublk device, one at a time. See
// remote-volume's lane/front.h for what each function must do.
#pragma once

#include <memory>
#include <utility>

#include "front/nbd-socket/nbd_socket.h"
#include "front/ublk-queue/ublk_queue.h"

namespace rdmakit::nbd {

// A client for a lane: either of the two, with the negotiated terms.
struct NbdClient {
  UniqueFd socket;  // in transmission phase
  std::unique_ptr<DeviceQueue> device;
  Terms terms;
};

class NbdFront {
 public:
  using Client = NbdClient;
  static constexpr uint64_t kBlockTime = 8'000'000;

  NbdFront(RequestExecutor& requests, const Arena& arena, const Volume& volume)
      : requests_(requests), socket_(requests, arena, volume), queue_(requests, arena) {}

  void open(Client&& client) {
    reason_ = "";
    if (client.device != nullptr) {
      queue_.open(std::move(client.device), client.terms);
    } else {
      socket_.open(std::move(client.socket), client.terms, kBlockTime);
    }
    drop_failed();
  }
  bool is_open() const { return requests_.is_open(); }
  void drop(const char* reason) {
    if (!is_open()) return;
    // A client that has said goodbye has its own reason.
    if (reason_[0] == '\0' && !of_device()) reason_ = socket_.farewell();
    if (reason_[0] == '\0') reason_ = reason;
    if (!of_device()) socket_.drop();
    requests_.drop();
  }
  void close() {
    socket_.close();
    queue_.close();
  }
  // For a device: readable when a request has arrived.
  int descriptor() const { return of_device() ? queue_.descriptor() : socket_.descriptor(); }
  const char* reason() const { return reason_; }
  // Requests that arrive at a device are left to the next process that serves the queue, or to the driver,
  // which fails them if there is none.
  void refuse_new() {
    if (of_device()) {
      queue_.stop_taking();
    } else {
      socket_.refuse_new();
    }
  }
  bool outlasts_lane() const { return !of_device() && socket_.remote(); }

  void yield() { of_device() ? queue_.stop_taking() : socket_.stop_taking(); }
  void resume() { of_device() ? queue_.resume() : socket_.resume(); }
  bool may_part() const {
    return requests_.quiet() && (of_device() ? queue_.may_part() : socket_.may_part());
  }
  // The queue of a device cannot be given away: it rests until resume(), or until its thread ends. When that
  // has ended, the driver sends unanswered requests again to the next thread that fetches.
  int part() {
    if (of_device()) return -1;
    requests_.part();
    reason_ = "handed over";
    return socket_.give_away().release();
  }

  // ---- hot path ----
  bool receive() { return of_device() ? queue_.receive(0) : socket_.receive(false); }
  bool take(uint64_t now) { return of_device() ? queue_.take() : socket_.take(now); }
  uint16_t sending() const { return of_device() ? kNone : socket_.sending(); }
  bool may_read_ahead() const {
    return !(of_device() ? queue_.yielding() : socket_.yielding() || socket_.sending() != kNone);
  }
  void end_turn(uint64_t now) {
    if (!of_device()) socket_.check_time(now);
    drop_failed();
  }
  bool send(uint64_t now) {
    const bool moved = of_device() ? queue_.send() : socket_.send(now);
    if (drop_failed()) return true;
    if (of_device() || !socket_.is_over(now)) return moved;
    drop(socket_.farewell());
    return true;
  }
  bool more_input() const { return of_device() ? queue_.more_input() : socket_.more_input(); }
  bool input_full() const { return !of_device() && socket_.input_full(); }
  uint64_t pause(uint64_t now) { return of_device() ? 0 : socket_.pause(now); }
  bool wants_input() const { return of_device() ? !queue_.yielding() : socket_.wants_input(); }
  bool wants_output() const { return !of_device() && socket_.wants_output(); }
  bool may_block() const { return of_device() ? !queue_.yielding() : socket_.blocks_in_recv(); }
  bool block() { return of_device() ? queue_.receive(kBlockTime) : socket_.receive(true); }
  template <typename Consider>
  void deadlines(Consider consider) const {
    if (of_device()) return;
    consider(socket_.linger_deadline());
    consider(socket_.stall_deadline());
  }

 private:
  bool of_device() const { return queue_.attached(); }
  bool drop_failed() {
    const char* const failure = of_device() ? queue_.failure() : socket_.failure();
    if (failure == nullptr) return false;
    drop(failure);
    return true;
  }

  RequestExecutor& requests_;
  NbdSocket socket_;
  UblkQueue queue_;
  const char* reason_ = "";
};

}  // namespace rdmakit::nbd
