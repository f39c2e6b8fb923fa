// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_LOAD_PROGRESS_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_LOAD_PROGRESS_H_

#include <string>

#include "coordinator/cli/progress.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator::cli {

// One line for the whole fleet that loads: bytes, rate, time left and, where
// ranks are apart, who is last; who fetches what its host lacks from whom.
void ShowLoading(const v1::ClusterState& state, Progress& progress);

// "slowest: rank 3 (beta) 41 %", or nothing where no two ranks differ by a
// hundredth.
std::string SlowestRank(const v1::ClusterState& state);

// "fetched 1.2 GB: ranks 1, 3 from worker 0, the coordinator", or nothing where
// all ranks have the model's files.
std::string FetchingRanks(const v1::ClusterState& state);

// What the workers have to say about how they loaded, one line a rank, on
// stderr; mostly nothing.
void ShowLoadWarnings(const v1::ClusterState& state);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_LOAD_PROGRESS_H_
