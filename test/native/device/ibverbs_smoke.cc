// Each thing that provider.h names, once, on a real device of libibverbs.
//   ibverbs_smoke DEVICE      "ok NAME", or "no NAME: why" where the device says that it cannot; 1 if one
//   lies
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ibverbs_fixture.h"

using namespace fixture;

namespace {

constexpr uint32_t kBytes = 3000;  // three packets

void fill(Memory& memory, uint8_t seed) {
  for (size_t i = 0; i < memory.bytes.size(); ++i) memory.bytes[i] = static_cast<uint8_t>(seed + 7 * i);
}

void gids(Device& device) {
  std::vector<GidEntry> entries;
  CHECK(provider().query_gids(device.context, kPort, entries) == 0);
  CHECK(!entries.empty());
  CHECK(provider().query_gids(device.context, 77, entries) == EINVAL);
  CHECK(provider().query_gids(device.context, kPort, entries) == 0);
  for (const GidEntry& entry : entries) {
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, entry.gid.raw, text, sizeof text);
    std::printf("   gid %u %s %s interface %u\n", entry.index, text, entry.type, entry.interface_index);
    CHECK(entry.interface_index != 0);
    const auto* address = reinterpret_cast<const in6_addr*>(entry.gid.raw);
    if (std::string(entry.type) == "RoCE v2" && IN6_IS_ADDR_V4MAPPED(address)) device.gid = entry;
  }
}

void reliable(Device& device) {
  End near(device, IBV_QPT_RC), far(device, IBV_QPT_RC);
  connect(near, far);
  Memory source(device, kBytes), target(device, kBytes);
  fill(source, 1);
  CHECK(near.post(one_sided(1, IBV_WR_RDMA_WRITE, target.address(), target.mr->rkey),
                  source.sge(0, kBytes)) == 0);
  near.sent.expect(1);
  CHECK(target.bytes == source.bytes);
  fill(source, 2);
  far.post_receive(2, target.sge(0, kBytes));
  ibv_send_wr send = request(3, IBV_WR_SEND_WITH_IMM);
  send.imm_data = htonl(77);
  CHECK(near.post(send, source.sge(0, kBytes)) == 0);
  near.sent.expect(3);
  const ibv_wc wc = far.received.expect(2);
  CHECK(wc.byte_len == kBytes && (wc.wc_flags & IBV_WC_WITH_IMM) != 0 && wc.imm_data == htonl(77));
  CHECK(target.bytes == source.bytes);
  fill(target, 3);
  CHECK(near.post(one_sided(4, IBV_WR_RDMA_READ, target.address(), target.mr->rkey), source.sge(0, kBytes)) ==
        0);
  near.sent.expect(4);
  CHECK(target.bytes == source.bytes);

  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  CHECK(provider().query_qp(near.qp, &attributes, IBV_QP_STATE | IBV_QP_DEST_QPN, &init) == 0);
  CHECK(attributes.qp_state == IBV_QPS_RTS && attributes.dest_qp_num == far.qp->qp_num);
}

void flushed(Device& device) {
  End near(device, IBV_QPT_RC), far(device, IBV_QPT_RC);
  connect(near, far);
  Memory memory(device, 64);
  near.post_receive(1, memory.sge(0, 64));
  CHECK(provider().data_path_verbs()->move_to_error(near.qp) == 0);
  near.received.expect(1, IBV_WC_WR_FLUSH_ERR);
  CHECK(near.post(request(2, IBV_WR_SEND), memory.sge(0, 64)) == 0);
  near.sent.expect(2, IBV_WC_WR_FLUSH_ERR);
}

