// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/config_change.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cluster/rpc/host_address.h"

namespace ringfleet::coordinator::cli {
namespace {

// A line for each setting that has a value, in a fixed order.
std::vector<std::string> Settings(cluster::ClusterConfig config) {
  config.ssh.reset();
  v1::ExpertSettings& experts = *config.settings.mutable_experts();
  if (experts.rebalance() != v1::EXPERT_REBALANCE_AUTO) {
    experts.clear_interval_s();  // Nobody looks.
    experts.clear_threshold();
  }
  cluster::ClearLiveSettings(&config.settings);
  return absl::StrSplit(cluster::FormatClusterConfig(config), '\n',
                        absl::SkipEmpty());
}

absl::string_view Key(absl::string_view setting) {
  return setting.substr(0, setting.find(':'));
}

bool HasKey(const std::vector<std::string>& settings, absl::string_view key) {
  return std::any_of(
      settings.begin(), settings.end(),
      [key](const std::string& setting) { return Key(setting) == key; });
}

// The address of the rank's worker; empty if the worker is lost.
std::string AddressOf(const v1::ClusterState& state, size_t rank) {
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.rank() == rank && worker.state() != v1::MEMBER_STATE_LOST) {
      return worker.address();
    }
  }
  return "";
}

// Moves the workers of `config` to their addresses in `wanted` where they are
// lost or there already.
void FollowMoves(const v1::ClusterState& state,
                 const cluster::ClusterConfig& wanted,
                 cluster::ClusterConfig* config) {
  const size_t ranks = std::min(config->workers.size(), wanted.workers.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    cluster::WorkerConfig& was = config->workers[rank];
    const cluster::WorkerConfig& is = wanted.workers[rank];
    const std::string address = AddressOf(state, rank);
    const bool moved = std::tie(was.host, was.address, was.port) !=
                       std::tie(is.host, is.address, is.port);
    if (moved && (address.empty() ||
                  address == cluster::FormatAddress({is.address, is.port}))) {
      was = is;
    }
  }
}

}  // namespace

std::string ConfigChange(const v1::ClusterState& running,
                         const cluster::ClusterConfig& wanted) {
  absl::StatusOr<cluster::ClusterConfig> parsed =
      cluster::ParseClusterConfig(running.cluster_file(), wanted.name, "/");
  if (running.cluster_file().empty()) return "";
  if (!parsed.ok()) return "settings of another version of ringfleet";
  FollowMoves(running, wanted, &*parsed);
  const std::vector<std::string> before = Settings(*parsed);
  const std::vector<std::string> now = Settings(wanted);
  const auto [was, is] =
      std::mismatch(before.begin(), before.end(), now.begin(), now.end());
  // Both lists end with `security`, which is always there.
  if (was == before.end() || is == now.end()) return "";
  if (Key(*was) == Key(*is)) {
    return absl::StrCat("'", *was, "', not '", *is, "'");
  }
  return HasKey(now, Key(*was)) ? absl::StrCat("no '", *is, "'")
                                : absl::StrCat("'", *was, "'");
}

}  // namespace ringfleet::coordinator::cli
