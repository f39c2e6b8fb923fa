// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/load_progress.h"

#include <gtest/gtest.h>

namespace ringfleet::coordinator::cli {
namespace {

TEST(LoadProgressTest, NamesTheRanksThatFetchAndFromWhom) {
  v1::ClusterState state;
  for (int rank = 0; rank < 3; ++rank) {
    v1::WorkerState* worker = state.add_workers();
    worker->set_rank(rank);
    worker->set_bytes_fetched(uint64_t{1'500'000'000} * rank);
  }
  EXPECT_EQ(FetchingRanks(state), "");
  state.mutable_workers(1)->set_fetches_from("worker 0");
  EXPECT_EQ(FetchingRanks(state), "fetched 1.5 GB: rank 1 from worker 0");
  state.mutable_workers(2)->set_fetches_from("worker 0");
  EXPECT_EQ(FetchingRanks(state), "fetched 4.5 GB: ranks 1, 2 from worker 0");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
