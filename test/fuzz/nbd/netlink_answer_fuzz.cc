// Datagrams of generic netlink, whatever is in them: nothing outside of them is read, an error is an errno
// value, and what the kernel says of a device comes from its attribute.
#include <linux/nbd-netlink.h>

#include "../fuzz_check.h"
#include "kernel/netlink_answer.h"
#include "kernel/netlink_message.h"

using namespace rdmakit::nbd;

namespace {

// A message whose header and length are right; what it holds is up to the script.
std::vector<uint8_t> made(fuzz::Input& input) {
  NetlinkMessage message(input.byte() % 3 == 0 ? static_cast<uint16_t>(NLMSG_ERROR) : input.byte(), 1, 1);
  for (int i = 0; i < 8 && !input.empty(); i++) {
    const uint16_t type = input.byte() % 16;
    if (input.byte() % 4 != 0) {
      const auto bytes = input.take(input.byte() % 64);
      message.add(type, bytes.data(), bytes.size());
      continue;
    }
    const size_t list = message.begin(NBD_ATTR_DEVICE_LIST);
    for (int device = input.byte() % 4; device > 0; device--) {
      const size_t item = message.begin(NBD_DEVICE_ITEM);
      message.add(NBD_DEVICE_INDEX, input.four());
      const uint8_t connected = input.byte();
      message.add(NBD_DEVICE_CONNECTED, &connected, input.byte() % 4 == 0 ? 0 : 1);
      message.end(item);
    }
    message.end(list);
  }
  const auto bytes = message.finish();
  std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  if (copy.size() > 7) copy[7] = input.byte();  // flags: capped, with attributes
  return copy;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  NetlinkAnswer answer;
  for (int datagram = 0; datagram < 4 && !input.empty(); datagram++) {
    std::vector<uint8_t> bytes;
    if (input.byte() % 2 == 0) {
      bytes = made(input);
    } else {
      const auto raw = input.take(input.two() % 2048);
      bytes.assign(raw.begin(), raw.end());
    }
    const bool whole = read_datagram(bytes, answer);
    CHECK(answer.error >= 0 && answer.error <= 4095);
    CHECK(whole || answer.error == 0);
    CHECK(answer.payload.size() <= 4096 && answer.text.size() <= 4096);
    CHECK(devices_of(answer.payload).size() * NLA_HDRLEN <= answer.payload.size());
    if (whole) break;
  }
  return 0;
}
