// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/collectives_run.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/session.h"
#include "coordinator/fleet/worker_client.h"
#include "kernels/mutex.h"
#include "protos/host.grpc.pb.h"

namespace ringfleet::coordinator::cli {
namespace {

// After a first failure, for a report that explains it better: peers of a
// worker that died often tell before its own connection breaks.
constexpr absl::Duration kCauseGrace = absl::Milliseconds(200);
constexpr std::chrono::milliseconds kResultPoll{50};

constexpr std::chrono::seconds kMachineTimeout{5};

// How well a status explains why all ranks ended.
int Weight(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return -1;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return 0;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 1;
    default:
      return 2;
  }
}

// One call a rank, each in its own thread.
class CallOnEveryRank {
 public:
  CallOnEveryRank(
      const BenchWorkers& workers, v1::MeasureCollectivesRequest request,
      const std::function<void(const v1::CollectiveFigures&)>& on_figures)
      : workers_(workers),
        request_(std::move(request)),
        on_figures_(on_figures),
        statuses_(workers.addresses.size()) {
    for (const std::string& address : workers.addresses) {
      clients_.push_back(std::make_unique<WorkerClient>(address));
    }
  }

  absl::StatusOr<std::vector<v1::CollectiveFigures>> Await() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < clients_.size(); ++rank) {
      threads.emplace_back([this, rank] { Call(rank); });
    }
    WaitForEnd();
    for (std::thread& thread : threads) thread.join();
    RF_RETURN_IF_ERROR(Interrupt::Get().status());

    MutexLock lock(&mu_);
    size_t best = 0;
    for (size_t rank = 1; rank < statuses_.size(); ++rank) {
      if (Weight(statuses_[rank]) > Weight(statuses_[best])) best = rank;
    }
    if (!statuses_[best].ok()) {
      return absl::Status(
          statuses_[best].code(),
          absl::StrCat("worker ", best, " (", workers_.addresses[best],
                       "): ", statuses_[best].message()));
    }
    return std::move(figures_);
  }

 private:
  void Call(size_t rank) {
    v1::MeasureCollectivesRequest mine = request_;
    mine.set_rank(static_cast<uint32_t>(rank));
    const auto& hosts = workers_.machines;
    mine.set_ranks_on_host(static_cast<uint32_t>(
        std::count(hosts.begin(), hosts.end(), hosts[rank])));
    mine.set_rank_on_host(static_cast<uint32_t>(
        std::count(hosts.begin(), hosts.begin() + rank, hosts[rank])));
    const absl::Status status = clients_[rank]->MeasureCollectives(
        mine,
        [this](const v1::MeasureCollectivesProgress& progress) {
          if (!progress.has_figures()) return;
          on_figures_(progress.figures());
          MutexLock lock(&mu_);
          figures_.push_back(progress.figures());
        },
        [this] {
          MutexLock lock(&mu_);
          ++done_;
          changed_.NotifyAll();
          while (done_ < clients_.size() && !failed_) changed_.Wait(&mu_);
        });
    MutexLock lock(&mu_);
    statuses_[rank] = status;
    ++ended_;
    failed_ |= !status.ok();
    changed_.NotifyAll();
  }

  // Until all calls have ended; cancels those that outlive a failure or a
  // signal.
  void WaitForEnd() {
    cluster::Deadline cancel_at = cluster::Deadline::Infinite();
    while (true) {
      {
        MutexLock lock(&mu_);
        if (ended_ == clients_.size()) return;
        changed_.WaitUntil(&mu_,
                           std::chrono::steady_clock::now() + kResultPoll);
        if (failed_ && cancel_at.infinite()) {
          cancel_at = cluster::Deadline::After(kCauseGrace);
        }
      }
      if (Interrupt::Get().requested() || cancel_at.Expired()) {
        for (const auto& client : clients_) client->Cancel();
      }
    }
  }

  const BenchWorkers& workers_;
  const v1::MeasureCollectivesRequest request_;
  const std::function<void(const v1::CollectiveFigures&)>& on_figures_;
  std::vector<std::unique_ptr<WorkerClient>> clients_;

  Mutex mu_;
  CondVar changed_;
  size_t done_ ABSL_GUARDED_BY(mu_) = 0;   // Ranks with all cases behind them.
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;  // Calls.
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::CollectiveFigures> figures_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status FindMachines(BenchWorkers* workers) {
  workers->memory.resize(workers->addresses.size());
  for (size_t rank = 0; rank < workers->addresses.size(); ++rank) {
    const auto stub =
        v1::Host::NewStub(ConnectChannel(workers->addresses[rank]));
    InterruptibleCall call;
    call.context()->set_deadline(std::chrono::system_clock::now() +
                                 kMachineTimeout);
    v1::MachineDescription machine;
    const grpc::Status status = stub->DescribeMachine(
        call.context(), v1::DescribeMachineRequest(), &machine);
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    if (!status.ok()) continue;
    if (!machine.machine().empty()) workers->machines[rank] = machine.machine();
    workers->memory[rank].assign(machine.memory().begin(),
                                 machine.memory().end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::CollectiveFigures>> RunCollectives(
    const BenchWorkers& workers, v1::MeasureCollectivesRequest request,
    const std::function<void(const v1::CollectiveFigures&)>& on_figures) {
  // As coordinators count: later than any epoch that was made before.
  request.set_epoch(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
  request.clear_addresses();
  for (const std::string& address : workers.addresses) {
    request.add_addresses(address);
  }
  return CallOnEveryRank(workers, std::move(request), on_figures).Await();
}

}  // namespace ringfleet::coordinator::cli
