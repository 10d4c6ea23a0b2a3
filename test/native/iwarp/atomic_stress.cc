// Atomics over iwarp (RFC 7306 §5): results, order, contention, and what is refused.
#include "iwarp/wire/ddp.h"
#include "traffic.h"

namespace iwarp_atomic_stress {

using namespace fixture;
using namespace rdmakit::iwarp;

constexpr int kAtomicAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ;

struct Atomic {
  ibv_wr_opcode opcode;
  uint64_t compare_add;
  uint64_t swap = 0;
};
int post_atomic(End& end, uint64_t wr_id, const Atomic& atomic, const Memory& target, size_t offset,
                std::vector<ibv_sge> sges, int flags = IBV_SEND_SIGNALED) {
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = wr_id;
  request.opcode = atomic.opcode;
  request.send_flags = static_cast<unsigned>(flags);
  request.wr.atomic.remote_addr = target.address(offset);
  request.wr.atomic.rkey = target.mr->rkey;
  request.wr.atomic.compare_add = atomic.compare_add;
  request.wr.atomic.swap = atomic.swap;
  request.sg_list = sges.data();
  request.num_sge = static_cast<int>(sges.size());
  return ibv_post_send(end.qp, &request, &bad);
}
Atomic add(uint64_t value) { return {IBV_WR_ATOMIC_FETCH_AND_ADD, value}; }
Atomic swap(uint64_t compare, uint64_t value) { return {IBV_WR_ATOMIC_CMP_AND_SWP, compare, value}; }

uint64_t word(const Memory& memory, size_t offset) {
  uint64_t value;
  std::memcpy(&value, memory.bytes.data() + offset, sizeof value);
  return value;
}
void set_word(Memory& memory, size_t offset, uint64_t value) {
  std::memcpy(memory.bytes.data() + offset, &value, sizeof value);
}

// What comes back is what was there, in the byte order of both hosts, scattered like any READ.
void results(Progress progress) {
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  End& client = *pair.client;
  Memory back(client.pd, 64), target(pair.server->pd, 64, kAtomicAccess);
  set_word(target, 8, 0xfedcba9876543210);
  CHECK(post_atomic(client, 1, add(0x0123456789abcdf1), target, 8, {back.sge(0, 8)}) == 0);
  Completions done = pump(client, 1, *pair.server, 0);
  CHECK(done.client[0].status == IBV_WC_SUCCESS && done.client[0].opcode == IBV_WC_FETCH_ADD);
  CHECK(done.client[0].byte_len == 8 && done.client[0].wr_id == 1);
  CHECK(word(back, 0) == 0xfedcba9876543210 && word(target, 8) == 1);

  CHECK(post_atomic(client, 2, swap(1, 99), target, 8, {back.sge(0, 3), back.sge(16, 5)}) == 0);
  done = pump(client, 1, *pair.server, 0);
  CHECK(done.client[0].opcode == IBV_WC_COMP_SWAP && word(target, 8) == 99);
  CHECK(back.bytes[0] == 1 && back.bytes[16] == 0);
  CHECK(post_atomic(client, 3, swap(1, 7), target, 8, {back.sge(0, 8)}) == 0);
  pump(client, 1, *pair.server, 0);
  CHECK(word(back, 0) == 99 && word(target, 8) == 99);

  ibv_device_attr attributes;
  CHECK(provider().query_device(context(), &attributes) == 0 && attributes.atomic_cap == IBV_ATOMIC_GLOB);
  CHECK(provider().capabilities(context()) & kCapabilityAtomics);
}

// More atomics and READs than may be outstanding, in one go: each waits its turn, all are in order, and
// a fence waits for them.
void depth_and_order(Progress progress) {
  constexpr uint64_t kEach = 40;
  Listener listener;
  Pair pair(listener, {.progress = progress, .reads = 3}, {.progress = progress, .reads = 3});
  End& client = *pair.client;
  Memory back(client.pd, 8 * 2 * kEach), one(client.pd, 8),
      target(pair.server->pd, 64, kAtomicAccess | IBV_ACCESS_REMOTE_WRITE);
  for (uint64_t i = 0; i < kEach; i++) {
    CHECK(post_atomic(client, 2 * i, add(1), target, 0, {back.sge(16 * i, 8)}) == 0);
    post(client, read_from(target, 0, 2 * i + 1), {back.sge(16 * i + 8, 8)});
  }
  set_word(one, 0, 12345);
  post(client, write_to(target, 0, 1000, IBV_SEND_SIGNALED | IBV_SEND_FENCE), {one.sge(0, 8)});
  const Completions done = pump(client, 2 * kEach + 1, *pair.server, 0);
  for (uint64_t i = 0; i < 2 * kEach; i++) CHECK(done.client[i].wr_id == i);
  for (uint64_t i = 0; i < kEach; i++) {
    CHECK(word(back, 16 * i) == i && word(back, 16 * i + 8) == i + 1);  // done and read in turn
  }
  post(client, read_from(target, 0, 1), {one.sge(0, 8)});
  pump(client, 1, *pair.server, 0);
  CHECK(word(one, 0) == 12345);
}

// Connections on threads of their own and the application itself add to one counter.
void contention() {
  constexpr int kPairs = 3;
  const uint64_t kEach = effort(3000);
  Listener listener;
  std::vector<std::unique_ptr<Pair>> pairs;
  for (int i = 0; i < kPairs; i++) {
    pairs.push_back(
        std::make_unique<Pair>(listener, Options{.depth = 16}, Options{.progress = Progress::automatic}));
  }
  alignas(8) uint64_t counter = 0;
  std::vector<ibv_mr*> regions;  // the same eight bytes, for each connection's own domain
  for (const auto& pair : pairs) {
    regions.push_back(provider().reg_mr(pair->server->pd, &counter, 8, kAtomicAccess));
    CHECK(regions.back() != nullptr);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kPairs; t++) {
    threads.emplace_back([&, t] {
      End& client = *pairs[static_cast<size_t>(t)]->client;
      Memory back(client.pd, 8);
      for (uint64_t i = 0; i < kEach; i++) {
        ibv_sge sge = back.sge(0, 8);
        ibv_send_wr request{}, *bad = nullptr;
        request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        request.send_flags = IBV_SEND_SIGNALED;
        request.wr.atomic.remote_addr = reinterpret_cast<uint64_t>(&counter);
        request.wr.atomic.rkey = regions[static_cast<size_t>(t)]->rkey;
        request.wr.atomic.compare_add = 1;
        request.sg_list = &sge;
        request.num_sge = 1;
        CHECK(ibv_post_send(client.qp, &request, &bad) == 0);
        client.expect(0);
      }
    });
  }
  for (uint64_t i = 0; i < kEach; i++) {
    std::atomic_ref<uint64_t>(counter).fetch_add(1);
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::atomic_ref<uint64_t>(counter).load() == (kPairs + 1) * kEach);
  for (ibv_mr* region : regions) CHECK(provider().dereg_mr(region) == 0);
}

void refused(Progress progress) {
  enum class Fault { alignment, access, bounds, unknown_key, other_domain };
  for (const Fault fault :
       {Fault::alignment, Fault::access, Fault::bounds, Fault::unknown_key, Fault::other_domain}) {
    Listener listener;
    Pair pair(listener, {.progress = progress}, {.progress = progress});
    End& client = *pair.client;
    Memory back(client.pd, 64), target(pair.server->pd, 64, kAtomicAccess),
        other(client.pd, 64, kAtomicAccess);
    Memory shut(pair.server->pd, 64,
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    if (fault == Fault::unknown_key) target.mr->rkey ^= 1;
    const Memory& wrong = fault == Fault::access ? shut : fault == Fault::other_domain ? other : target;
    const size_t at = fault == Fault::alignment ? 4 : fault == Fault::bounds ? 64 : 0;
    // The READ ahead of it succeeds: it is the atomic that is named.
    post(client, read_from(shut, 0, 1), {back.sge(8, 8)});
    CHECK(post_atomic(client, 2, add(1), wrong, at, {back.sge(0, 8)}) == 0);
    CHECK(post_atomic(client, 3, add(1), target, 0, {back.sge(0, 8)}) == 0);
    const Completions done = pump(client, 3, *pair.server, 0);
    CHECK(done.client[1].wr_id == 2 && done.client[2].wr_id == 3);
    CHECK(done.client[1].status ==
          (fault == Fault::alignment ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR));
    CHECK(done.client[2].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(client.id.events->expect(CmEvent::Type::disconnected).status == ECONNABORTED);
    CHECK(word(target, 0) == 0 && word(shut, 0) == 0);
    if (fault == Fault::unknown_key) target.mr->rkey ^= 1;
  }
  // The initiator's own memory.
  Listener listener;
  Pair pair(listener, {.progress = progress}, {.progress = progress});
  Memory back(pair.client->pd, 64, IBV_ACCESS_REMOTE_READ), target(pair.server->pd, 64, kAtomicAccess);
  CHECK(post_atomic(*pair.client, 1, add(1), target, 0, {back.sge(0, 8)}) == 0);
  const Completions done = pump(*pair.client, 1, *pair.server, 0);
  CHECK(done.client[0].status == IBV_WC_LOC_PROT_ERR);
  CHECK(post_atomic(*pair.client, 1, add(1), target, 0, {back.sge(0, 4)}) == EINVAL);
  CHECK(post_atomic(*pair.client, 1, add(1), target, 0, {back.sge(0, 8)},
                    IBV_SEND_SIGNALED | IBV_SEND_INLINE) == EINVAL);
  errno = 0;
  CHECK(provider().reg_mr(pair.client->pd, back.bytes.data(), 8, IBV_ACCESS_REMOTE_ATOMIC) == nullptr &&
        errno == EINVAL);
}

// The bytes of the RFC's figures, there and back.
void wire_format() {
  AtomicRequest request;
  request.operation = AtomicOperation::compare_swap;
  request.identifier = 0x01020304;
  request.stag = 0x05060708;
  request.offset = 0x090a0b0c0d0e0f10;
  request.add_swap = 0x1112131415161718;
  request.add_swap_mask = 0x191a1b1c1d1e1f20;
  request.compare = 0x2122232425262728;
  request.compare_mask = 0x292a2b2c2d2e2f30;
  std::vector<uint8_t> bytes(kAtomicRequestLength);
  build_atomic_request(bytes.data(), request);
  CHECK(bytes[0] == 0 && bytes[3] == 2);
  for (size_t i = 4; i < bytes.size(); i++) CHECK(bytes[i] == i - 3);
  AtomicRequest parsed;
  CHECK(parse_atomic_request(bytes.data(), parsed));
  CHECK(parsed.identifier == request.identifier && parsed.stag == request.stag &&
        parsed.offset == request.offset && parsed.add_swap == request.add_swap &&
        parsed.add_swap_mask == request.add_swap_mask && parsed.compare == request.compare &&
        parsed.compare_mask == request.compare_mask);
  bytes[3] = 1;  // no operation of the RFC
  CHECK(!parse_atomic_request(bytes.data(), parsed));
  std::vector<uint8_t> answer(kAtomicResponseLength);
  build_atomic_response(answer.data(), {7, 0x0102030405060708});
  CHECK(answer == std::vector<uint8_t>({0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK(parse_atomic_response(answer.data()).original == 0x0102030405060708);

  // Which queue, which length, one segment only.
  const auto refusal = [](Opcode opcode, uint32_t queue, size_t payload, uint32_t offset, bool last) {
    Segment segment;
    segment.opcode = opcode;
    segment.queue = queue;
    segment.sequence = 1;
    segment.message_offset = offset;
    segment.last = last;
    std::vector<uint8_t> ulpdu(kUntaggedHeaderLength + payload);
    build_segment(ulpdu.data(), segment);
    TerminateCode why;
    return parse_segment(ulpdu.data(), ulpdu.size(), segment, why) ? TerminateCode{9, 9, 9} : why;
  };
  constexpr TerminateCode kGood{9, 9, 9};
  CHECK(refusal(Opcode::atomic_request, 1, 52, 0, true) == kGood);
  CHECK(refusal(Opcode::atomic_response, 3, 12, 0, true) == kGood);
  CHECK(refusal(Opcode::atomic_request, 3, 52, 0, true) == terminate::ddp_queue);
  CHECK(refusal(Opcode::atomic_response, 1, 12, 0, true) == terminate::ddp_queue);
  CHECK(refusal(Opcode::atomic_request, 1, 51, 0, true) == terminate::rdmap_catastrophic);
  CHECK(refusal(Opcode::atomic_request, 1, 53, 0, true) == terminate::ddp_too_long);
  CHECK(refusal(Opcode::atomic_request, 1, 52, 4, true) == terminate::ddp_message_offset);
  CHECK(refusal(Opcode::atomic_response, 3, 12, 0, false) == terminate::ddp_message_offset);
}

// Masks as RFC 7306 §5.2 has them: where an add's fields end, which bits are compared, which are swapped.
void masks() {
  AtomicRequest request;
  request.add_swap = 1;
  CHECK(atomic_result(request, 0xff) == 0x100);
  request.add_swap_mask = 0x80;
  CHECK(atomic_result(request, 0xff) == 0);  // carried out of the low byte: dropped
  CHECK(atomic_result(request, 0x17f) == 0x180);
  request.add_swap_mask = 0x8000000000000080;
  request.add_swap = 0x0000000000000101;
  CHECK(atomic_result(request, 0xffffffffffffffff) == 0);
  CHECK(atomic_result(request, 0xfffffffffffffe01) == 0xffffffffffffff02);
  request.add_swap_mask = UINT64_MAX;  // 64 fields of one bit
  CHECK(atomic_result(request, 0x0100) == 0x0001);

  request.operation = AtomicOperation::compare_swap;
  request.compare = 0xab00;
  request.compare_mask = 0xff00;
  request.add_swap = 0x1234;
  request.add_swap_mask = 0x00ff;
  CHECK(atomic_result(request, 0x77ab55) == 0x77ab34);
  CHECK(atomic_result(request, 0x77ac55) == 0x77ac55);
  request.compare_mask = 0;  // compares nothing: always swaps
  request.add_swap_mask = UINT64_MAX;
  CHECK(atomic_result(request, 5) == 0x1234);
}

STRESS(iwarp_atomic) {
  timed("wire format", wire_format);
  timed("masks", masks);
  for (const Progress mode : {Progress::manual, Progress::automatic}) {
    timed("results", [=] { results(mode); });
    timed("depth and order", [=] { depth_and_order(mode); });
    timed("refused", [=] { refused(mode); });
  }
  timed("contention", contention);
  std::puts("ok");
  return 0;
}

}  // namespace iwarp_atomic_stress
