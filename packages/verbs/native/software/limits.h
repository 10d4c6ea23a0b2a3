// Limits of a software device, in query_device too.
#pragma once

#include <cstdint>

namespace rdmakit::software {

inline constexpr uint32_t kMaxWorkRequests = 16384;
inline constexpr uint32_t kMaxSge = 32;
inline constexpr uint32_t kMaxInline = 1024;
inline constexpr uint32_t kMaxMessage = 1u << 30;
inline constexpr int kMaxCompletions = 1 << 20;

}  // namespace rdmakit::software
