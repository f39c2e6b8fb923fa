// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_FUSED_COMMUNICATION_THREAD_H_
#define RINGFLEET_WORKER_FUSED_COMMUNICATION_THREAD_H_

#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/mutex.h"

namespace ringfleet::worker {

// A thread that runs a collective while the executor's thread and the pool
// compute its product. It sleeps unless there is a frame to pass on. The system
// prefers threads that have slept. The thread therefore wakes soon, however
// many threads multiply. Polling for frames between the tiles of a product
// would save the switches of threads. But each hop of a ring would wait for a
// tile, or for a whole time slice where ranks share cores
// (perf/results/prefill.md).
//
// One thread owns and calls it.
class CommunicationThread {
 public:
  CommunicationThread();
  // Requires that each Start had its Await.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  // Begins to run `body`, which must live until Await has returned. Requires
  // that nothing runs. The caller yields the CPU once. Where both threads share
  // a CPU, the first frames would otherwise wait for the rest of the caller's
  // time slice, 1.1 ms in the mean.
  void Start(const absl::FunctionRef<absl::Status()>& body);
  // Waits for the end of `body` and returns its status. Call once after each
  // Start.
  absl::Status Await();

 private:
  void Run();

  Mutex mu_;
  CondVar changed_;
  const absl::FunctionRef<absl::Status()>* body_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_COMMUNICATION_THREAD_H_
