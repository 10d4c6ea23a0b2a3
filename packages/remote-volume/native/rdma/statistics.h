// Counters of one lane: written by its thread only, readable by any thread at any time.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/counter.h"

namespace rdmakit::volume {

// Latencies, four buckets to each power of two: a percentile read from it is off by an eighth at most. Bucket
// n counts those from lower(n) up to lower(n + 1) ns, the last one also all above (9 minutes).
class Histogram {
 public:
  static constexpr size_t kBuckets = 4 * 39;
  void add(uint64_t nanoseconds) {
    const size_t bucket = bucket_of(nanoseconds);
    buckets_[bucket < kBuckets ? bucket : kBuckets - 1].add();
    sum_.add(nanoseconds);
  }
  uint64_t count(size_t bucket) const { return buckets_[bucket].get(); }
  uint64_t sum() const { return sum_.get(); }
  static constexpr uint64_t lower(size_t bucket) {
    return bucket < 4 ? bucket : (4 + bucket % 4) << (bucket / 4 - 1);
  }

 private:
  static constexpr size_t bucket_of(uint64_t nanoseconds) {
    if (nanoseconds < 4) return nanoseconds;
    const auto power = static_cast<size_t>(std::bit_width(nanoseconds)) - 1;
    return 4 * (power - 1) + (nanoseconds >> (power - 2)) % 4;
  }

  std::array<Counter, kBuckets> buckets_;
  Counter sum_;
};

// The operations of one lane at one server.
struct ServerStatistics {
  Counter reads, writes;  // posted
  Counter bytes_read, bytes_written;
  Counter outstanding;  // operations now, fences too

  void clear() {
    for (Counter* each : {&reads, &writes, &bytes_read, &bytes_written, &outstanding}) each->set(0);
  }
};

struct alignas(64) LaneStatistics {
  Counter connections;
  // Requests answered with success.
  Counter reads, writes, flushes, trims, write_zeroes, caches, block_statuses;
  Counter bytes_read, bytes_written;
  Counter errors;     // requests answered with an error
  Counter in_flight;  // requests now
  Counter rdma_reads, rdma_writes, rdma_fences;
  Counter outstanding_operations;  // now
  Counter pages_read_without_network;
  Counter pages_read_ahead;               // of clients that read in order,
  Counter bytes_from_read_ahead;          // and what of it they got
  Counter zero_pages;                     // written without network, for they were all zeros
  Counter pages_packed;                   // written compressed
  Counter bytes_spared;                   // that were neither sent nor fetched because of that
  Counter compressing;                    // 1: pages that are written now are
  Counter pages_wrong;                    // copies at a server that did not match their checksum
  Counter pages_repaired;                 // of them, rewritten from another replica
  Counter pages_waited_for;               // met while another WRITE was filling them
  Counter turns_waited_for;               // operations that a server's limits held back
  Counter spins, sleeps;                  // waits that ended while spinning, and that slept
  Counter spin_limit;                     // ns, now
  Histogram read_latency, write_latency;  // from the header's arrival to the queued reply
};

}  // namespace rdmakit::volume