void atomics(Device& device) {
  End near(device, IBV_QPT_RC), far(device, IBV_QPT_RC);
  connect(near, far);
  Memory result(device, 8), target(device, 8);
  const auto word = [](Memory& memory) {
    uint64_t value;
    std::memcpy(&value, memory.bytes.data(), sizeof value);
    return value;
  };
  const auto atomic = [&](ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap) {
    ibv_send_wr made = request(1, opcode);
    made.wr.atomic = {target.address(), compare_add, swap, target.mr->rkey};
    CHECK(near.post(made, result.sge(0, 8)) == 0);
    near.sent.expect(1);
    return word(result);
  };
  CHECK(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 40, 0) == 0 && word(target) == 40);
  CHECK(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 40, 99) == 40 && word(target) == 99);
  CHECK(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 40, 1) == 99 && word(target) == 99);
}

void unreliable(Device& device) {
  End near(device, IBV_QPT_UC), far(device, IBV_QPT_UC);
  connect(near, far);
  Memory source(device, kBytes), target(device, kBytes);
  fill(source, 4);
  far.post_receive(1, target.sge(0, kBytes));
  CHECK(near.post(request(2, IBV_WR_SEND), source.sge(0, kBytes)) == 0);
  near.sent.expect(2);
  CHECK(far.received.expect(1).byte_len == kBytes && target.bytes == source.bytes);
}

