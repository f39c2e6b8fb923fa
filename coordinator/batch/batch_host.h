// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_BATCH_BATCH_HOST_H_
#define RINGFLEET_COORDINATOR_BATCH_BATCH_HOST_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/batch/batches.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/http_exchange.h"
#include "coordinator/http/work_pool.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// The way to a server's loop, as long as there is one. Thread-safe.
class LoopDoor {
 public:
  // Null: functions that are posted never run.
  void Set(HttpLoop* loop) {
    MutexLock lock(&mu_);
    loop_ = loop;
  }
  void Post(std::function<void()> function) {
    MutexLock lock(&mu_);
    if (loop_ != nullptr) loop_->Post(std::move(function));
  }
  void Respond(std::shared_ptr<HttpExchange> exchange, HttpResponse response) {
    Post([exchange = std::move(exchange),
          response = std::move(response)]() mutable {
      exchange->Respond(std::move(response));
    });
  }

 private:
  Mutex mu_;
  HttpLoop* loop_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// State that the endpoints of the batch API share.
struct BatchHost {
  Batches* batches = nullptr;
  // The store's thread may call after the server has gone.
  const std::shared_ptr<LoopDoor> door = std::make_shared<LoopDoor>();
  std::atomic<int> uploads{0};  // Begun and not ended.
  // Waits for the disk, so that requests for answers need not.
  WorkPool pool{/*threads=*/2, /*most_queued=*/256};
};

// Returns the refusal of a request for which the pool has no room.
inline ApiError PoolIsFull() {
  return {.status = 429,
          .message = "too many requests for files and batches; try again later",
          .code = kRateLimit,
          .retry_after_s = 1};
}

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_BATCH_HOST_H_
