// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_FUSED_COMMUNICATION_THREAD_H_
#define RINGFLEET_WORKER_FUSED_COMMUNICATION_THREAD_H_

#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/mutex.h"

namespace ringfleet::worker {

// A thread that runs a collective while the executor's thread, with the pool,
// computes what belongs to it. It is blocked unless there is something to pass
// on, and then runs soon, however many threads multiply: the system prefers a
// thread that has slept. Asking for frames between the tiles of a product
// instead would save its switches, but make each hop of a ring wait for a tile,
// or for a whole time slice where ranks share cores (perf/results/
// prefill.md).
//
// Sleeps between collectives. Belongs to one thread.
class CommunicationThread {
 public:
  CommunicationThread();
  // Requires that nothing runs.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  // Begins to run `body`, which must live until Await has returned. Requires
  // that nothing runs. Gives the CPU away once: where the threads share it, the
  // caller would otherwise keep it for the rest of its time slice (1.1 ms in
  // the mean), and what `body` sends first with it.
  void Start(const absl::FunctionRef<absl::Status()>& body);
  // Waits for its end; what it returned. Call once after each Start.
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
