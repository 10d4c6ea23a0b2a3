// The fixed sizes of the engine, with the reason for each.
#pragma once

#include <cstdint>

namespace rdmakit::volume {

// The unit in which a volume tracks state and zeroes without the network.
inline constexpr uint32_t kPage = 4096;

// In the place of an index: none.
inline constexpr uint16_t kNone = 0xffff;

// The longest piece of a WRITE's payload that is one operation: 64 pages.
inline constexpr uint32_t kMaxWrite = 256 << 10;
// The front's part of a lane's registered memory.
inline constexpr uint32_t kFrontMemory = 4 << 20;

// A READ above a page borrows output chunks. 64 KiB is where the cost of one more RDMA READ no longer
// shows beside its data.
inline constexpr uint32_t kOutputChunk = 64 << 10;
inline constexpr uint32_t kOutputChunks = 128;
inline constexpr uint64_t kChunkPages = kOutputChunk / kPage;
// The maximum number of chunks per READ: up to kWindow × kOutputChunk = 1 MiB is read whole before its reply
// starts; a longer one is streamed through the same chunks.
inline constexpr uint32_t kWindow = 16;

// Outstanding requests of a lane: as many as the kernel's deepest queue of a block device asks at once.
inline constexpr uint32_t kRequests = 128;

// RDMA operations of a lane, waiting ones included.
inline constexpr uint32_t kOperations = 256;
// Kept back for operations that others wait for (see RequestExecutor::advance), so that a lane full of
// waiting operations still moves.
inline constexpr uint32_t kReservedOperations = 16;
// Replicas per slab. Two survive one failure; three survive another one while the first is repaired.
inline constexpr uint32_t kMaxReplicas = 3;
// A WRITE is one operation for each replica: its own, and copies.
inline constexpr uint32_t kCopies = kOperations * (kMaxReplicas - 1);
// A fence covers at least one WRITE, so there are never more of them (see RdmaQueue).
inline constexpr uint32_t kFences = kOperations * kMaxReplicas;

inline constexpr uint32_t kMaxLanes = 64;
// Index of the lane that serves no connection and fills replicas.
inline constexpr uint32_t kRefillLane = kMaxLanes + 1;
// Indexes, not servers alive: each incarnation of a server takes a new one.
inline constexpr uint32_t kMaxServers = 1024;
inline constexpr uint64_t kMinSlab = 1 << 20;

}  // namespace rdmakit::volume
