// RDMA WRITEs of bytes that are lent (DataPathVerbs::post_send_lent), for both software providers: what
// arrives is what was lent, whatever becomes of it as soon as the call is over.
#pragma once

#include "connected.h"

namespace fixture {

constexpr uint8_t kPlace = 0x11;  // what is where lent bytes belong, until they are copied there
constexpr uint8_t kGone = 0xee;   // what the lender has there when he has them back

template <typename Memory>
uint8_t* bytes_of(const Memory& memory) {
  return reinterpret_cast<uint8_t*>(memory.sge(0, 1).addr);
}

// `length` bytes of one element, of which those from `from` to `to` are lent.
struct Lent {
  size_t length;
  size_t from;
  size_t to;
};

template <typename Memory>
void post_lent(End& end, const Send& send, const Memory& near, size_t offset, const Lent& lent,
               uint64_t seed) {
  const size_t count = lent.to - lent.from;
  std::vector<uint8_t> bytes(lent.length), given(count + 1);
  fill_noise(bytes.data(), bytes.size(), seed);
  uint8_t* const place = bytes_of(near) + offset;
  std::memcpy(place, bytes.data(), bytes.size());
  std::memcpy(given.data(), bytes.data() + lent.from, count);
  std::memset(place + lent.from, kPlace, count);
  ibv_sge element = near.sge(offset, lent.length);
  ibv_send_wr request{}, *bad = nullptr;
  request.wr_id = send.wr_id;
  request.opcode = send.opcode;
  request.send_flags = static_cast<unsigned>(send.flags);
  request.imm_data = htonl(send.immediate);
  request.wr.rdma.remote_addr = send.remote_address;
  request.wr.rdma.rkey = send.remote_key;
  request.sg_list = &element;
  request.num_sge = 1;
  const LentBytes what{given.data(), element.addr + lent.from, count};
  CHECK(provider().data_path_verbs()->post_send_lent(end.qp, &request, &bad, what) == 0);
  std::memset(given.data(), kGone, given.size());
}

template <typename Memory>
bool arrived(const Memory& far, size_t offset, size_t length, uint64_t seed) {
  return is_noise(bytes_of(far) + offset, length, seed);
}

// Whether any byte was copied to where the lent ones belong.
template <typename Memory>
bool copied(const Memory& near, size_t offset, const Lent& lent) {
  return !is_filled(bytes_of(near) + offset + lent.from, lent.to - lent.from, kPlace);
}

// At the element's start, its end, in its middle and all of it; of one segment and of several.
constexpr Lent kLent[] = {
    {1, 0, 1},
    {100, 0, 50},
    {100, 50, 100},
    {100, 30, 60},
    {4096, 8, 4096},
    {32'784, 16, 32'784},
    {70'000, 0, 70'000},
    {70'000, 69'999, 70'000},
    {200'000, 0, 1},
    {200'000, 8, 200'000},
    {200'000, 70'000, 70'001},
};

constexpr size_t kLargest = 200'000;

// `write(far, offset, id)`: a WRITE to there. Nothing waits, so messages of up to `at_once` bytes are not
// copied.
template <typename Memory, typename Write>
void lent_and_sent(End& client, End& server, size_t at_once, Write write) {
  const Memory near(client.pd, kLargest), far(server.pd, kLargest);
  // The first use of a region may have to wait for what its peer says of it.
  post(client, write(far, 0, 0), {near.sge(0, 1)});
  pump(client, 1, server, 0);
  for (uint32_t i = 0; i < std::size(kLent); ++i) {
    const Lent& lent = kLent[i];
    Send send = write(far, 0, i);
    send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    send.immediate = i;
    post_receive(server, i, far.sge(0, 1));
    post_lent(client, send, near, 0, lent, i);
    CHECK(lent.length > at_once || !copied(near, 0, lent), "case %u", i);
    const Completions done = pump(client, 1, server, 1);
    CHECK(done.client[0].status == IBV_WC_SUCCESS && done.server[0].status == IBV_WC_SUCCESS);
    CHECK(ntohl(done.server[0].imm_data) == i && arrived(far, 0, lent.length, i), "case %u", i);
  }
}

// Until something waits, and behind it: `come` lets it go on.
template <typename Memory, typename Write, typename Come>
void lent_and_waiting(End& client, End& server, ibv_wr_opcode opcode, uint32_t writes, Write write,
                      Come come) {
  const Memory near(client.pd, writes * kLargest), far(server.pd, writes * kLargest);
  const Lent lent{kLargest, 8, kLargest - 8};
  uint32_t copies = 0;
  for (uint32_t i = 0; i < writes; ++i) {
    Send send = write(far, i * kLargest, i);
    send.opcode = opcode;
    post_lent(client, send, near, i * kLargest, lent, i);
    copies += copied(near, i * kLargest, lent);
  }
  CHECK(copied(near, (writes - 1) * kLargest, lent), "nothing waits");
  const size_t receives = come(far);
  const Completions done = pump(client, writes, server, receives);
  for (uint32_t i = 0; i < writes; ++i) {
    CHECK(done.client[i].status == IBV_WC_SUCCESS && done.client[i].wr_id == i);
    CHECK(arrived(far, i * kLargest, kLargest, i), "write %u of %u", i, writes);
  }
  std::printf("%u of %u copied\n", copies, writes);
}

// The element is checked all the same.
template <typename Memory, typename Write>
void lent_out_of_bounds(End& client, End& server, Write write) {
  const Memory near(client.pd, 4096), far(server.pd, 8192);
  std::vector<uint8_t> given(8192);
  ibv_sge element = near.sge(0, 8192);
  ibv_send_wr request{}, *bad = nullptr;
  const Send send = write(far, 0, 7);
  request.wr_id = send.wr_id;
  request.opcode = send.opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = send.remote_address;
  request.wr.rdma.rkey = send.remote_key;
  request.sg_list = &element;
  request.num_sge = 1;
  const LentBytes lent{given.data(), element.addr, 1000};
  CHECK(provider().data_path_verbs()->post_send_lent(client.qp, &request, &bad, lent) == 0);
  client.expect(7, IBV_WC_LOC_PROT_ERR);
}

}  // namespace fixture
