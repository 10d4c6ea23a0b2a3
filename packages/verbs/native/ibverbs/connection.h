// rdma_cm_id(7) as a ConnectionId, and the thread that reads the connection manager's events.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

#include "ibverbs/libraries.h"
#include "provider/provider.h"

namespace rdmakit::ibverbs {

class Connection final : public ConnectionId {
 public:
  Connection(const Libraries& lib, rdma_cm_id* id) : lib_(lib), id_(id) {}
  ~Connection() override { close(); }

  void set_sink(Sink sink) override;
  int listen(const sockaddr* address, socklen_t length, int backlog) override;
  int resolve(const sockaddr* address, socklen_t length, int timeout_ms) override;
  ibv_context* context() override;
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int connect(const ConnectParameters& parameters) override;
  int accept(const ConnectParameters& parameters) override;
  int reject(const std::vector<uint8_t>& private_data) override;
  int disconnect() override;
  sockaddr_storage local_address() const override;
  sockaddr_storage peer_address() const override;
  void close() override;

  // On the event thread, with the event acknowledged already: `event` is a copy.
  void on_event(rdma_cm_event_type type, int status, std::vector<uint8_t> private_data,
                std::shared_ptr<ConnectionId> request);
  void destroy_qp();

 private:
  // With id_mutex_ held, id_ not closed; an errno.
  int ask_for_address();
  void emit(CmEvent event);
  void emit_disconnected(int status);
  void set_ack_timeout();

  const Libraries& lib_;
  mutable std::mutex id_mutex_;  // id_ and the calls on it, against close()
  rdma_cm_id* id_;
  // For resolve(), with id_mutex_ held.
  sockaddr_storage destination_{};
  std::chrono::steady_clock::time_point resolve_deadline_;
  std::chrono::milliseconds patience_{};
  bool established_ = false;   // event thread only
  bool disconnected_ = false;  // event thread only

  std::mutex sink_mutex_;
  Sink sink_;
  bool closed_ = false;
  std::deque<CmEvent> waiting_;  // events of an id that has no sink yet
};

// Remembers that `qp` must be destroyed through `owner` (rdma_destroy_qp(3)).
void register_owner(ibv_qp* qp, std::weak_ptr<Connection> owner);

// A new id on the process's event channel; nullptr with errno set.
std::shared_ptr<Connection> create_connection(const Libraries& lib);

}  // namespace rdmakit::ibverbs
