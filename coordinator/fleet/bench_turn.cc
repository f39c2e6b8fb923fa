// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/bench_turn.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// For noticing that the caller of a benchmark has left, and then for the steps
// that it has in flight.
constexpr absl::Duration kLeaveTime = absl::Seconds(1);
constexpr absl::Duration kRetireTime = absl::Seconds(30);

}  // namespace

void BenchTurn::Open(Epoch epoch) {
  MutexLock lock(&mu_);
  epoch_ = std::move(epoch);
}

void BenchTurn::Close(const absl::Status& cause) {
  MutexLock lock(&mu_);
  epoch_.reset();
  if (bench_ == nullptr) return;
  bench_->Fail(cause);
  bench_.reset();
  freed_.NotifyAll();
}

bool BenchTurn::AwaitFree() {
  const Deadline leave = Deadline::After(kLeaveTime);
  const Deadline retire = Deadline::After(kRetireTime);
  MutexLock lock(&mu_);
  while (bench_ != nullptr) {
    const Deadline deadline = bench_->cancelled() ? retire : leave;
    if (deadline.Expired()) return false;
    freed_.WaitUntil(&mu_, deadline.when());
  }
  return true;
}

absl::Status BenchTurn::Take(std::shared_ptr<BenchPlanner> bench) {
  MutexLock lock(&mu_);
  if (!epoch_.has_value()) return absl::UnavailableError("no epoch runs");
  if (bench_ != nullptr) {
    return absl::FailedPreconditionError(
        "bench: another benchmark runs, want an idle fleet");
  }
  const uint32_t slots = epoch_->groups * epoch_->group_slots;
  if (bench->sequences() > slots) {
    return absl::FailedPreconditionError(
        absl::StrCat("bench: ", bench->sequences(), " sequences, want at most ",
                     slots, ": ", epoch_->workers));
  }
  bench_ = std::move(bench);
  return absl::OkStatus();
}

void BenchTurn::GoOn(BenchPlanner& bench) {
  MutexLock lock(&mu_);
  if (bench_.get() == &bench) bench.Start();
}

void BenchTurn::Cancel(BenchPlanner& bench, const absl::Status& cause) {
  MutexLock lock(&mu_);
  if (bench_.get() != &bench) return;
  bench.Cancel(cause);
  freed_.NotifyAll();  // Lets AwaitFree wait for longer.
}

bool BenchTurn::free() const {
  MutexLock lock(&mu_);
  return bench_ == nullptr;
}

bool BenchTurn::owns_steps() const {
  MutexLock lock(&mu_);
  return bench_ != nullptr && bench_->owns() && !bench_->done();
}

void BenchTurn::OwnSteps(uint64_t last_step) {
  MutexLock lock(&mu_);
  if (bench_ == nullptr || bench_->owns()) return;
  bench_->Own(epoch_->id, last_step, epoch_->groups, epoch_->group_slots);
}

std::optional<v1::StepPlan> BenchTurn::NextPlan() {
  MutexLock lock(&mu_);
  return bench_->NextPlan();
}

absl::Status BenchTurn::OnResult(const v1::StepResult& merged) {
  MutexLock lock(&mu_);
  return bench_->OnResult(merged);
}

std::optional<uint64_t> BenchTurn::Retire() {
  MutexLock lock(&mu_);
  if (bench_ == nullptr || !bench_->done()) return std::nullopt;
  const uint64_t last_step = bench_->last_step();
  bench_.reset();
  freed_.NotifyAll();
  return last_step;
}

}  // namespace ringfleet::coordinator
