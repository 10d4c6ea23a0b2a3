// The iwarp provider: memory is unmapped while it is registered. The kernel, which alone looks at the payload
// when there is no CRC, says EFAULT: the connection ends, and the request whose memory it is says so. Costs
// 0.1 s plain, 0.2 s under ASan, 0.5 s under TSan.
#include <sys/mman.h>

#include "../traffic.h"
#include "socket.h"

namespace iwarp_unmapped_stress {

using namespace fixture;

constexpr size_t kPage = 4096;
constexpr size_t kGood = 10 * kPage;  // more than a queue pair's buffer, from which payloads are copied
constexpr uint32_t kLength = 60'000;  // of one FPDU

// Registered memory of which the pages from `good` on cannot be read or written: as after munmap, but nothing
// else comes to lie there.
struct Pages {
  size_t size;
  uint8_t* bytes;
  ibv_mr* mr;

  Pages(ibv_pd* pd, size_t length)
      : size((length + kPage - 1) / kPage * kPage),
        bytes(static_cast<uint8_t*>(
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        mr(provider().reg_mr(pd, bytes, size,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) {
    CHECK(mr != nullptr);
  }
  Pages(const Pages&) = delete;
  ~Pages() {
    CHECK(provider().dereg_mr(mr) == 0);
    munmap(bytes, size);
  }
  void unmap_from(size_t good) const { CHECK(mprotect(bytes + good, size - good, PROT_NONE) == 0); }
  ibv_sge sge(size_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(bytes) + offset, length, mr->lkey};
  }
};

// Without CRCs.
struct Unchecked : Victim {
  explicit Unchecked(Progress progress) : Victim(progress, request()) { CHECK(!reply.crc); }
  static MpaFrame request() {
    MpaFrame made = enhanced_request();
    made.crc = false;
    return made;
  }
  void is_over() const { CHECK(end->id.events->expect(CmEvent::Type::disconnected).status == EPROTO); }
};

Send write(uint64_t wr_id) {
  return {.wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .remote_address = 1, .remote_key = 2};
}

void source(Progress progress, size_t good) {
  Unchecked victim(progress);
  End& end = *victim.end;
  const Pages pages(end.pd, kLength);
  pages.unmap_from(good);
  post(end, write(1), {victim.local->sge(0, 1000)});
  post(end, write(2), {victim.local->sge(0, 1000), pages.sge(0, kLength - 1000)});
  post(end, write(3), {victim.local->sge(0, 1000)});
  end.expect(1);
  end.expect(2, IBV_WC_LOC_PROT_ERR);
  end.expect(3, IBV_WC_WR_FLUSH_ERR);
  victim.is_over();
}

// All in one system call: those before the bad one are sent.
void one_of_three(Progress progress) {
  Unchecked victim(progress);
  End& end = *victim.end;
  const Pages pages(end.pd, kPage);
  pages.unmap_from(0);
  ibv_sge elements[3] = {victim.local->sge(0, 1000), pages.sge(0, 1000), victim.local->sge(0, 1000)};
  ibv_send_wr requests[3] = {}, *bad = nullptr;
  for (size_t i = 0; i < 3; i++) {
    requests[i].wr_id = i + 1;
    requests[i].opcode = IBV_WR_SEND;
    requests[i].send_flags = IBV_SEND_SIGNALED;
    requests[i].sg_list = &elements[i];
    requests[i].num_sge = 1;
    requests[i].next = i < 2 ? &requests[i + 1] : nullptr;
  }
  CHECK(ibv_post_send(end.qp, requests, &bad) == 0);
  end.expect(1);
  end.expect(2, IBV_WC_LOC_PROT_ERR);
  end.expect(3, IBV_WC_WR_FLUSH_ERR);
  victim.is_over();
  const Bytes first = victim.peer.receive_fpdu();
  CHECK(first == untagged(Opcode::send, 0, 1, 0, Bytes(1000)));
}

// The rest of a message waits for room in the socket: who continues finds it.
void source_of_backlog(Progress progress) {
  constexpr uint32_t kLarge = 1 << 20;
  Unchecked victim(progress);
  narrow(victim.peer);
  End& end = *victim.end;
  const Pages pages(end.pd, kLarge);
  post(end, write(1), {pages.sge(0, kLarge)});
  ibv_wc wc;
  await([&] {
    CHECK(ibv_poll_cq(end.cq, 1, &wc) == 0, "the sockets hold all of it");
    return !takes_more(socket_of(victim.peer));
  });
  pages.unmap_from(0);
  std::thread reader([&] { CHECK(victim.peer.receive(kLarge).size() < kLarge); });
  end.expect(1, IBV_WC_LOC_PROT_ERR);
  victim.is_over();
  reader.join();
}

void sink_of_write(Progress progress) {
  Unchecked victim(progress);
  const Pages pages(victim.end->pd, kLength);
  pages.unmap_from(kGood);
  victim.peer.send_fpdu(
      tagged(Opcode::write, pages.mr->rkey, reinterpret_cast<uint64_t>(pages.bytes), Bytes(kLength)));
  victim.drain();
  victim.is_over();
  CHECK(victim.peer.receive_terminate() == terminate::ddp_invalid_stag);
}

void sink_of_read(Progress progress) {
  Unchecked victim(progress);
  End& end = *victim.end;
  const Pages pages(end.pd, kLength);
  pages.unmap_from(kGood);
  for (uint64_t i = 1; i <= 2; i++)
    post(end, {.wr_id = i, .opcode = IBV_WR_RDMA_READ, .remote_address = 1, .remote_key = 2},
         {pages.sge(0, kLength)});
  const Bytes asked = victim.peer.receive_fpdu();
  const ReadRequest request = parse_read_request(asked.data() + kUntaggedHeaderLength);
  CHECK(asked == read_request(1, request) && victim.peer.receive_fpdu().size() == asked.size());
  victim.peer.send_fpdu(tagged(Opcode::read_response, request.sink_stag, 0, Bytes(kLength)));
  end.expect(1, IBV_WC_LOC_PROT_ERR);
  end.expect(2, IBV_WC_WR_FLUSH_ERR);
  victim.is_over();
  CHECK(victim.peer.receive_terminate() == terminate::local_catastrophic);
}

void receive(Progress progress) {
  Unchecked victim(progress);
  End& end = *victim.end;
  const Pages pages(end.pd, kLength);
  pages.unmap_from(kGood);
  for (uint64_t i = 1; i <= 2; i++) post_receive(end, i, pages.sge(0, kLength));
  victim.peer.send_fpdu(untagged(Opcode::send, 0, 1, 0, Bytes(kLength)));
  end.expect(1, IBV_WC_LOC_PROT_ERR);
  end.expect(2, IBV_WC_WR_FLUSH_ERR);
  victim.is_over();
  CHECK(victim.peer.receive_terminate() == terminate::local_catastrophic);
}

STRESS(iwarp_unmapped) {
  setenv("RDMAKIT_IWARP_CRC", "0", 1);  // it would be computed from the memory by this side
  for (const Progress progress : {Progress::automatic, Progress::manual}) {
    timed("source, from its beginning", [=] { source(progress, 0); });
    timed("source, from its middle", [=] { source(progress, kGood); });
    timed("source of one of three", [=] { one_of_three(progress); });
    timed("source of a backlog", [=] { source_of_backlog(progress); });
    timed("sink of a WRITE", [=] { sink_of_write(progress); });
    timed("sink of a READ", [=] { sink_of_read(progress); });
    timed("receive", [=] { receive(progress); });
  }
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_unmapped_stress
