// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/completion_poller.h"

#include <grpc/support/time.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// While nobody else polls, the background thread does so this often. Shorter,
// and it would take the role between the collectives of a decode step; longer,
// and peers would wait for frames to be read. Where it found something, more
// may be under way.
constexpr absl::Duration kBackgroundPeriod = absl::Milliseconds(5);
constexpr absl::Duration kBusyPeriod = absl::Microseconds(500);

// Beside a bypass: the queue is looked at this often by a thread that spins,
// and by one that sleeps each time it wakes, which happens at least so often.
// When frames come through the queue too, a sleep is what they may be late by.
constexpr absl::Duration kQueueLook = absl::Microseconds(200);
constexpr absl::Duration kExclusiveSleep = absl::Milliseconds(1);
constexpr absl::Duration kSharedSleep = absl::Microseconds(100);
// Reading the clock takes as long as three looks at a bypass: it is read after
// so many of them, and not at all where one of the first finds what is waited
// for, but of so many waits in one.
constexpr int kLooksByClock = 8;
constexpr uint32_t kQuickLooks = 64;

gpr_timespec ToGpr(Deadline::Clock::time_point now,
                   Deadline::Clock::time_point when) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::max(when - now, Deadline::Clock::duration::zero()));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

}  // namespace

CompletionPoller::CompletionPoller(
    std::unique_ptr<grpc::ServerCompletionQueue> queue, Spinning spinning,
    std::function<void()> housekeeping)
    : queue_(std::move(queue)),
      spinning_(spinning),
      housekeeping_(std::move(housekeeping)) {}

CompletionPoller::~CompletionPoller() { RF_CHECK(closed()); }

void CompletionPoller::Start() {
  background_ = std::thread([this] { RunBackground(); });
}

void CompletionPoller::Acquire() {
  if (!TryAcquire()) {
    wanted_.fetch_add(1);
    MutexLock lock(&mu_);
    while (!TryAcquire()) changed_.Wait(&mu_);
    wanted_.fetch_sub(1);
  }
  // Only the role's holder writes it.
  uses_.store(uses_.load(std::memory_order_relaxed) + 1,
              std::memory_order_relaxed);
}

void CompletionPoller::Release() {
  taken_.store(false);
  if (wanted_.load() == 0) return;
  MutexLock lock(&mu_);
  changed_.NotifyAll();
}

bool CompletionPoller::AcquireInBackground(absl::Duration unused) {
  const auto next_look = Deadline::After(unused).when();
  MutexLock lock(&mu_);
  const uint64_t uses = uses_.load(std::memory_order_relaxed);
  while (!stopping_ && changed_.WaitUntil(&mu_, next_look)) {
  }
  // Somebody else polls, or did a moment ago and probably will again.
  return !stopping_ && wanted_.load() == 0 &&
         uses == uses_.load(std::memory_order_relaxed) && TryAcquire();
}

void CompletionPoller::RunBackground() {
  absl::Duration period = kBackgroundPeriod;
  while (!stopping_) {
    const bool acquired = AcquireInBackground(period);
    period = kBackgroundPeriod;
    if (!acquired) continue;
    bool more = true;
    while (more && !stopping_ && wanted_.load() == 0) {
      more = bypass_ != nullptr && bypass_->Poll();
      more |= RunReady() || RunDeferred();
      if (more) period = kBusyPeriod;
      RunHousekeeping(Deadline::Clock::now());
    }
    Release();
  }
}

void CompletionPoller::RunHousekeeping(Deadline::Clock::time_point now) {
  if (now < next_tick_) return;
  housekeeping_();
  next_tick_ = Deadline::After(kTick, now).when();
}

void CompletionPoller::set_bypass(Bypass* bypass) {
  MutexLock lock(&wake_mu_);
  bypass_ = bypass;
}

CompletionPoller::Next CompletionPoller::RunNext(gpr_timespec until) {
  void* tag = nullptr;
  bool ok = false;
  switch (queue_->AsyncNext(&tag, &ok, until)) {
    case grpc::CompletionQueue::GOT_EVENT:
      static_cast<Completion*>(tag)->OnComplete(ok);
      return Next::kEvent;
    case grpc::CompletionQueue::SHUTDOWN:
      return Next::kShutdown;
    case grpc::CompletionQueue::TIMEOUT:
      break;
  }
  return Next::kNone;
}

