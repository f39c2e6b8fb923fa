// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_CANCELLATION_WATCH_H_
#define RINGFLEET_WORKER_EXECUTION_CANCELLATION_WATCH_H_

#include <grpcpp/server_context.h>

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "kernels/mutex.h"

namespace ringfleet::worker {

// Watches for the cancellation of a call while in scope. After the caller has
// cancelled, a thread of the watch calls `on_cancelled` every kPoll.
// `on_cancelled` wakes a waiting thread. One call is not enough, because the
// thread may begin to wait after the call.
class CancellationWatch {
 public:
  CancellationWatch(grpc::ServerContext* context,
                    std::function<void()> on_cancelled)
      : thread_([this, context, on_cancelled = std::move(on_cancelled)] {
          while (!Done()) {
            if (context->IsCancelled()) on_cancelled();
          }
        }) {}
  ~CancellationWatch() {
    {
      MutexLock lock(&mu_);
      done_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  CancellationWatch(const CancellationWatch&) = delete;
  CancellationWatch& operator=(const CancellationWatch&) = delete;

 private:
  // Waits for kPoll at most. Returns true when the scope ends.
  bool Done() {
    MutexLock lock(&mu_);
    if (!done_) {
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kPoll);
    }
    return done_;
  }

  // Longest time until a cancelled call is noticed.
  static constexpr std::chrono::milliseconds kPoll{50};

  Mutex mu_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_CANCELLATION_WATCH_H_
