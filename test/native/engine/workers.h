// Verified random I/O: workers that know what each byte must be.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>

#include "fixture.h"

namespace fixture {

// The bytes that one worker alone uses, and what it knows of them.
struct Stripe {
  uint64_t offset;
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> known;  // 1 or 0 each; empty: all are

  void wrote(uint64_t at, const uint8_t* from, uint64_t length) {
    std::memcpy(&bytes[at], from, length);
    if (!known.empty()) std::memset(&known[at], 1, length);
  }
  void zeroed(uint64_t at, uint64_t length) {
    std::memset(&bytes[at], 0, length);
    if (!known.empty()) std::memset(&known[at], 1, length);
  }
  void forget(uint64_t at, uint64_t length) {
    if (known.empty()) known.assign(bytes.size(), 1);
    std::memset(&known[at], 0, length);
  }
  // The first known byte of the range that is not as in `got`; `length`: there is none.
  uint64_t mismatch(uint64_t at, const uint8_t* got, uint64_t length) const {
    const uint8_t* const wanted = &bytes[at];
    for (uint64_t i = 0; i < length;) {
      uint64_t end = length;
      if (!known.empty()) {
        const auto* const first = static_cast<const uint8_t*>(std::memchr(&known[at + i], 1, length - i));
        if (first == nullptr) break;
        i = static_cast<uint64_t>(first - &known[at]);
        const auto* const last = static_cast<const uint8_t*>(std::memchr(first, 0, length - i));
        if (last != nullptr) end = static_cast<uint64_t>(last - &known[at]);
      }
      if (std::memcmp(got + i, wanted + i, end - i) != 0)
        return static_cast<uint64_t>(std::mismatch(got + i, got + end, wanted + i).first - got);
      i = end;
    }
    return length;
  }
};

// Workers own adjacent stripes that do not end at page boundaries, so neighbours share pages and go
// through different lanes: the races of first writes, and of zeros beside data.
class Workers {
 public:
  Workers(TestVolume& volume, uint32_t count) : Workers(volume.shape.size, sockets_of(volume), count) {
    volume_ = &volume;
  }
  // `sockets`: of clients in transmission phase, one for each lane; they are taken over.
  Workers(uint64_t size, const std::vector<int>& sockets, uint32_t count) {
    for (const int socket : sockets) clients_.push_back(std::make_unique<Client>(socket));
    const uint64_t each = size / count;
    for (uint32_t i = 0; i < count; i++) {
      const uint64_t first = i == 0 ? 0 : i * each + 1234 + i;
      const uint64_t end = i + 1 == count ? size : (i + 1) * each + 1234 + i + 1;
      stripes_.push_back({first, std::vector<uint8_t>(end - first), {}});
    }
  }

  // Each worker does `operations`, other ones in each run, then reads all of its stripe.
  void run(int operations, bool failures_expected, uint32_t largest) {
    runs_++;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < stripes_.size(); i++)
      threads.emplace_back([=, this] { work(stripes_[i], operations, failures_expected, largest, i); });
    for (auto& thread : threads) thread.join();
  }
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> done{0};  // operations

 private:
  static std::vector<int> sockets_of(TestVolume& volume) {
    std::vector<int> sockets;
    for (uint32_t i = 0; i < volume.shape.lanes; i++) sockets.push_back(volume.attach(i));
    return sockets;
  }
  void work(Stripe& stripe, int operations, bool failures_expected, uint32_t largest, size_t seed) {
    std::mt19937_64 random(seed * 7919 + runs_);
    std::vector<uint8_t> buffer(largest);
    const auto settle = [&](uint32_t error, uint64_t at, uint32_t length, const std::function<void()>& good) {
      if (error == kOk) return good();
      if (!failures_expected && volume_ != nullptr) volume_->print_failures();
      CHECK(failures_expected, "error %u of %u bytes at %llu", error, length,
            static_cast<unsigned long long>(stripe.offset + at));
      CHECK(error == kEio || error == kEshutdown || error == kGone);
      errors++;
      gone_ = gone_ || error == kGone;
      stripe.forget(at, length);
    };
    const auto verify = [&](Client& client, uint64_t at, uint32_t length) {
      const uint32_t error = client.read(stripe.offset + at, buffer.data(), length);
      if (error != kOk) {
        if (!failures_expected && volume_ != nullptr) volume_->print_failures();
        CHECK(failures_expected && (error == kEio || error == kEshutdown || error == kGone));
        errors++;
        gone_ = gone_ || error == kGone;
        return;
      }
      const uint64_t wrong = stripe.mismatch(at, buffer.data(), length);
      if (wrong == length) return;
      std::fprintf(stderr, "worker %zu: byte %llu is %02x instead of %02x (read of %u at %llu)\n", seed,
                   static_cast<unsigned long long>(stripe.offset + at + wrong), buffer[wrong],
                   stripe.bytes[at + wrong], length, static_cast<unsigned long long>(stripe.offset + at));
      std::abort();
    };
    for (int n = 0; n < operations && !gone_; n++) {
      done++;
      Client& client = *clients_[random() % clients_.size()];
      const uint64_t room = stripe.bytes.size();
      uint64_t length = 1 + random() % (random() % 8 == 0 ? largest : random() % 4 == 0 ? 65536 : 9000);
      length = std::min<uint64_t>(length, room);
      uint64_t at = random() % (room - length + 1);
      if (random() % 2 == 0) {  // whole pages, as a kernel does it
        const uint64_t page = (stripe.offset + at + 4095) / 4096 * 4096;
        length = (length + 4095) / 4096 * 4096;
        if (page + length > stripe.offset + room) continue;
        at = page - stripe.offset;
      }
      if (length > largest) continue;
      const auto size = static_cast<uint32_t>(length);
      switch (random() % 8) {
        case 0: {
          const uint32_t error = client.call(kCmdWriteZeroes, stripe.offset + at, size, nullptr, nullptr,
                                             random() % 2 == 0 ? kCmdFlagNoHole : 0);
          settle(error, at, size, [&] { stripe.zeroed(at, size); });
          break;
        }
        case 1: {
          const uint64_t first = (stripe.offset + at + 4095) / 4096 * 4096;
          const uint64_t end = (stripe.offset + at + size) / 4096 * 4096;
          settle(client.call(kCmdTrim, stripe.offset + at, size), at, size, [&] {
            if (first < end) stripe.zeroed(first - stripe.offset, end - first);
          });
          break;
        }
        case 2:
        case 3:
        case 4: {
          fill_noise(buffer.data(), size, random());
          settle(client.write(stripe.offset + at, buffer.data(), size, random() % 4 == 0 ? kCmdFlagFua : 0),
                 at, size, [&] { stripe.wrote(at, buffer.data(), size); });
          break;
        }
        case 5: {
          const uint32_t error = client.call(kCmdFlush, 0, 0);
          CHECK(error == kOk || (failures_expected && (error == kEshutdown || error == kGone)));
          break;
        }
        default:
          verify(client, at, size);
      }
    }
    for (uint64_t at = 0; at < stripe.bytes.size() && !gone_; at += largest)
      verify(*clients_[random() % clients_.size()], at,
             static_cast<uint32_t>(std::min<uint64_t>(largest, stripe.bytes.size() - at)));
  }

  std::atomic<bool> gone_{false};  // the engine closed
  uint64_t runs_ = 0;
  TestVolume* volume_ = nullptr;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Stripe> stripes_;
};

}  // namespace fixture
