// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/communication_thread.h"

#include <thread>
#include <utility>

#include "kernels/check.h"

namespace ringfleet::worker {

CommunicationThread::CommunicationThread() : thread_([this] { Run(); }) {}

CommunicationThread::~CommunicationThread() {
  {
    MutexLock lock(&mu_);
    RF_CHECK(body_ == nullptr);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void CommunicationThread::Start(const absl::FunctionRef<absl::Status()>& body) {
  {
    MutexLock lock(&mu_);
    RF_CHECK(body_ == nullptr);
    body_ = &body;
    done_ = false;
    changed_.NotifyAll();
  }
  std::this_thread::yield();
}

absl::Status CommunicationThread::Await() {
  MutexLock lock(&mu_);
  RF_CHECK(body_ != nullptr);
  while (!done_) changed_.Wait(&mu_);
  body_ = nullptr;
  return std::exchange(status_, absl::OkStatus());
}

void CommunicationThread::Run() {
  for (;;) {
    const absl::FunctionRef<absl::Status()>* body = nullptr;
    {
      MutexLock lock(&mu_);
      while ((body_ == nullptr || done_) && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      body = body_;
    }
    absl::Status status = (*body)();
    MutexLock lock(&mu_);
    status_ = std::move(status);
    done_ = true;
    changed_.NotifyAll();
  }
}

}  // namespace ringfleet::worker
