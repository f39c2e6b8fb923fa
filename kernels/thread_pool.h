// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_THREAD_POOL_H_
#define RINGFLEET_KERNELS_THREAD_POOL_H_

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace ringfleet::kernels {

// A fixed set of threads for the loops inside a step. One thread at a time
// calls ParallelFor, and takes part in the work. A waiting thread spins for a
// third of a millisecond and then sleeps. A product or an exchange between two
// loops may take as long.
class ThreadPool {
 public:
  // `threads` >= 1 counts the caller, which is thread 0; 1 starts none. If
  // `cpus` names `threads` processors, thread i > 0 is pinned to cpus[i] where
  // the system permits it.
  explicit ThreadPool(int threads, absl::Span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  bool pinned() const;

  // Calls body(begin, end) on disjoint ranges that cover [0, count), each at
  // least `grain` long where possible, and returns when all calls have. The cut
  // of the range never changes a result. Allocates nothing.
  void ParallelFor(size_t count, size_t grain,
                   absl::FunctionRef<void(size_t begin, size_t end)> body);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_THREAD_POOL_H_
