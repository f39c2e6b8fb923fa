// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LOAD_PROGRESS_H_
#define RINGFLEET_COORDINATOR_CLI_LOAD_PROGRESS_H_

#include <string>

#include "coordinator/cli/progress.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// Draws one progress line for a fleet that loads: bytes, rate, time left, and
// the texts of SlowestRank and FetchingRanks.
void ShowLoading(const v1::ClusterState& state, Progress& progress);

// Returns a text such as "slowest: rank 3 (beta) 41 %". Returns an empty text
// if the progress of all ranks differs by at most 1 %.
std::string SlowestRank(const v1::ClusterState& state);

// Returns a text such as "fetched 1.2 GB: ranks 1, 3 from worker 0, the
// coordinator". Returns an empty text if all ranks have the model's files.
std::string FetchingRanks(const v1::ClusterState& state);

// Prints the warnings of workers about their load on stderr, and why weights
// that they held load again.
void ShowLoadWarnings(const v1::ClusterState& state);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LOAD_PROGRESS_H_
