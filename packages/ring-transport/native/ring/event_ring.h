// Memory that a poller shares with its consumer (JavaScript): a single-producer single-consumer ring
// of descriptors, the words of its handshakes, and a few words for each connection. It is one
// ArrayBuffer in JavaScript, so a batch of messages crosses without a call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "rdmakit/invariant.h"

namespace rdmakit::ring {

// One frame, or an event of the poller's own.
struct alignas(32) Descriptor {
  uint32_t connection;
  uint32_t offset;       // of the payload in the connection's ring; `broken`: 0 completion, 1 violation;
                         // `writable`: kGrant…; `read`: ibv_wc_status
  uint32_t length;       // of the payload; of `broken`: ibv_wc_status or Violation
  uint32_t type;         // FrameType or Event
  uint32_t correlation;  // of `read`: its tag
  uint32_t immediate;
  uint32_t end;  // position of the frame's end, in units modulo 2^32
  uint32_t reserved;
};
static_assert(sizeof(Descriptor) == 32);

enum class Event : uint32_t { writable = 0x100, broken, detached, read };

class EventRing {
 public:
  // Layout in 32-bit words. Each word that one side writes has a cache line of its own.
  static constexpr uint32_t kLine = 16;
  static constexpr uint32_t kHead = 0 * kLine;
  static constexpr uint32_t kTail = 1 * kLine;
  static constexpr uint32_t kIdle = 2 * kLine;
  static constexpr uint32_t kFull = 3 * kLine;
  // By the polling thread: 1 where the peer works at the same time, else 0.
  static constexpr uint32_t kHurry = 4 * kLine;
  static constexpr uint32_t kSlots = 5 * kLine;
  static constexpr uint32_t kSlotStride = 2 * kLine;
  static constexpr uint32_t kReleased = 0;  // by the consumer: units consumed, modulo 2^32
  // By the sending thread: where it lays frames out. Units modulo 2^32: where the next frame goes, how far
  // frames may reach, and how far they have been posted; and the window that they are in.
  static constexpr uint32_t kStaging = 1;
  static constexpr uint32_t kStagingWords = 4;
  static constexpr uint32_t kReported = kLine;  // by the poller: units credited to the peer, modulo 2^32

  EventRing(uint32_t slots, uint32_t descriptors)
      : descriptors_at_(kSlots + slots * kSlotStride),
        mask_(descriptors - 1),
        bytes_((size_t{descriptors_at_} * 4 + size_t{descriptors} * sizeof(Descriptor) + 4095) &
               ~size_t{4095}),
        memory_(static_cast<uint32_t*>(std::aligned_alloc(4096, bytes_))) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::fill_n(memory_.get(), bytes_ / 4, 0u);
    memory_.get()[kIdle] = 1;
  }

  void* memory() const { return memory_.get(); }
  size_t bytes() const { return bytes_; }
  uint32_t descriptors_at() const { return descriptors_at_; }
  uint32_t descriptor_count() const { return mask_ + 1; }

  std::atomic_ref<uint32_t> word(uint32_t index) const {
    return std::atomic_ref<uint32_t>(memory_.get()[index]);
  }
  std::atomic_ref<uint32_t> slot_word(uint32_t slot, uint32_t which) const {
    return word(kSlots + slot * kSlotStride + which);
  }

  // --- hot path: the poller's side --------------------------------------------------------------
  // A place for the next descriptor, or nullptr when the consumer has not drained far enough. Then
  // `kFull` asks it to call Poller::wake when it has. Both sides store their word and then load the
  // other's, sequentially consistent, so either this sees the new tail or the consumer sees kFull.
  Descriptor* claim() {
    if (head_ - tail_ > mask_) {
      look(std::memory_order_acquire);
      if (head_ - tail_ > mask_) {
        word(kFull).store(1, std::memory_order_seq_cst);
        look(std::memory_order_seq_cst);
        if (head_ - tail_ > mask_) return nullptr;
      }
      word(kFull).store(0, std::memory_order_relaxed);
    }
    return at(head_);
  }
  void push() {
    RDMAKIT_INVARIANT(head_ - tail_ <= mask_, "descriptor %u, %u are taken, of %u places", head_, tail_,
                      descriptor_count());
    ++head_;
  }
  bool unpublished() const { return shown_ != head_; }

  // Publishes the pushed descriptors. True when the consumer sleeps: it stores kIdle before its last look at
  // kHead, and this stores kHead before it looks at kIdle.
  bool reveal() {
    if (shown_ == head_) return false;
    shown_ = head_;
    word(kHead).store(head_, std::memory_order_seq_cst);
    return word(kIdle).load(std::memory_order_seq_cst) != 0;
  }
  // The same for who rings the doorbell then: true once for each time that the consumer goes to sleep.
  bool publish() { return reveal() && word(kIdle).exchange(0, std::memory_order_seq_cst) != 0; }

  // The same where the poller and the consumer are one thread, which does not ring for itself.
  void show() {
    shown_ = head_;
    word(kHead).store(head_, std::memory_order_relaxed);
  }
  uint32_t head() const { return shown_; }
  bool all_seen() const { return word(kTail).load(std::memory_order_relaxed) == shown_; }
  // The consumer has not seen all, and counts on the doorbell for it. Takes kIdle like publish.
  bool take_idle() {
    if (all_seen() || word(kIdle).load(std::memory_order_relaxed) == 0) return false;
    word(kIdle).store(0, std::memory_order_relaxed);
    return true;
  }
  // --- end of the hot path ----------------------------------------------------------------------

  Descriptor* at(uint32_t position) const {
    return reinterpret_cast<Descriptor*>(memory_.get() + descriptors_at_) + (position & mask_);
  }

 private:
  void look(std::memory_order order) {
    tail_ = word(kTail).load(order);
    RDMAKIT_INVARIANT(head_ - tail_ <= descriptor_count(), "%u were pushed, %u are taken, of %u places",
                      head_, tail_, descriptor_count());
  }

  struct Free {
    void operator()(uint32_t* memory) const { std::free(memory); }
  };
  uint32_t descriptors_at_;
  uint32_t mask_;
  size_t bytes_;
  std::unique_ptr<uint32_t, Free> memory_;
  uint32_t head_ = 0;   // pushed
  uint32_t shown_ = 0;  // published
  uint32_t tail_ = 0;   // as last seen
};

}  // namespace rdmakit::ring