void shared_receive_queue(Device& device) {
  ibv_srq_init_attr init{};
  init.attr = {16, 2, 0};
  ibv_srq* srq = provider().create_srq(device.pd, &init);
  CHECK(srq != nullptr);
  ibv_srq_attr attributes{};
  CHECK(provider().query_srq(srq, &attributes) == 0);
  CHECK(attributes.max_wr >= 16 && attributes.srq_limit == 0);
  if (device.can(kCapabilityDatagram)) {
    Events events(device);
    End near(device, IBV_QPT_RC), far(device, IBV_QPT_RC, srq);
    connect(near, far);
    Memory source(device, 64), target(device, 4 * 64);
    for (uint64_t i = 0; i < 4; ++i) {
      ibv_sge sge = target.sge(64 * i, 64);
      ibv_recv_wr receive{}, *bad = nullptr;
      receive.wr_id = i;
      receive.sg_list = &sge;
      receive.num_sge = 1;
      CHECK(ibv_post_srq_recv(srq, &receive, &bad) == 0);
    }
    ibv_srq_attr limit{};
    limit.srq_limit = 3;
    CHECK(provider().modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    for (uint64_t i = 0; i < 2; ++i) {
      fill(source, static_cast<uint8_t>(i));
      CHECK(near.post(request(9, IBV_WR_SEND), source.sge(0, 64)) == 0);
      near.sent.expect(9);
      far.received.expect(i);
      CHECK(std::memcmp(target.bytes.data() + 64 * i, source.bytes.data(), 64) == 0);
    }
    events.expect(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    CHECK(provider().destroy_srq(srq) == EBUSY);
  }
  CHECK(provider().destroy_srq(srq) == 0);
}

void memory_window(Device& device) {
  Memory source(device, 64), target(device, 4096, kAllAccess | IBV_ACCESS_MW_BIND);
  ibv_mw* window = provider().alloc_mw(device.pd, IBV_MW_TYPE_2);
  CHECK(window != nullptr);
  const auto bind = [&](End& end, uint64_t wr_id) {
    ibv_send_wr made = request(wr_id, IBV_WR_BIND_MW);
    made.bind_mw.mw = window;
    made.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    made.bind_mw.bind_info = {target.mr, target.address(1024), 64,
                              IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    CHECK(end.post(made, {}) == 0);
    CHECK(end.sent.expect(wr_id).opcode == IBV_WC_BIND_MW);
    window->rkey = made.bind_mw.rkey;
  };
  {
    End near(device, IBV_QPT_RC), far(device, IBV_QPT_RC);
    connect(near, far);
    bind(far, 1);
    fill(source, 5);
    CHECK(near.post(one_sided(2, IBV_WR_RDMA_WRITE, target.address(1024), window->rkey), source.sge(0, 64)) ==
          0);
    near.sent.expect(2);
    CHECK(std::memcmp(target.bytes.data() + 1024, source.bytes.data(), 64) == 0);
    far.post_receive(3, target.sge(0, 64));
    ibv_send_wr send = request(4, IBV_WR_SEND_WITH_INV);
    send.invalidate_rkey = window->rkey;
    CHECK(near.post(send, source.sge(0, 64)) == 0);
    near.sent.expect(4);
    const ibv_wc wc = far.received.expect(3);
    // rxe lets the kernel's flag through, whose value is that of IBV_WC_IP_CSUM_OK.
    CHECK((wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK)) != 0);
    CHECK(wc.invalidated_rkey == window->rkey);
    CHECK(near.post(one_sided(5, IBV_WR_RDMA_WRITE, target.address(1024), window->rkey), source.sge(0, 64)) ==
          0);
    near.sent.expect(5, IBV_WC_REM_ACCESS_ERR);
  }
  {
    End near(device, IBV_QPT_RC), far(device, IBV_QPT_RC);
    connect(near, far);
    bind(far, 6);
    ibv_send_wr end = request(7, IBV_WR_LOCAL_INV);
    end.invalidate_rkey = window->rkey;
    CHECK(far.post(end, {}) == 0);
    far.sent.expect(7);
    CHECK(near.post(one_sided(8, IBV_WR_RDMA_READ, target.address(1024), window->rkey), source.sge(0, 64)) ==
          0);
    near.sent.expect(8, IBV_WC_REM_ACCESS_ERR);
  }
  CHECK(provider().dealloc_mw(window) == 0);
}

// A datagram from one queue pair to `group`, or to the other queue pair.
void send_datagram(Device& device, const ibv_gid* group) {
  constexpr uint32_t kGrh = 40;
  End near(device, IBV_QPT_UD), far(device, IBV_QPT_UD);
  connect(near, far);
  Memory source(device, 512), target(device, kGrh + 512);
  fill(source, 6);
  if (group != nullptr) CHECK(provider().attach_mcast(far.qp, group, 0) == 0);
  far.post_receive(1, target.sge(0, kGrh + 512));
  ibv_ah_attr address = near.address();
  if (group != nullptr) address.grh.dgid = *group;
  ibv_ah* handle = provider().create_ah(device.pd, &address);
  CHECK(handle != nullptr);
  ibv_send_wr send = request(2, IBV_WR_SEND);
  send.wr.ud = {handle, group == nullptr ? far.qp->qp_num : 0xffffff, kQkey};
  CHECK(near.post(send, source.sge(0, 512)) == 0);
  near.sent.expect(2);
  const ibv_wc wc = far.received.expect(1);
  CHECK(wc.byte_len == kGrh + 512 && (wc.wc_flags & IBV_WC_GRH) != 0 && wc.src_qp == near.qp->qp_num);
  CHECK(std::memcmp(target.bytes.data() + kGrh, source.bytes.data(), 512) == 0);
  CHECK(provider().destroy_ah(handle) == 0);
  if (group != nullptr) CHECK(provider().detach_mcast(far.qp, group, 0) == 0);
}

void datagram(Device& device) { send_datagram(device, nullptr); }

void multicast(Device& device) {
  // The host must be a member too, or its IP layer does not hand a copy of the packet back.
  ip_mreqn member{};
  member.imr_multiaddr.s_addr = htonl(0xef4d0001);  // 239.77.0.1
  member.imr_ifindex = static_cast<int>(device.gid.interface_index);
  const int membership = socket(AF_INET, SOCK_DGRAM, 0);
  CHECK(setsockopt(membership, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member) == 0);
  ibv_gid group{};
  group.raw[10] = group.raw[11] = 0xff;
  std::memcpy(group.raw + 12, &member.imr_multiaddr, 4);
  send_datagram(device, &group);
  close(membership);
}

void resize(Device& device) {
  Queue queue(device, 4);
  CHECK(provider().resize_cq(queue.cq, 200) == 0);
  CHECK(queue.cq->cqe >= 200);
  if (!device.can(kCapabilityDatagram)) return;
  End near(device, IBV_QPT_RC), far(device, IBV_QPT_RC);
  connect(near, far);
  Memory source(device, 8), target(device, 8);
  for (uint64_t i = 0; i < 8; ++i) {
    CHECK(near.post(one_sided(i, IBV_WR_RDMA_WRITE, target.address(), target.mr->rkey), source.sge(0, 8)) ==
          0);
  }
  // The completions of what was posted stay in order across a change of the queue's size.
  for (uint64_t i = 0; i < 3; ++i) near.sent.expect(i);
  CHECK(provider().resize_cq(near.sent.cq, 128) == 0);
  for (uint64_t i = 3; i < 7; ++i) near.sent.expect(i);
  near.sent.expect(7);
}

void reregister(Device& device) {
  Memory memory(device, 4096);
  std::vector<uint8_t> elsewhere(4096);
  CHECK(provider().rereg_mr(memory.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                            IBV_ACCESS_LOCAL_WRITE) == 0);
  CHECK(provider().rereg_mr(memory.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, elsewhere.data(),
                            elsewhere.size(), 0) == 0);
  CHECK(provider().rereg_mr(memory.mr, 1 << 20, nullptr, nullptr, 0, 0) == EINVAL);
}

void extended_queue(Device& device) {
  ibv_cq_init_attr_ex attributes{};
  attributes.cqe = 16;
  attributes.wc_flags = IBV_WC_STANDARD_FLAGS;
  if (device.can(kCapabilityTimestamps)) attributes.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  ibv_cq_ex* extended = provider().create_cq_ex(device.context, &attributes, Progress::automatic);
  CHECK(extended != nullptr);
  Queue queue(ibv_cq_ex_to_cq(extended));
  ibv_poll_cq_attr poll{};
  CHECK(ibv_start_poll(extended, &poll) == ENOENT);
  if (!device.can(kCapabilityTimestamps)) {
    attributes.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    CHECK(provider().create_cq_ex(device.context, &attributes, Progress::automatic) == nullptr);
  }
}

void overflow_event(Device& device) {
  Events first(device), second(device);
  End near(device, IBV_QPT_RC, nullptr, 1), far(device, IBV_QPT_RC);
  connect(near, far);
  Memory source(device, 8), target(device, 8);
  for (uint64_t i = 0; i < 32; ++i) {
    near.post(one_sided(i, IBV_WR_RDMA_WRITE, target.address(), target.mr->rkey), source.sge(0, 8));
  }
  first.expect(IBV_EVENT_CQ_ERR, near.sent.cq);
  second.expect(IBV_EVENT_CQ_ERR, near.sent.cq);
}

// `action` if the device says that it can; else a line that says so.
void run(Device& device, const char* name, uint32_t capability, void (*action)(Device&)) {
  if ((device.capabilities & capability) != capability) {
    std::printf("no %s: the device has no such capability\n", name);
    return;
  }
  action(device);
  std::printf("ok %s\n", name);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ibverbs_smoke DEVICE\n");
    return 2;
  }
  Device device(argv[1]);
  std::printf("capabilities %#x\n", device.capabilities);
  run(device, "gids", 0, gids);
  run(device, "extended-queue", kCapabilityDatagram, extended_queue);
  run(device, "shared-receive-queue", kCapabilitySharedReceiveQueue, shared_receive_queue);
  run(device, "resize", kCapabilityResize, resize);
  run(device, "reregister", kCapabilityReregister, reregister);
  run(device, "reliable", kCapabilityDatagram, reliable);
  run(device, "flushed", kCapabilityDatagram, flushed);
  run(device, "atomics", kCapabilityDatagram | kCapabilityAtomics, atomics);
  run(device, "unreliable", kCapabilityDatagram, unreliable);
  run(device, "datagram", kCapabilityDatagram, datagram);
  run(device, "memory-window", kCapabilityDatagram | kCapabilityMemoryWindow, memory_window);
  run(device, "multicast", kCapabilityMulticast, multicast);
  run(device, "overflow-event", kCapabilityDatagram, overflow_event);
}
