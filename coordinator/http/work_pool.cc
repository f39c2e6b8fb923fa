// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/work_pool.h"

#include <utility>

namespace ringfleet::coordinator {

WorkPool::WorkPool(int threads, size_t most_queued)
    : most_queued_(most_queued) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkPool::~WorkPool() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::Post(std::function<void()> work) {
  {
    MutexLock lock(&mu_);
    if (queue_.size() >= most_queued_) return false;
    queue_.push_back(std::move(work));
  }
  changed_.NotifyOne();
  return true;
}

void WorkPool::Loop() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&mu_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace ringfleet::coordinator
