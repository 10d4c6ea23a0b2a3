// Failures over iwarp, and their reports to both sides.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "traffic.h"

namespace iwarp_failure_stress {

using namespace fixture;

void remote_access_errors(Progress progress) {
  enum class Fault { unknown_key, other_domain, no_right, past_end, before_start, wrap };
  for (const Fault fault : {Fault::unknown_key, Fault::other_domain, Fault::no_right, Fault::past_end,
                            Fault::before_start, Fault::wrap}) {
    for (const bool read : {true, false}) {
      Listener listener;
      Pair pair(listener, {.progress = progress}, {.progress = progress});
      End& client = *pair.client;
      End& server = *pair.server;
      Memory near(client.pd, 4096), far(server.pd, 4096), other(client.pd, 4096), shut(server.pd, 4096, 0);
      Send send = read ? read_from(far, 0, 1) : write_to(far, 0, 1);
      if (fault == Fault::unknown_key) send.remote_key ^= 1;
      if (fault == Fault::other_domain) send = read ? read_from(other, 0, 1) : write_to(other, 0, 1);
      if (fault == Fault::no_right) send = read ? read_from(shut, 0, 1) : write_to(shut, 0, 1);
      if (fault == Fault::past_end) send.remote_address += 4000;
      if (fault == Fault::before_start) send.remote_address -= 1;
      if (fault == Fault::wrap) send.remote_address = UINT64_MAX - 10;
      post_receive(server, 9, far.sge(0, 10));
      post_receive(client, 8, near.sge(0, 10));
      // A WRITE completes when it is sent, so it is the READ behind it that is outstanding.
      post(client, read_from(far, 0, 0), {near.sge(0, 1)});
      pump(client, 1, server, 0);
      if (read) {
        post(client, send, {near.sge(0, 128)});
      } else {
        send.flags = 0;
        post_two(client, send, read_from(far, 0, 1), near.sge(0, 128));
      }
      try_post(client, write_to(far, 0, 2), {near.sge(0, 128)});
      Completions done = pump(client, 3, server, 1);
      CHECK(done.server[0].wr_id == 9 && done.server[0].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_REM_ACCESS_ERR);
      for (size_t i = 1; i < 3; i++) CHECK(done.client[i].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[1].wr_id + done.client[2].wr_id == 2 + 8);
      CHECK(client.id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
      CHECK(server.id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
      // What is posted to a queue pair in error is flushed.
      post(client, write_to(far, 0, 3), {near.sge(0, 1)});
      post_receive(client, 4, near.sge(0, 1));
      client.expect(3, IBV_WC_WR_FLUSH_ERR);
      client.expect(4, IBV_WC_WR_FLUSH_ERR);
      ibv_qp_attr attributes{};
      ibv_qp_init_attr init{};
      CHECK(provider().query_qp(client.qp, &attributes, IBV_QP_STATE, &init) == 0);
      CHECK(attributes.qp_state == IBV_QPS_ERR);
    }
  }
}

void receive_errors() {
  {  // longer than the receive
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.server, 1, far.sge(0, 100));
    post_receive(*pair.server, 2, far.sge(0, 100));
    post_receive(*pair.client, 3, near.sge(0, 100));
    post(*pair.client, {.wr_id = 4}, {near.sge(0, 101)});
    const Completions done = pump(*pair.client, 2, *pair.server, 2);
    CHECK(done.server[0].wr_id == 1 && done.server[0].status == IBV_WC_LOC_LEN_ERR);
    CHECK(done.server[1].wr_id == 2 && done.server[1].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(done.client[1].wr_id == 3 && done.client[1].status == IBV_WC_WR_FLUSH_ERR);
  }
  {  // no receive: iWARP knows no "not ready", the connection ends
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_two(*pair.client, {.wr_id = 1, .flags = 0}, read_from(far, 0, 2), near.sge(0, 100));
    const Completions done = pump(*pair.client, 1, *pair.server, 0);
    CHECK(done.client[0].wr_id == 2 && done.client[0].status == IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(pair.server->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  }
  {  // a receive whose memory is not to be written
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096, 0);
    post_receive(*pair.server, 1, far.sge(0, 100));
    post(*pair.client, {.wr_id = 2, .flags = 0}, {near.sge(0, 100)});
    const Completions done = pump(*pair.client, 0, *pair.server, 1);
    CHECK(done.server[0].status == IBV_WC_LOC_PROT_ERR);
  }
}

void local_errors() {
  for (const size_t length : {size_t{100}, size_t{100'000}}) {
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 200'000), far(pair.server->pd, 200'000);
    ibv_sge bad = near.sge(0, length);
    bad.lkey ^= 1;
    post(*pair.client, write_to(far, 0, 1), {near.sge(0, 10)});
    post(*pair.client, write_to(far, 0, 2), {bad});
    try_post(*pair.client, write_to(far, 0, 3), {near.sge(0, 10)});
    const Completions done = pump(*pair.client, 3, *pair.server, 0);
    CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_SUCCESS);
    CHECK(done.client[1].wr_id == 2 && done.client[1].status == IBV_WC_LOC_PROT_ERR);
    CHECK(done.client[2].wr_id == 3 && done.client[2].status == IBV_WC_WR_FLUSH_ERR);
    pump(*pair.client, 0, *pair.server, 0);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  }
  Listener listener;
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 4096);
  CHECK(try_post(*pair.client, {.flags = IBV_SEND_INLINE}, {near.sge(0, 4096)}) == EINVAL);
  CHECK(try_post(*pair.client, {.opcode = IBV_WR_TSO}, {near.sge(0, 8)}) == EOPNOTSUPP);
  CHECK(try_post(*pair.client, {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD}, {near.sge(0, 16)}) == EINVAL);
  CHECK(try_post(*pair.client, {}, std::vector<ibv_sge>(5, near.sge(0, 1))) == EINVAL);
  errno = 0;
  CHECK(provider().reg_mr(pair.client->pd, near.bytes.data(), 10, IBV_ACCESS_REMOTE_WRITE) == nullptr &&
        errno == EINVAL);
  CHECK(provider().dealloc_pd(pair.client->pd) == EBUSY);
  CHECK(provider().destroy_cq(pair.client->cq) == EBUSY);
}

void disconnects(Progress progress) {
  Listener listener;
  for (const bool destroy : {false, true}) {
    Pair pair(listener, {.progress = progress}, {.progress = progress});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.client, 1, near.sge(0, 1));
    post_receive(*pair.server, 2, far.sge(0, 1));
    if (destroy) {
      pair.client->destroy_qp();
    } else {
      CHECK(pair.client->id.id->disconnect() == 0);
      pair.client->expect(1, IBV_WC_WR_FLUSH_ERR);
    }
    pair.server->expect(2, IBV_WC_WR_FLUSH_ERR);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.server->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.client->id.id->disconnect() == 0);
  }
}

// The connection goes away while a large message is on its way.
void cut_in_the_middle(Progress progress) {
  constexpr size_t kLength = 16 << 20;  // more than sockets hold
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  Memory near(pair.client->pd, kLength), far(pair.server->pd, kLength);
  post(*pair.client, write_to(far, 0, 1), {near.sge(0, kLength)});
  post(*pair.client, read_from(far, 0, 2), {near.sge(0, kLength)});
  for (int i = 0; i < 3; i++) {
    ibv_wc wc;
    CHECK(ibv_poll_cq(pair.server->cq, 1, &wc) == 0);
  }
  pair.server->destroy_qp();
  const Completions done = pump(*pair.client, 2, *pair.server, 0);
  const ibv_wc_status first = done.client[0].status;
  CHECK(done.client[0].wr_id == 1 && (first == IBV_WC_SUCCESS || first == IBV_WC_RETRY_EXC_ERR));
  CHECK(done.client[1].wr_id == 2);
  CHECK(done.client[1].status == (first == IBV_WC_SUCCESS ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR));
  CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status != 0);
}