bool CompletionPoller::RunReady() {
  return RunNext(gpr_inf_past(GPR_CLOCK_MONOTONIC)) == Next::kEvent;
}

void CompletionPoller::Defer(std::shared_ptr<Deferred> deferred) {
  deferred_.push_back(std::move(deferred));
}

void CompletionPoller::Withdraw(const Deferred* deferred) {
  std::erase_if(deferred_, [=](const auto& d) { return d.get() == deferred; });
}

bool CompletionPoller::RunDeferred() {
  if (deferred_.empty()) return false;
  for (const auto& deferred : deferred_) deferred->RunDeferred();
  deferred_.clear();
  return true;
}

bool CompletionPoller::PollUntil(absl::FunctionRef<bool()> done,
                                 Deadline deadline, absl::Duration slice) {
  return Poll(done, deadline, slice, spinning_);
}

bool CompletionPoller::BlockUntil(absl::FunctionRef<bool()> done,
                                  Deadline deadline) {
  return Poll(done, deadline, kTick, {.time = absl::ZeroDuration()});
}

bool CompletionPoller::LookAtBypass(absl::FunctionRef<bool()> done, int looks) {
  for (; looks > 0 && bypass_ != nullptr; --looks) {
    if (bypass_->Poll() && done()) return true;
    if (looks > 1) __builtin_ia32_pause();
  }
  return false;
}

bool CompletionPoller::Poll(absl::FunctionRef<bool()> done, Deadline deadline,
                            absl::Duration slice, Spinning spinning) {
  if (done()) return true;
  const bool keeps_core =
      spinning.time > absl::ZeroDuration() && !spinning.yields;
  const int looks = keeps_core ? kLooksByClock : 1;
  if (bypass_ != nullptr && ++quick_looks_ % kQuickLooks != 0 &&
      LookAtBypass(done, looks)) {
    return true;
  }
  const gpr_timespec at_once = gpr_inf_past(GPR_CLOCK_MONOTONIC);
  auto now = Deadline::Clock::now();
  const auto spin_until = Deadline::After(spinning.time, now).when();
  while (true) {
    const bool spin = now < spin_until;
    if (bypass_ == nullptr) {
      const auto until = std::min(
          {deadline.when(), next_tick_, Deadline::After(slice, now).when()});
      const bool at_hand = spin || !deferred_.empty();
      const Next next = RunNext(at_hand ? at_once : ToGpr(now, until));
      if (next == Next::kShutdown) return done();
      if (next == Next::kNone) RunDeferred();
    } else {
      // However fast frames come, the queue has its turn.
      if (LookAtBypass(done, spin ? looks : 1) && now < next_look_) return true;
      const bool exclusive = bypass_ != nullptr && bypass_->exclusive();
      if (!spin || !exclusive || now >= next_look_) {
        const Next next = RunNext(at_once);
        if (next == Next::kShutdown) return done();
        const bool idle = next == Next::kNone && !RunDeferred();
        next_look_ = Deadline::After(kQueueLook, now).when();
        if (!spin && idle && !done() && bypass_ != nullptr) {
          bypass_->Sleep(
              std::min({deadline.Remaining(now), slice,
                        exclusive ? kExclusiveSleep : kSharedSleep}));
        }
      }
    }
    if (spin && spinning.yields && !done()) sched_yield();
    now = Deadline::Clock::now();
    RunHousekeeping(now);
    if (done()) return true;
    if (deadline.Expired(now)) return false;
  }
}

void CompletionPoller::Wake() {
  MutexLock lock(&wake_mu_);
  if (bypass_ != nullptr) return bypass_->Wake();
  if (alarm_pending_ || closed()) return;
  alarm_pending_ = true;
  alarm_.Set(queue_.get(), gpr_inf_past(GPR_CLOCK_MONOTONIC),
             &alarm_completion_);
}

void CompletionPoller::AlarmCompletion::OnComplete(bool ok) {
  MutexLock lock(&poller_->wake_mu_);
  poller_->alarm_pending_ = false;
}

void CompletionPoller::Drain() {
  if (closed()) return;
  stopping_ = true;
  {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
  }
  Wake();
  if (background_.joinable()) background_.join();
  Role role(this);
  {
    MutexLock lock(&wake_mu_);
    closed_.store(true, std::memory_order_release);
  }
  deferred_.clear();
  queue_->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Completion*>(tag)->OnComplete(ok);
}

}  // namespace ringfleet::cluster
