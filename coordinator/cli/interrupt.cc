// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/interrupt.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "kernels/check.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kInterruptedExit = 130;
constexpr std::chrono::seconds kGrace{5};

Interrupt* g_interrupt = nullptr;

}  // namespace

Interrupt::Interrupt() {
  RF_CHECK(g_interrupt == nullptr);
  g_interrupt = this;
  thread_ = std::thread([this] { Loop(); });
}

Interrupt::~Interrupt() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
  g_interrupt = nullptr;
}

Interrupt& Interrupt::Get() {
  RF_CHECK(g_interrupt != nullptr);
  return *g_interrupt;
}

bool Interrupt::requested() {
  MutexLock lock(&mu_);
  return requested_;
}

absl::Status Interrupt::status() {
  return requested() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

void Interrupt::Loop() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  auto give_up = std::chrono::steady_clock::time_point::max();
  while (true) {
    // Short, because the destructor waits for it.
    const timespec wait = {.tv_sec = 0, .tv_nsec = 20'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    if (std::chrono::steady_clock::now() >= give_up) _exit(kInterruptedExit);
    MutexLock lock(&mu_);
    if (stopping_) return;
    if (signal < 0) continue;
    // Workers started here follow: their pipe closes and the kernel kills them.
    if (requested_) _exit(kInterruptedExit);
    requested_ = true;
    give_up = std::chrono::steady_clock::now() + kGrace;
    for (grpc::ClientContext* call : calls_) call->TryCancel();
  }
}

InterruptibleCall::InterruptibleCall() {
  Interrupt& interrupt = Interrupt::Get();
  MutexLock lock(&interrupt.mu_);
  interrupt.calls_.push_back(&context_);
  if (interrupt.requested_) context_.TryCancel();
}

InterruptibleCall::~InterruptibleCall() {
  Interrupt& interrupt = Interrupt::Get();
  MutexLock lock(&interrupt.mu_);
  interrupt.calls_.erase(
      std::find(interrupt.calls_.begin(), interrupt.calls_.end(), &context_));
}

}  // namespace ringfleet::coordinator::cli
