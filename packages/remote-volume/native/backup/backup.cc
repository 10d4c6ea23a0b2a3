#include "backup/backup.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/clock.h"
#include "system/error_reason.h"
#include "system/lazy_array.h"
#include "system/mapped_file.h"
#include "system/swap_safety.h"

namespace rdmakit::volume {

Backup::~Backup() {
  if (thread_.joinable()) stop(now_ns() + options_.timeout_ns);
  const size_t bytes = size_t{options_.buffers} * kPage;
  for (void* memory : memories_) munmap(memory, bytes);
  if (bounce_ != nullptr) munmap(bounce_, kBounce);
}

// ---- control ----

int Backup::open(uint64_t size, std::function<void()> failed, std::vector<std::string>& warnings,
                 std::string& why) {
  if (options_.buffers < kMinBackupBuffers || options_.buffers > kMaxBackupBuffers)
    return with_reason(why, EINVAL, "a lane's part of the backup's queue has 128 to 4096 pages");
  on_failure_ = std::move(failed);
  if (const int error = file_.open(options_.path, size, options_.sparse, warnings, why); error != 0)
    return error;
  int error = map_.open(size / kPage, options_.map_file, file_.identity(), file_.stamp(), file_.empty(),
                        options_.prefault);
  if (error != 0) return with_reason(why, error, mapping_failure("backup map", options_.map_file, error));
  if (map_.outdated())
    warnings.push_back(options_.path + ": something else has been written to it: nothing that it had counts");
  void* bounce = nullptr;
  error = allocate(bounce, kBounce, &warnings);
  bounce_ = static_cast<uint8_t*>(bounce);
  bell_.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (error == 0 && !bell_) error = errno;
  if (error == 0) {
    error = thread_.start("volume-backup", [this] { run(); });
    if (error != 0) return with_reason(why, error, "backup: " + why_no_thread(error));
  }
  if (error != 0) why = std::string("backup: ") + strerror(error);
  return error;
}

int Backup::allocate(void*& memory, size_t bytes, std::vector<std::string>* warnings) const {
  void* const mapping = map_lazily(bytes, true);
  if (mapping == nullptr) return errno;
  memory = mapping;
  if (!options_.swap_safe) return 0;
  const Safety safety = lock_range(memory, bytes);
  if (!safety.granted && warnings != nullptr)
    warnings->push_back("the backup's memory: " + safety.name + ": " + safety.reason);
  return 0;
}

BackupPort* Backup::open_port() {
  const uint32_t index = port_count_.load();
  if (index == ports_.size()) return nullptr;
  void* memory = nullptr;
  if (allocate(memory, size_t{options_.buffers} * kPage, nullptr) != 0) return nullptr;
  memories_.push_back(memory);
  ports_[index] = std::make_unique<BackupPort>(*this, static_cast<uint8_t*>(memory), options_.buffers);
  port_count_.store(index + 1, std::memory_order_release);
  return ports_[index].get();
}

void Backup::stamp(uint64_t random) {
  stamp_random_.store(random);
  stamp_wanted_.store(true);
  wake();
}

bool Backup::stop(uint64_t deadline, bool lanes_rest) {
  if (!thread_.joinable()) return true;
  lanes_rest_ = lanes_rest;
  stop_at_.store(std::max<uint64_t>(deadline, 1));
  asleep_.store(false);
  ring();
  std::unique_lock lock(lifecycle_);
  const uint64_t now = now_ns();
  // The last system call may have begun just before the deadline.
  const auto left = std::chrono::nanoseconds((deadline > now ? deadline - now : 0) + 500'000'000);
  if (!changed_.wait_for(lock, left, [this] { return ended_; })) return false;
  lock.unlock();
  thread_.join();
  return true;
}

bool Backup::take_failure(std::string& why) {
  const std::lock_guard lock(lifecycle_);
  if (reported_ || !told_why_.load(std::memory_order_acquire)) return false;
  reported_ = true;
  why = reason_.data();
  return true;
}

uint64_t Backup::queued() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < ports(); i++) sum += ports_[i]->queued();
  return sum;
}

// ---- hot path begins: no allocation, no log, no lock, no system call but the file's and the eventfds' ----

uint64_t Backup::missed() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < ports(); i++) sum += ports_[i]->statistics().missed.get();
  return sum;
}

uint64_t Backup::overdue_since() const {
  const uint64_t since = busy_since_.load(std::memory_order_relaxed);
  return since != 0 && now_ns(CLOCK_MONOTONIC_COARSE) > since + options_.timeout_ns ? since : 0;
}

void Backup::ring() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(bell_.get(), &one, sizeof one);
}

void Backup::fail(const char* reason) {
  map_.fail();
  if (failed_.exchange(true)) return;
  snprintf(reason_.data(), reason_.size(), "%s", reason);
  told_why_.store(true, std::memory_order_release);
  on_failure_();
}

void Backup::fail_with(const char* what, int error) {
  char reason[100];
  snprintf(reason, sizeof reason, "%s: %s", what, strerror(error));
  fail(reason);
}

template <typename Call>
int Backup::timed(Call call) {
  busy_since_.store(now_ns(CLOCK_MONOTONIC_COARSE), std::memory_order_relaxed);
  const int error = call();
  busy_since_.store(0, std::memory_order_relaxed);
  return error;
}

