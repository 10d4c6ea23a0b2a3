// One half of a pair of barriers of which the other costs nothing. Where one side stores and then loads,
// often, and the other does so once in a long while, the frequent side writes
// std::atomic_signal_fence(seq_cst) between the two, which only keeps the compiler from turning them round,
// and the rare side this (membarrier(2)): every other thread of the process either had its store visible, or
// has its load still to come.
#pragma once

namespace rdmakit {

// One or more interrupts to the processors that run this process: some microseconds. False: the kernel or a
// seccomp filter has no such call, and nothing is ordered.
bool fence_all_threads();

}  // namespace rdmakit
