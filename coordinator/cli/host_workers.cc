// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/host_workers.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "cluster/rpc/host_address.h"
#include "coordinator/cli/interrupt.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::ClusterConfig;
using cluster::Deadline;

// For a host of this network to say whether anybody listens on a port.
constexpr absl::Duration kConnectTime = absl::Milliseconds(300);
// From a worker's process, which the launch script has seen, to its port.
constexpr absl::Duration kAnswerTime = absl::Seconds(30);
// Another command that starts or stops the fleet.
constexpr absl::Duration kLockTime = absl::Minutes(3);

// Tries at least once.
bool Answers(const std::string& address, Deadline deadline) {
  const std::shared_ptr<grpc::Channel> channel = cluster::OpenChannel(address);
  do {
    if (cluster::AwaitConnection(*channel, kConnectTime)) return true;
  } while (!deadline.Expired() && !Interrupt::Get().requested());
  return false;
}

absl::Status CheckNothingRuns(const ClusterConfig& config) {
  std::vector<std::string> addresses = HostWorkers::Addresses(config);
  addresses.push_back(cluster::FormatAddress(
      {config.coordinator.host, config.coordinator.port}));
  for (size_t i = 0; i < addresses.size(); ++i) {
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    if (!Answers(addresses[i], Deadline::After(absl::ZeroDuration()))) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        i < config.workers.size() ? absl::StrCat("worker ", i)
                                  : "the coordinator",
        " (", addresses[i], ") of fleet ", config.name, " runs, want it down"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> HostWorkers::Addresses(const ClusterConfig& config) {
  std::vector<std::string> addresses;
  for (const cluster::WorkerConfig& worker : config.workers) {
    addresses.push_back(cluster::FormatAddress({worker.address, worker.port}));
  }
  return addresses;
}

absl::StatusOr<std::unique_ptr<HostWorkers>> HostWorkers::Start(
    const std::string& cluster_file, const ClusterConfig& config) {
  for (size_t rank = 0; rank < config.workers.size(); ++rank) {
    if (config.workers[rank].port != 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(cluster_file, ": worker ", rank,
                     " has port 0, want a number: without a coordinator "
                     "nobody learns which one it gets"));
  }
  RF_ASSIGN_OR_RETURN(
      FleetLock lock,
      FleetLock::Acquire(config.name, Deadline::After(kLockTime)));
  RF_RETURN_IF_ERROR(CheckNothingRuns(config));
  std::unique_ptr<HostWorkers> workers(
      new HostWorkers(config, std::move(lock)));
  workers->ranks_ = absl::StrCat("0-", config.workers.size() - 1);
  RF_RETURN_IF_ERROR(
      RunLaunchScript("start", config, workers->ranks_, nullptr));
  const std::vector<std::string> addresses = Addresses(config);
  const Deadline deadline = Deadline::After(kAnswerTime);
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    if (Answers(addresses[rank], deadline)) continue;
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    return absl::UnavailableError(absl::StrCat(
        "worker ", rank, " (", addresses[rank], "): no answer within ",
        absl::FormatDuration(kAnswerTime), " of its start; its log on ",
        config.workers[rank].host, " may say why"));
  }
  return workers;
}

HostWorkers::~HostWorkers() {
  if (!ranks_.empty()) TakeBack(config_, {ranks_});
}

absl::Status HostWorkers::Stop() {
  if (ranks_.empty()) return absl::OkStatus();
  const std::string ranks = std::exchange(ranks_, "");
  return RunLaunchScript("stop", config_, ranks, nullptr);
}

}  // namespace ringfleet::coordinator::cli
