// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/load_progress.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ringfleet::coordinator::cli {

void ShowLoading(const v1::ClusterState& state, Progress& progress) {
  if (state.load_bytes_total() == 0) {
    progress.Phase(absl::StrCat("starting workers, ", state.workers_size(),
                                " of ", state.world_size()));
    return;
  }
  const std::string slowest = SlowestRank(state);
  const std::string fetching = FetchingRanks(state);
  progress.Bytes(
      "loading", state.load_bytes_done(), state.load_bytes_total(),
      absl::StrCat(slowest, slowest.empty() || fetching.empty() ? "" : "  ",
                   fetching));
}

std::string FetchingRanks(const v1::ClusterState& state) {
  std::vector<uint32_t> ranks;
  uint64_t bytes = 0;
  std::string sources;  // Equal for all ranks.
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.fetches_from().empty()) continue;
    ranks.push_back(worker.rank());
    bytes += worker.bytes_fetched();
    sources = worker.fetches_from();
  }
  if (ranks.empty()) return "";
  return absl::StrFormat("fetched %.1f GB: %s %s from %s",
                         static_cast<double>(bytes) / 1e9,
                         ranks.size() == 1 ? "rank" : "ranks",
                         absl::StrJoin(ranks, ", "), sources);
}

std::string SlowestRank(const v1::ClusterState& state) {
  const v1::WorkerState* slowest = nullptr;
  double least = 1;
  double most = 0;
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.load_bytes_total() == 0) continue;
    const double share = static_cast<double>(worker.load_bytes_done()) /
                         static_cast<double>(worker.load_bytes_total());
    most = std::max(most, share);
    if (slowest != nullptr && share >= least) continue;
    least = share;
    slowest = &worker;
  }
  if (slowest == nullptr || most - least < 0.01) return "";
  return absl::StrFormat("slowest: rank %u (%s) %.0f %%", slowest->rank(),
                         slowest->host(), 100 * least);
}

void ShowLoadWarnings(const v1::ClusterState& state) {
  for (const v1::WorkerState& worker : state.workers()) {
    if (!worker.reload_cause().empty()) {
      std::fprintf(
          stderr, "warning: worker %u (%s): the weights load again: %s\n",
          worker.rank(), worker.host().c_str(), worker.reload_cause().c_str());
    }
    if (worker.load_warning().empty()) continue;
    std::fprintf(stderr, "warning: worker %u (%s): %s\n", worker.rank(),
                 worker.host().c_str(), worker.load_warning().c_str());
  }
}

}  // namespace ringfleet::coordinator::cli
