// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/interrupt.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr std::chrono::seconds kGrace{5};

Interrupt* g_interrupt = nullptr;

}  // namespace

Interrupt::Interrupt() {
  RF_CHECK(g_interrupt == nullptr);
  g_interrupt = this;
  signal(SIGPIPE, SIG_IGN);
  // Ignored by a supervisor, it would take the ends of children away from
  // waitpid().
  signal(SIGCHLD, SIG_DFL);
  signal(SIGXFSZ, SIG_IGN);  // A limit on files' sizes is an error.
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

absl::Status Interrupt::status() const {
  return requested() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

int Interrupt::exit_code() {
  MutexLock lock(&mu_);
  return exit_code_;
}

void Interrupt::Request(int exit_code) {
  MutexLock lock(&mu_);
  if (requested_) return;
  requested_ = true;
  exit_code_ = exit_code;
  give_up_ = std::chrono::steady_clock::now() + kGrace;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
}

void Interrupt::AllowCleanup(absl::Duration duration) {
  MutexLock lock(&mu_);
  if (!requested_) return;
  give_up_ =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
}

Interrupt::Catch::Catch(std::function<bool()> on_interrupt) {
  Interrupt& interrupt = Get();
  MutexLock lock(&interrupt.mu_);
  RF_CHECK(interrupt.on_interrupt_ == nullptr);
  interrupt.on_interrupt_ = std::move(on_interrupt);
}

Interrupt::Catch::~Catch() {
  Interrupt& interrupt = Get();
  MutexLock lock(&interrupt.mu_);
  interrupt.on_interrupt_ = nullptr;
}

void Interrupt::Loop() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  while (true) {
    // Short, because the destructor waits for it.
    const timespec wait = {.tv_sec = 0, .tv_nsec = 20'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      // Workers started here follow: their pipe closes and the kernel kills
      // them.
      if (std::chrono::steady_clock::now() >= give_up_ ||
          (signal > 0 && requested_)) {
        _exit(exit_code_);
      }
      if (signal == SIGINT && on_interrupt_ != nullptr && on_interrupt_()) {
        continue;
      }
    }
    if (signal > 0) Request();
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
