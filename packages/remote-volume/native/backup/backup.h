// The local backup of a volume: a file beside the servers, with one thread that makes its system calls.
// Its guarantees: docs/page-service/backup.md.
//
//   lanes -- BackupPort (SPSC rings, buffers) --> thread -- pread, pwritev --> BackupFile
//            BackupMap: what the file has, changed by both with atomic operations
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backup/backup_file.h"
#include "backup/backup_map.h"
#include "backup/backup_port.h"
#include "rdmakit/thread.h"

namespace rdmakit::volume {

struct BackupOptions {
  std::string path;         // empty: no backup
  std::string map_file;     // empty: what the file has is forgotten with the process
  uint32_t buffers = 1024;  // pages that wait for the file, of each lane; kMin… to kMaxBackupBuffers
  bool sparse = false;      // reserve no room in the file
  bool swap_safe = false;
  bool prefault = false;
  uint64_t timeout_ns = 10'000'000'000;  // for one system call
};

// Written by the backup's thread alone.
struct BackupStatistics {
  Counter bytes_written;
  Counter bytes_read;
  Counter writes;  // system calls
};

class Backup {
 public:
  explicit Backup(const BackupOptions& options) : options_(options), ports_(kMaxLanes + 1) {}
  Backup(const Backup&) = delete;
  Backup& operator=(const Backup&) = delete;
  ~Backup();

  // ---- control ----
  // Opens the file and starts the thread, which calls `failed` when the backup fails. 0 or an errno value.
  int open(uint64_t size, std::function<void()> failed, std::vector<std::string>& warnings, std::string& why);
  // From now on the file is this process's: its header says so, and a version that knows none refuses the
  // file. `random` names a file that has no name yet. Soon, on the backup's thread; an error fails the
  // backup.
  void stamp(uint64_t random);
  // One for each lane, and one for the refill lane. nullptr: no memory.
  BackupPort* open_port();
  // After the lanes have ended: writes queued pages to the file, until `deadline`. False: its thread did not
  // end, and the object must not be destroyed.
  bool stop(uint64_t deadline, bool lanes_rest = true);
  // After stop(): another process may have the file and the map.
  void unlock_files() {
    file_.close();
    map_.unlock();
  }
  // Why it failed; true once.
  bool take_failure(std::string& why);
  const BackupStatistics& statistics() const { return statistics_; }
  // How many of stamp() are over.
  uint64_t stamps() const { return stamps_.load(); }
  const std::string& path() const { return options_.path; }
  uint64_t queued() const;  // pages

  // ---- hot path: by lanes ----
  bool working() const { return !failed_.load(std::memory_order_acquire); }
  BackupMap& map() { return map_; }
  const BackupMap& map() const { return map_; }
  // Pages of WRITEs that were not queued, ever.
  uint64_t missed() const;
  // When the thread began the system call that it has been in for too long (ns); 0: it is in none.
  uint64_t overdue_since() const;
  void wake() {
    if (asleep_.exchange(false)) ring();
  }
  // The first reason counts. A short text.
  void fail(const char* reason);

 private:
  // Pages per pwritev: few, because READs wait for it.
  static constexpr uint32_t kBatch = 128;
  static constexpr size_t kBounce = kOutputChunk + 2 * kPage;

  struct Taken {
    BackupItem item;
    BackupPort* port;
  };

  int allocate(void*& memory, size_t bytes, std::vector<std::string>* warnings) const;
  void ring() const;
  void run();
  bool serve_reads();
  bool serve_writes();
  void serve_stamp();
  size_t take_batch();
  int write_run(size_t first, size_t count);
  int patch(const Taken& taken);
  int read(const BackupRead& read);
  bool nothing_to_do() const;
  void check_rest() const;
  void sleep();
  template <typename Call>
  int timed(Call call);
  void fail_with(const char* what, int error);
  uint32_t ports() const { return port_count_.load(std::memory_order_acquire); }

  const BackupOptions options_;
  std::function<void()> on_failure_;
  BackupFile file_;
  BackupMap map_;
  BackupStatistics statistics_;
  std::vector<std::unique_ptr<BackupPort>> ports_;  // kMaxLanes + 1
  std::vector<void*> memories_;
  std::atomic<uint32_t> port_count_{0};
  UniqueFd bell_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stamp_wanted_{false};
  std::atomic<uint64_t> stamp_random_{0};
  std::atomic<uint64_t> stamps_{0};
  std::atomic<uint64_t> busy_since_{0};  // ns; 0: in no system call of the file
  std::atomic<bool> failed_{false};
  bool lanes_rest_ = true;  // written before stop_at_
  std::atomic<bool> told_why_{false};
  std::array<char, 120> reason_{};

  // The thread's.
  std::array<Taken, kBatch> batch_;
  std::array<iovec, kBatch> segments_;
  uint8_t* bounce_ = nullptr;
  uint32_t turn_ = 0;  // port to take from first

  std::atomic<uint64_t> stop_at_{0};  // 0: continue
  std::mutex lifecycle_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool reported_ = false;
  Thread thread_;
};

}  // namespace rdmakit::volume
