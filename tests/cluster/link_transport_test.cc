// SPDX-License-Identifier: Apache-2.0
#include "cluster/link_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "cluster/group_communicator.h"
#include "protos/collective.grpc.pb.h"
#include "tests/testing/collective_cases.h"
#include "tests/testing/grpc_world.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::ExactSum;
using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::RankOrderSum;
using ::ringfleet::testing::RankValues;
using ::ringfleet::testing::SumTolerance;
using ::ringfleet::testing::UnevenOffsets;
using ::ringfleet::testing::WholeWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(60)); }

class WorldTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, WorldTest, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(WorldTest, AllReduceSumsAndRanksAgreeBitwise) {
  const int ranks = GetParam();
  GrpcWorld world(ranks);
  for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
    std::vector<std::vector<std::vector<float>>> results(ranks);
    const std::vector<size_t> sizes = {0, 1, 2, 3, 7, 64, 1000, 7168, 300000};
    world.RunConnected(
        [&](Transport& transport) {
          GroupCommunicator communicator(&transport, WholeWorld(ranks));
          for (const size_t size : sizes) {
            std::vector<float> data = RankValues(transport.rank(), size);
            const absl::Status status = communicator.AllReduce(
                absl::MakeSpan(data), wire, /*check=*/size, Soon());
            ASSERT_TRUE(status.ok()) << status;
            results[transport.rank()].push_back(std::move(data));
          }
        },
        /*epoch=*/wire == Wire::kF32 ? 1 : 2);
    for (size_t s = 0; s < sizes.size(); ++s) {
      const std::vector<double> exact = ExactSum(ranks, sizes[s]);
      const std::vector<float> tolerance = SumTolerance(ranks, sizes[s], wire);
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(results[rank].size(), sizes.size());
        ASSERT_EQ(results[rank][s], results[0][s])
            << "rank " << rank << ", " << sizes[s] << " elements";
      }
      for (size_t i = 0; i < sizes[s]; ++i) {
        ASSERT_NEAR(results[0][s][i], exact[i], tolerance[i])
            << i << " of " << sizes[s];
      }
    }
  }
}

}  // namespace
}  // namespace ringfleet::cluster
