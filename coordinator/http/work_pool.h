// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_HTTP_WORK_POOL_H_
#define RINGFLEET_COORDINATOR_HTTP_WORK_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Threads for work that takes too long for the I/O thread: parsing, templates,
// tokenizing. Thread-safe.
class WorkPool {
 public:
  // At most `most_queued` pieces of work wait for a thread.
  WorkPool(int threads, size_t most_queued);
  ~WorkPool();  // Waits for the work that has begun, and drops the rest.
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Returns false if the queue is full.
  bool Post(std::function<void()> work);

 private:
  void Loop();

  const size_t most_queued_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_WORK_POOL_H_
