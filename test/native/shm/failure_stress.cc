// The shm provider: the reports of failures to both sides.
#include <sys/stat.h>

#include "traffic.h"

namespace shm_failure_stress {

using namespace fixture;

void remote_access_errors() {
  enum class Fault { unknown_key, other_domain, no_right, past_end, before_start, wrap, deregistered };
  for (const Fault fault : {Fault::unknown_key, Fault::other_domain, Fault::no_right, Fault::past_end,
                            Fault::before_start, Fault::wrap, Fault::deregistered}) {
    for (const bool read : {true, false}) {
      Listener listener;
      Pair pair(listener, {}, {});
      End& client = *pair.client;
      End& server = *pair.server;
      Memory near(client.pd, 4096), far(server.pd, 4096), other(client.pd, 4096),
          shut(server.pd, 4096, IBV_ACCESS_LOCAL_WRITE), gone(server.pd, 4096);
      Send send = read ? read_from(remote(far), 0, 1) : write_to(remote(far), 0, 1);
      if (fault == Fault::unknown_key) send.remote_key ^= 1;
      if (fault == Fault::other_domain)
        send.remote_address = other.address(), send.remote_key = other.mr->rkey;
      if (fault == Fault::no_right) send.remote_address = shut.address(), send.remote_key = shut.mr->rkey;
      if (fault == Fault::past_end) send.remote_address += 4000;
      if (fault == Fault::before_start) send.remote_address -= 1;
      if (fault == Fault::wrap) send.remote_address = UINT64_MAX - 10;
      if (fault == Fault::deregistered) {
        send.remote_address = gone.address(), send.remote_key = gone.mr->rkey;
        gone.deregister();
      }
      post_receive(server, 9, far.sge(0, 10));
      post_receive(client, 8, near.sge(0, 10));
      send.flags = 0;  // an error completes also when it was not asked for
      post(client, send, {near.sge(0, 128)});
      try_post(client, write_to(remote(far), 0, 2), {near.sge(0, 128)});
      Completions done = pump(client, 3, server, 1);
      CHECK(done.server[0].wr_id == 9 && done.server[0].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[0].wr_id == 1 && done.client[0].status == IBV_WC_REM_ACCESS_ERR);
      for (size_t i = 1; i < 3; i++) CHECK(done.client[i].status == IBV_WC_WR_FLUSH_ERR);
      CHECK(done.client[1].wr_id + done.client[2].wr_id == 2 + 8);
      CHECK(client.id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
      CHECK(server.id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
      // What is posted to a queue pair in error is flushed.
      post(client, write_to(remote(far), 0, 3), {near.sge(0, 1)});
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
  for (const size_t room : {10, 100, 1000}) {  // longer than the receive
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.server, 0, far.sge(0, 4096));
    post_receive(*pair.server, 1, far.sge(0, room));
    post_receive(*pair.server, 2, far.sge(0, 100));
    post_receive(*pair.client, 3, near.sge(0, 100));
    post(*pair.client, {.wr_id = 4, .flags = 0}, {near.sge(0, 2000)});
    post(*pair.client, {.wr_id = 5, .flags = 0}, {near.sge(0, room + 1)});
    const Completions done = pump(*pair.client, 2, *pair.server, 3);
    CHECK(done.server[0].wr_id == 0 && done.server[0].status == IBV_WC_SUCCESS);
    CHECK(done.server[1].wr_id == 1 && done.server[1].status == IBV_WC_LOC_LEN_ERR);
    CHECK(done.server[2].wr_id == 2 && done.server[2].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(done.client[0].wr_id == 5 && done.client[0].status == IBV_WC_REM_INV_REQ_ERR);
    CHECK(done.client[1].wr_id == 3 && done.client[1].status == IBV_WC_WR_FLUSH_ERR);
  }
  for (const size_t length : {size_t{100}, size_t{4000}}) {  // memory that is not to be written
    Listener listener;
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096, 0);
    post_receive(*pair.server, 1, far.sge(0, length));
    post(*pair.client, {.wr_id = 2, .flags = 0}, {near.sge(0, length)});
    CHECK(pair.server->completion().status == IBV_WC_LOC_PROT_ERR);
    pair.client->id.events->expect(CmEvent::Type::disconnected);
    pair.server->id.events->expect(CmEvent::Type::disconnected);
  }
}

void local_errors() {
  Listener listener;
  {
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 2000), far(pair.server->pd, 2000);
    ibv_sge bad = near.sge(0, 100);
    bad.lkey ^= 1;
    post(*pair.client, write_to(remote(far), 0, 1), {near.sge(0, 10)});
    post(*pair.client, write_to(remote(far), 0, 2), {bad});
    try_post(*pair.client, write_to(remote(far), 0, 3), {near.sge(0, 10)});
    pair.client->expect(1);
    pair.client->expect(2, IBV_WC_LOC_PROT_ERR);
    pair.client->expect(3, IBV_WC_WR_FLUSH_ERR);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == EPROTO);
  }
  Pair pair(listener, {}, {});
  Memory near(pair.client->pd, 4096);
  CHECK(try_post(*pair.client, {.flags = IBV_SEND_INLINE}, {near.sge(0, 4096)}) == EINVAL);
  CHECK(try_post(*pair.client, {.opcode = IBV_WR_TSO}, {near.sge(0, 8)}) == EOPNOTSUPP);
  CHECK(try_post(*pair.client, {}, std::vector<ibv_sge>(5, near.sge(0, 1))) == EINVAL);
  errno = 0;
  CHECK(provider().reg_mr(pair.client->pd, near.data, 10, IBV_ACCESS_REMOTE_WRITE) == nullptr &&
        errno == EINVAL);
  CHECK(provider().dealloc_pd(pair.client->pd) == EBUSY);
  CHECK(provider().destroy_cq(pair.client->cq) == EBUSY);
}

void disconnects() {
  Listener listener;
  for (const bool destroy : {false, true}) {
    Pair pair(listener, {}, {});
    Memory near(pair.client->pd, 4096), far(pair.server->pd, 4096);
    post_receive(*pair.client, 1, near.sge(0, 1));
    post_receive(*pair.server, 2, far.sge(0, 1));
    post_receive(*pair.server, 3, far.sge(0, 1));
    post(*pair.client, {.wr_id = 4, .flags = 0}, {near.sge(0, 1)});
    if (destroy) {
      pair.client->destroy_qp();
    } else {
      CHECK(pair.client->id.id->disconnect() == 0);
      pair.client->expect(1, IBV_WC_WR_FLUSH_ERR);
    }
    pair.server->expect(2);  // what had arrived is delivered
    pair.server->expect(3, IBV_WC_WR_FLUSH_ERR);
    CHECK(pair.client->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.server->id.events->expect(CmEvent::Type::disconnected).status == 0);
    CHECK(pair.client->id.id->disconnect() == 0);
  }
}

void connecting_fails() {
  std::string path;
  {
    Listener listener;
    path = listener.path;
    struct stat status;
    CHECK(stat(path.c_str(), &status) == 0 && (status.st_mode & 07777) == 0600);
    // The address is in use.
    Id second;
    const sockaddr_un address = place(path);
    CHECK(second.id->listen(generic(address), sizeof address, 1) == EADDRINUSE);
    // Rejected, with a reason.
    auto end = resolve(path, {});
    ConnectParameters parameters;
    parameters.qp = end->qp;
    parameters.private_data.assign(513, 1);
    CHECK(end->id.id->connect(parameters) == EINVAL);
    parameters.private_data.resize(512);
    CHECK(end->id.id->connect(parameters) == 0);
    CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
    CHECK(request.private_data.size() == 512);
    // Strangers are refused by the thousand: no other thread is needed for that, unlike for an end with a
    // queue pair.
    CHECK(request.request->closes_at_once() && !end->id.id->closes_at_once());
    CHECK(request.request->reject({4, 5}) == 0);
    CHECK(request.request->closes_at_once());
    const CmEvent rejected = end->id.events->expect(CmEvent::Type::rejected);
    CHECK(rejected.private_data == std::vector<uint8_t>({4, 5}));
    request.request->close();
  }
  CHECK(access(path.c_str(), F_OK) != 0);
  {
    auto end = resolve(path, {});
    connect(*end);
    CHECK(end->id.events->expect(CmEvent::Type::connect_failed).status == ECONNREFUSED);
  }
  {  // a socket whose owner is dead is replaced; a file is not
    const int stale = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const sockaddr_un address = place(path);
    CHECK(bind(stale, generic(address), sizeof address) == 0 && close(stale) == 0);
    { Listener again(path); }
    CHECK(access(path.c_str(), F_OK) != 0);
    const int file = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0 && close(file) == 0);
    Id id;
    CHECK(id.id->listen(generic(address), sizeof address, 1) == EADDRINUSE);
    CHECK(unlink(path.c_str()) == 0);
  }
  Id wrong;
  sockaddr internet{AF_INET, {}};
  CHECK(wrong.id->resolve(&internet, sizeof internet, 0) == EAFNOSUPPORT);
  sockaddr_un abstract = place("");
  CHECK(wrong.id->resolve(generic(abstract), sizeof abstract, 0) == EINVAL);

  // The initiator gives up before it is answered.
  Listener listener;
  auto given_up = resolve(listener.path, {});
  connect(*given_up);
  CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
  given_up.reset();
  End server(Id(std::move(request.request)), {});
  accept(server);
  CHECK(server.id.events->next().type == CmEvent::Type::connect_failed);

  // Strangers that say nothing or nonsense do no harm.
  const sockaddr_un address = listener.address();
  std::vector<int> strangers;
  for (int i = 0; i < 20; i++) {
    strangers.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    CHECK(::connect(strangers.back(), generic(address), sizeof address) == 0);
    if (i % 2) CHECK(send(strangers.back(), "GET / HTTP/1.1", 14, 0) == 14);
  }
  Pair pair(listener, {}, {});
  for (const int stranger : strangers) close(stranger);
}

STRESS(shm_failure) {
  timed("remote access errors", remote_access_errors);
  timed("receive errors", receive_errors);
  timed("local errors", local_errors);
  timed("disconnects", disconnects);
  timed("connecting fails", connecting_fails);
  std::puts("ok");
  return 0;
}

}  // namespace shm_failure_stress
