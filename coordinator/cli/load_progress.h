// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LOAD_PROGRESS_H_
#define RINGFLEET_COORDINATOR_CLI_LOAD_PROGRESS_H_

#include <string>

#include "coordinator/cli/progress.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// Draws one line for a fleet that loads: bytes, rate, time left, the slowest
// rank if ranks are apart, and the ranks that fetch files from others.
void ShowLoading(const v1::ClusterState& state, Progress& progress);

// Returns "slowest: rank 3 (beta) 41 %", or "" if all ranks are within a
// hundredth.
std::string SlowestRank(const v1::ClusterState& state);

// Returns "fetched 1.2 GB: ranks 1, 3 from worker 0, the coordinator", or "" if
// all ranks have the model's files.
std::string FetchingRanks(const v1::ClusterState& state);

// Prints the workers' warnings about their load on stderr, one line a rank.
// Most loads have none.
void ShowLoadWarnings(const v1::ClusterState& state);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LOAD_PROGRESS_H_
