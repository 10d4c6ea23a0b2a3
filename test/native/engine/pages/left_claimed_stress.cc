// Pages that a process left claimed when it died: what the next one makes of them.
#include <sys/socket.h>

#include <filesystem>

#include "../fixture/nbd_fixture.h"
#include "base/crc32c.h"

namespace engine_left_claimed_stress {

using namespace fixture;

// Pages that were left claimed stay so until their replicas are alike, whenever a process dies meanwhile.
// Each of these dies after it has done `before_death`.
void until_alike() {
  const std::string file = fresh_path("/tmp/nbd_left_claimed");
  using Pages = std::vector<uint64_t>;
  const auto found_by_next = [&file](auto before_death) {
    PageMap map;
    Pages left;
    CHECK(map.open(64, file, false, [&left](uint64_t page) {
      left.push_back(page);
      return state_after_death(page == 63, false, true);
    }) == 0);
    for (const uint64_t page : left)
      CHECK(map.get(page) == (page == 63 ? PageState::unset : PageState::claimed));
    before_death(map);
    return left;
  };
  CHECK(found_by_next([](PageMap& map) {
          CHECK(map.claim(4, 1, PageState::unset) == 1);
          map.settle(4, 1, PageState::written);
          CHECK(map.claim(5, 5, PageState::unset) == 5 && map.claim(63, 1, PageState::unset) == 1);
        }).empty());
  CHECK(found_by_next([](PageMap&) {}) == (Pages{5, 6, 7, 8, 9, 63}));
  // Before the WRITE of its resync, and under it; as often as it happens.
  for (const bool written : {false, true, false}) {
    CHECK(found_by_next([written](PageMap& map) {
            map.begin_resync(5);
            CHECK(map.get(5) == PageState::written);
            CHECK(!written || map.claim(5, 1, PageState::written) == 1);
          }) == (Pages{5, 6, 7, 8, 9}));
  }
  // Whoever has begun with the next one has ended with the one before.
  CHECK(found_by_next([](PageMap& map) {
          map.begin_resync(5);
          map.begin_resync(6);
        }) == (Pages{5, 6, 7, 8, 9}));
  // A WRITE of zeros, and a page that no replica has: these read alike without more.
  CHECK(found_by_next([](PageMap& map) {
          map.begin_resync(6);
          CHECK(map.clear_until_claimed(6, 1) == 1);
        }) == (Pages{6, 7, 8, 9}));
  CHECK(found_by_next([](PageMap& map) {
          map.begin_resync(7);
          CHECK(map.lose(7, 1) == 0);
        }) == (Pages{7, 8, 9}));
  CHECK(found_by_next([](PageMap& map) {
          CHECK(map.get(6) == PageState::unset && map.get(7) == PageState::lost);
          map.begin_resync(8);
          map.begin_resync(9);
          map.end_resync();
        }) == (Pages{8, 9}));
  CHECK(found_by_next([](PageMap&) {}).empty());
  unlink(file.c_str());
}

// A process dies while a lost page is written: it is lost as before, for nobody has its bytes.
void lost_while_written() {
  const std::string start = fresh_path("/tmp/nbd_lost");
  NbdShape shape;
  shape.servers = shape.lanes = 2;
  VolumeOptions& options = shape.options.volume;
  options.page_map_file = start + ".map";
  options.checksum_file = start + ".crc";
  options.slab_map_file = start + ".slabs";
  VolumeOptions left = options;
  for (std::string* file : {&left.page_map_file, &left.checksum_file, &left.slab_map_file}) *file += ".left";
  {
    NbdVolume volume(shape);
    SocketClient client(volume.attach(0));
    const std::vector<uint8_t> pages(3 * kPage, 4);
    CHECK(client.write(0, pages.data(), 3 * kPage) == kOk);
    volume.servers[0]->set_mode(Server::Mode::dead);
    std::vector<uint8_t> page(kPage);
    CHECK(client.read(0, page.data(), kPage) == kEio);
    volume.wait_for(Event::Type::server_failed);
    Server& other = *volume.servers[1];
    PageMap& map = volume.engine->volume().pages();
    CHECK(volume.engine->volume().replace_slab(0, 1, other.key(), other.address() + 15 * shape.slab_size,
                                               true) == 0);
    // Written again, and lost no more.
    CHECK(client.write(2 * kPage, pages.data(), kPage) == kOk);
    CHECK(client.read(2 * kPage, page.data(), kPage) == kOk && page == std::vector<uint8_t>(kPage, 4));
    CHECK(!volume.engine->volume().checksums().marked_lost(2));
    other.set_mode(Server::Mode::hung);
    const int fd = volume.attach(1);
    const auto write = header(kCmdWrite, 1, 0, kPage);
    CHECK(send(fd, &write, sizeof write, MSG_NOSIGNAL) == sizeof write);
    CHECK(send(fd, pages.data(), kPage, MSG_NOSIGNAL) == kPage);
    await([&] {
      return map.get(0) == PageState::claimed && volume.engine->volume().checksums().marked_lost(0);
    });
    for (const std::string& file : {options.page_map_file, options.checksum_file, options.slab_map_file})
      std::filesystem::copy_file(file, file + ".left");
    other.set_mode(Server::Mode::dead);
    close(fd);
  }
  Volume next;
  std::string why;
  left.size = shape.size;
  left.slab_size = shape.slab_size;
  CHECK(next.open(left, why) == 0, "%s", why.c_str());
  CHECK(next.pages().get(0) == PageState::lost && next.pages().get(1) == PageState::lost);
  CHECK(next.pages().get(2) == PageState::written && next.left_claimed().empty());
  CHECK(next.checksums().noted(0) == 0);
  for (const std::string& file : {options.page_map_file, options.checksum_file, options.slab_map_file}) {
    unlink(file.c_str());
    unlink((file + ".left").c_str());
  }
}

// A page of zeros but for its end, with this CRC32C: from the sum back over the last 4 bytes.
std::vector<uint8_t> page_with_sum(uint32_t sum) {
  std::vector<uint8_t> page(kPage);
  uint32_t reached = ~sum;
  for (int bit = 0; bit < 32; bit++) {
    const bool subtracted = (reached & 0x80000000) != 0;
    reached = (subtracted ? reached ^ 0x82f63b78 : reached) << 1 | (subtracted ? 1 : 0);
  }
  const uint32_t last = reached ^ ~crc32c(page.data(), kPage - 4);
  memcpy(page.data() + kPage - 4, &last, 4);
  CHECK(crc32c(page.data(), kPage) == sum);
  return page;
}

// Whatever a page's sum is, a page that a WRITE claims is not taken for a lost one.
void sum_is_no_mark() {
  PageChecksums checksums;
  CHECK(checksums.open(1, "", false, false) == 0);
  for (uint32_t sum = 0; sum < 16; sum++) {
    std::vector<uint8_t> page = page_with_sum(sum);
    checksums.note(0, kPage, page.data());
    CHECK(!checksums.marked_lost(0) && checksums.right(0, page.data()));
    page[7] ^= 1;
    CHECK(checksums.right(0, page.data()) == (checksums.noted(0) == 0));
  }
}

STRESS(engine_left_claimed) {
  timed("until alike", until_alike);
  timed("a sum is no mark", sum_is_no_mark);
  timed("lost while written", lost_while_written);
  std::printf("ok\n");
  return 0;
}

}  // namespace engine_left_claimed_stress