void Backup::run() {
  // A file beyond the limit of the process's file size is an error like others: SIGXFSZ is blocked (Thread).
  touch_stack();
  if (options_.swap_safe) {
    // Without permission the lanes have none either, and their warnings say so.
    static_cast<void>(mark_io_flusher());
    static_cast<void>(admit_to_reserve());
  }
  for (;;) {
    // First: what the lanes queued before they ended is in the rings then.
    const uint64_t stop_at = stop_at_.load();
    serve_stamp();
    bool moved = serve_reads();
    moved |= serve_writes();
    if (stop_at != 0 && !moved) {
      if (lanes_rest_) check_rest();
      break;
    }
    if (stop_at != 0 && now_ns() >= stop_at) break;
    if (!moved) sleep();
  }
  const std::lock_guard lock(lifecycle_);
  ended_ = true;
  changed_.notify_all();
}

void Backup::serve_stamp() {
  if (!stamp_wanted_.exchange(false) || !working()) return;
  const int error = timed([this] {
    return map_.stamp(stamp_random_.load(),
                      [this](const BackupStamp& next) { return file_.put_stamp(next); });
  });
  // Without room for a header all is as it was with versions that knew none.
  if (error != 0 && error != ENOSPC) fail_with("header", error);
  stamps_.fetch_add(1);
}

bool Backup::nothing_to_do() const {
  if (stamp_wanted_.load()) return false;
  for (uint32_t i = 0; i < ports(); i++) {
    if (!ports_[i]->empty()) return false;
  }
  return stop_at_.load() == 0;
}

void Backup::check_rest() const {
  for (uint32_t i = 0; i < ports(); i++) ports_[i]->check_rest();
}

void Backup::sleep() {
  // Announces the sleep first, then checks once more: a lane that adds to a ring after the check sees that
  // this thread sleeps.
  asleep_.exchange(true);
  if (nothing_to_do()) {
    pollfd bell{bell_.get(), POLLIN, 0};
    ::poll(&bell, 1, -1);
  }
  asleep_.exchange(false);
  uint64_t value;
  [[maybe_unused]] const ssize_t ignored = ::read(bell_.get(), &value, sizeof value);
}

bool Backup::serve_reads() {
  bool moved = false;
  for (uint32_t i = 0; i < ports(); i++) {
    BackupRead wanted;
    bool served = false;
    while (ports_[i]->pop(wanted)) {
      const int error = working() ? timed([&] { return read(wanted); }) : EIO;
      if (error != 0 && working()) fail_with("read", error);
      if (error == 0) statistics_.bytes_read.add(wanted.length);
      ports_[i]->finish(wanted, error == 0);
      served = true;
    }
    if (served) ports_[i]->wake_lane();
    moved |= served;
  }
  return moved;
}

// Straight to where it is wanted, but for parts of pages.
int Backup::read(const BackupRead& wanted) {
  if ((wanted.offset | wanted.length | reinterpret_cast<uintptr_t>(wanted.memory)) % kPage == 0)
    return file_.read(wanted.memory, wanted.length, wanted.offset);
  const uint64_t first = wanted.offset / kPage * kPage;
  const uint64_t end = (wanted.offset + wanted.length + kPage - 1) / kPage * kPage;
  if (const int error = file_.read(bounce_, end - first, first); error != 0) return error;
  std::memcpy(wanted.memory, bounce_ + (wanted.offset - first), wanted.length);
  return 0;
}

// Pages from all ports, in their order in the file; each is in the queues at most once.
size_t Backup::take_batch() {
  size_t count = 0;
  const uint32_t ports = this->ports();
  for (uint32_t n = 0; n < ports && count < kBatch; n++) {
    BackupPort* const port = ports_[(turn_ + n) % ports].get();
    // A port with a long queue leaves room to the next ones.
    const size_t limit = std::min<size_t>(kBatch, count + std::max<size_t>(kBatch / 2, kBatch / ports));
    for (; count < limit && port->pop(batch_[count].item); count++) batch_[count].port = port;
  }
  turn_ = ports == 0 ? 0 : (turn_ + 1) % ports;
  std::sort(batch_.begin(), batch_.begin() + static_cast<long>(count),
            [](const Taken& one, const Taken& other) { return one.item.page < other.item.page; });
  return count;
}

bool Backup::serve_writes() {
  const size_t count = take_batch();
  for (size_t first = 0; first < count;) {
    const auto whole = [this](size_t i) { return batch_[i].item.length == kPage; };
    size_t end = first + 1;
    if (whole(first)) {
      while (end < count && whole(end) && batch_[end].item.page == batch_[end - 1].item.page + 1) end++;
    }
    int error = EIO;
    if (working())
      error = timed([&] { return whole(first) ? write_run(first, end - first) : patch(batch_[first]); });
    if (error != 0 && working()) fail_with("write", error);
    // A failed backup stores nothing more, and the pages that it did not get are marked.
    for (size_t i = first; i < end; i++) {
      map_.finish(batch_[i].item.page, error == 0);
      batch_[i].port->finish(batch_[i].item, error == 0);
    }
    if (error == 0) statistics_.bytes_written.add((end - first) * kPage);
    for (size_t i = first; i < end; i++) batch_[i].port->wake_lane();
    first = end;
    serve_reads();
  }
  return count > 0;
}

int Backup::write_run(size_t first, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const Taken& taken = batch_[first + i];
    segments_[i] = {taken.port->buffer(taken.item.buffer), kPage};
  }
  statistics_.writes.add();
  return file_.write(segments_.data(), static_cast<int>(count), batch_[first].item.page * kPage);
}

int Backup::patch(const Taken& taken) {
  const BackupItem& item = taken.item;
  const uint64_t offset = item.page * kPage;
  if (const int error = file_.read(bounce_, kPage, offset); error != 0) return error;
  std::memcpy(bounce_ + item.begin, taken.port->buffer(item.buffer) + item.begin, item.length);
  segments_[0] = {bounce_, kPage};
  statistics_.writes.add();
  return file_.write(segments_.data(), 1, offset);
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
