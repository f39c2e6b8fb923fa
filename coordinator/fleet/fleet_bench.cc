// SPDX-License-Identifier: Apache-2.0
// What a fleet does for benchmarks.
#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/fleet/gathering.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// For noticing that the caller of a benchmark has left, and then for the steps
// that it has in flight.
constexpr absl::Duration kLeaveTime = absl::Seconds(1);
constexpr absl::Duration kRetireTime = absl::Seconds(30);

// Of Worker.MeasureMemory: nearly a second, in slices that are much longer than
// what workers start apart.
constexpr uint32_t kSliceMs = 100;
constexpr uint32_t kSlices = 8;
constexpr absl::Duration kMeasureTimeout = absl::Seconds(60);

}  // namespace

absl::Status Fleet::StartBench(std::shared_ptr<BenchPlanner> bench,
                               bool only_if_idle) {
  const Deadline leave = Deadline::After(kLeaveTime);
  const Deadline retire = Deadline::After(kRetireTime);
  MutexLock lock(&mu_);
  while (bench_ != nullptr) {
    const Deadline deadline = bench_->cancelled() ? retire : leave;
    if (deadline.Expired()) break;
    changed_.WaitUntil(&mu_, deadline.when());
  }
  if (scheduler_ == nullptr) return WhyNotReady();
  if (bench_ != nullptr) {
    return absl::FailedPreconditionError(
        "bench: another benchmark runs, want an idle fleet");
  }
  const size_t running = scheduler_->running();
  const size_t waiting = scheduler_->waiting();
  if (only_if_idle && running + waiting > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("bench: ", running, " jobs run and ", waiting,
                     " wait, want an idle fleet"));
  }
  const uint32_t slots =
      static_cast<uint32_t>(epoch_->mesh().data) * options_.GroupSlots();
  if (bench->sequences() > slots) {
    return absl::FailedPreconditionError(
        absl::StrCat("bench: ", bench->sequences(), " sequences, want at most ",
                     slots, ": ", epoch_->members().size(), " of ",
                     options_.mesh.world_size(), " workers serve"));
  }
  bench_ = std::move(bench);
  epoch_->Wake();
  return absl::OkStatus();
}

void Fleet::GoOnWithBench(BenchPlanner& bench) {
  MutexLock lock(&mu_);
  if (bench_.get() != &bench) return;  // Ended with its epoch.
  bench.Start();
  epoch_->Wake();
}

void Fleet::CancelBench(BenchPlanner& bench, const absl::Status& cause) {
  MutexLock lock(&mu_);
  if (bench_.get() != &bench) return;
  bench.Cancel(cause);
  Changed();
  RetireBench();
  // It frees its slots, or requests have waited for it.
  epoch_->Wake();
}

bool Fleet::BenchPlans() {
  if (bench_ == nullptr) return false;
  if (!bench_->owns() && scheduler_->quiet()) {
    bench_->Own(epoch_->id(), scheduler_->last_step(),
                static_cast<uint32_t>(epoch_->mesh().data),
                options_.GroupSlots());
  }
  return bench_->owns();
}

void Fleet::RetireBench() {
  if (bench_ == nullptr || !bench_->done()) return;
  if (bench_->last_step() > 0) scheduler_->ContinueAfter(bench_->last_step());
  bench_.reset();
  Changed();
  epoch_->Wake();
}

int Fleet::CountHosts() const {
  MutexLock lock(&mu_);
  std::set<std::string> hosts;
  if (epoch_ == nullptr) return 0;
  for (const cluster::Member& member : epoch_->members()) {
    hosts.insert(member.host);
  }
  return static_cast<int>(hosts.size());
}

absl::StatusOr<double> Fleet::MeasureHostRead() {
  std::shared_ptr<FleetEpoch> epoch;
  {
    MutexLock lock(&mu_);
    if (state_ != v1::FLEET_STATE_READY) return WhyNotReady();
    epoch = epoch_;
  }
  const std::vector<cluster::Member>& members = epoch->members();
  const auto on_host = [&](const std::string& host) {
    return std::count_if(
        members.begin(), members.end(),
        [&](const cluster::Member& member) { return member.host == host; });
  };
  const Deadline deadline = Deadline::After(kMeasureTimeout);
  std::vector<absl::StatusOr<v1::MeasureMemoryResponse>> measured(
      members.size(), absl::UnknownError("not asked"));
  Gathering ready(members.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      v1::MeasureMemoryRequest request;
      request.set_ranks_on_host(
          static_cast<uint32_t>(on_host(members[rank].host)));
      request.set_slice_ms(kSliceMs);
      request.set_slices(kSlices);
      measured[rank] = epoch->client(static_cast<int>(rank))
                           .MeasureMemory(request, deadline,
                                          [&ready] { ready.AwaitOthers(); });
      if (!measured[rank].ok()) ready.Fail();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Of all slices: what a repetition reads is a mean over its time, too, with
  // all that the host does to it meanwhile.
  double bytes = 0;
  std::set<std::string> hosts;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    RF_RETURN_IF_ERROR(
        Annotate(measured[rank].status(), members[rank].Description()));
    hosts.insert(members[rank].host);
    for (const uint64_t slice : measured[rank]->slice_bytes()) {
      bytes += static_cast<double>(slice);
    }
  }
  return bytes / (kSlices * kSliceMs * 1e-3) /
         static_cast<double>(hosts.size()) * 1e-9;
}

}  // namespace ringfleet::coordinator
