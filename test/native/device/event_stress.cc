// A queue pair is not destroyed while librdmacm changes its state, which it does inside of
// rdma_get_cm_event(3): with a library whose events the test makes, because a device's come when they like.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

#include "../stress.h"
#include "ibverbs/connection.h"

namespace device_event_stress {

using namespace fixture;
using namespace rdmakit;
using ibverbs::Connection;
using ibverbs::Libraries;

ibv_device device;
ibv_context context;
ibv_qp queue_pair;
rdma_event_channel channel;
rdma_cm_id id;
rdma_cm_event event;
std::atomic<bool> in_event{false};
std::atomic<bool> destroys{false};
std::atomic<bool> destroyed{false};

// As librdmacm: looks at the queue pair, then modifies it.
int get_event(rdma_event_channel* of, rdma_cm_event** got) {
  uint64_t count = 0;
  if (read(of->fd, &count, sizeof count) != sizeof count) return -1;
  CHECK(id.qp == &queue_pair);
  in_event = true;
  await([] { return destroys.load(); });
  // Who destroys it has begun, and is given the time that he does not need.
  for (const auto end = Clock::now() + std::chrono::milliseconds(200); Clock::now() < end && !destroyed;)
    std::this_thread::yield();
  CHECK(!destroyed, "destroyed while its state is changed");
  event.id = &id;
  event.event = RDMA_CM_EVENT_CONNECT_ERROR;
  *got = &event;
  return 0;
}

Libraries library() {
  Libraries lib{};
  lib.create_event_channel = [] { return &channel; };
  lib.create_id = [](rdma_event_channel*, rdma_cm_id** made, void*, rdma_port_space) {
    *made = &id;
    return 0;
  };
  lib.create_cm_qp = [](rdma_cm_id* of, ibv_pd*, ibv_qp_init_attr*) {
    of->qp = &queue_pair;
    return 0;
  };
  lib.destroy_qp = [](ibv_qp*) {
    destroyed = true;
    return 0;
  };
  lib.destroy_id = [](rdma_cm_id*) { return 0; };
  lib.get_cm_event = get_event;
  lib.ack_cm_event = [](rdma_cm_event*) { return 0; };
  return lib;
}

STRESS(device_event) {
  static const Libraries lib = library();  // its thread runs until the end
  context.device = &device;
  queue_pair.context = &context;
  channel.fd = eventfd(0, EFD_CLOEXEC);
  const std::shared_ptr<Connection> connection = create_connection(lib);
  CHECK(connection != nullptr);
  std::atomic<bool> told{false};
  connection->set_sink([&told](CmEvent) { told = true; });
  ibv_qp_init_attr attributes{};
  CHECK(connection->create_qp(nullptr, &attributes) == &queue_pair);
  const uint64_t one = 1;
  CHECK(write(channel.fd, &one, sizeof one) == sizeof one);
  await([] { return in_event.load(); });
  destroys = true;
  connection->destroy_qp();
  CHECK(destroyed && id.qp == nullptr);
  await([&] { return told.load(); });
  connection->close();
  return 0;
}

}  // namespace device_event_stress