// The peer's process is killed while it writes and while this side waits for it.
void killed_process(Progress progress) {
  Listener listener;
  const std::string port = std::to_string(ntohs(listener.address().sin_port));
  char program[] = "/proc/self/exe", role[] = "writer";
  std::string test = stress::running();
  std::string argument = port;
  char* arguments[] = {program, test.data(), role, argument.data(), nullptr};
  pid_t child = 0;
  CHECK(posix_spawn(&child, program, nullptr, nullptr, arguments, environ) == 0);
  CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
  End end(Id(std::move(request.request)), {.progress = progress});
  Memory memory(end.pd, 1 << 20);
  const uint64_t address = memory.address();
  ConnectParameters parameters;
  parameters.qp = end.qp;
  parameters.private_data.resize(12);
  std::memcpy(parameters.private_data.data(), &address, 8);
  std::memcpy(parameters.private_data.data() + 8, &memory.mr->rkey, 4);
  for (uint64_t i = 0; i < 8; i++) post_receive(end, i, memory.sge(0, 0));
  CHECK(end.id.id->accept(parameters) == 0);
  end.id.events->expect(CmEvent::Type::established);
  for (uint64_t i = 0; i < 4; i++) CHECK(end.expect(i).opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(kill(child, SIGKILL) == 0);
  CHECK(waitpid(child, nullptr, 0) == child);
  ibv_wc wc;
  do {
    wc = end.completion();
  } while (wc.status == IBV_WC_SUCCESS);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  end.id.events->expect(CmEvent::Type::disconnected);
}

// The other process of killed_process.
[[noreturn]] void write_for_ever(uint16_t port) {
  Id id;
  const sockaddr_in address = loopback(port);
  CHECK(id.id->resolve(reinterpret_cast<const sockaddr*>(&address), sizeof address, kHangMs) == 0);
  id.events->expect(CmEvent::Type::route_resolved);
  End end(std::move(id), {});
  ConnectParameters parameters;
  parameters.qp = end.qp;
  CHECK(end.id.id->connect(parameters) == 0);
  const CmEvent established = end.id.events->expect(CmEvent::Type::established);
  Send send{.opcode = IBV_WR_RDMA_WRITE_WITH_IMM};
  std::memcpy(&send.remote_address, established.private_data.data(), 8);
  std::memcpy(&send.remote_key, established.private_data.data() + 8, 4);
  Memory memory(end.pd, 1 << 20);
  for (int i = 0; i < 4; i++) {
    post(end, send, {memory.sge(0, 1 << 20)});
    end.completion();
  }
  send.opcode = IBV_WR_RDMA_WRITE;
  while (true) {
    if (try_post(end, send, {memory.sge(0, 1 << 20)}) == 0) end.completion();
  }
}

void connecting_fails() {
  uint16_t closed_port;
  {
    Listener listener;
    closed_port = ntohs(listener.address().sin_port);
    // Rejected, with a reason.
    Id connecting;
    const sockaddr_in address = listener.address();
    CHECK(connecting.id->resolve(reinterpret_cast<const sockaddr*>(&address), sizeof address, kHangMs) == 0);
    connecting.events->expect(CmEvent::Type::route_resolved);
    End end(std::move(connecting), {});
    ConnectParameters parameters;
    parameters.qp = end.qp;
    parameters.private_data.assign(509, 1);
    CHECK(end.id.id->connect(parameters) == EINVAL);
    parameters.private_data.resize(508);
    CHECK(end.id.id->connect(parameters) == 0);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    CHECK(request.private_data.size() == 508);
    // Strangers are refused by the thousand: no other thread is needed for that, unlike for an end with a
    // queue pair.
    CHECK(request.request->closes_at_once() && !end.id.id->closes_at_once());
    CHECK(request.request->reject({4, 5}) == 0);
    CHECK(request.request->closes_at_once());
    const CmEvent rejected = end.id.events->expect(CmEvent::Type::rejected);
    CHECK(rejected.private_data == std::vector<uint8_t>({4, 5}));
    request.request->close();
  }
  Id nobody;
  const sockaddr_in address = loopback(closed_port);
  CHECK(nobody.id->resolve(reinterpret_cast<const sockaddr*>(&address), sizeof address, kHangMs) == 0);
  nobody.events->expect(CmEvent::Type::route_resolved);
  End end(std::move(nobody), {});
  ConnectParameters parameters;
  parameters.qp = end.qp;
  CHECK(end.id.id->connect(parameters) == 0);
  CHECK(end.id.events->expect(CmEvent::Type::connect_failed).status == ECONNREFUSED);
  Id wrong;
  sockaddr unix_address{AF_UNIX, {}};
  CHECK(wrong.id->resolve(&unix_address, sizeof unix_address, 0) == EAFNOSUPPORT);

  // The initiator gives up before it is answered.
  Listener listener;
  {
    Id connecting;
    const sockaddr_in open = listener.address();
    CHECK(connecting.id->resolve(reinterpret_cast<const sockaddr*>(&open), sizeof open, kHangMs) == 0);
    connecting.events->expect(CmEvent::Type::route_resolved);
    End given_up(std::move(connecting), {});
    ConnectParameters again;
    again.qp = given_up.qp;
    CHECK(given_up.id.id->connect(again) == 0);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    given_up.destroy_qp();
    given_up.id.id->close();
    End server(Id(std::move(request.request)), {});
    ConnectParameters answer;
    answer.qp = server.qp;
    CHECK(server.id.id->accept(answer) == 0);
    CHECK(server.id.events->next().type == CmEvent::Type::connect_failed);
  }
}

STRESS(iwarp_failure) {
  if (count == 3 && std::string(arguments[1]) == "writer")
    write_for_ever(static_cast<uint16_t>(std::atoi(arguments[2])));
  constexpr Progress kModes[] = {Progress::manual, Progress::automatic};
  for (const Progress mode : kModes) {
    timed("remote access errors", [=] { remote_access_errors(mode); });
    timed("disconnects", [=] { disconnects(mode); });
    timed("cut in the middle", [=] { cut_in_the_middle(mode); });
    timed("killed process", [=] { killed_process(mode); });
  }
  timed("receive errors", receive_errors);
  timed("local errors", local_errors);
  timed("connecting fails", connecting_fails);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_failure_stress
