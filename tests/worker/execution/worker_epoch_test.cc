// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/worker_epoch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace ringfleet::worker {
namespace {

using ::testing::HasSubstr;

TEST(EpochTest, CachesThatCannotBeReservedAreAnError) {
  v1::LoadRequest request;
  request.set_model_path(RINGFLEET_TEST_MODELS "/tiny-v3");
  request.set_dtype(v1::DTYPE_F32);
  request.mutable_layout()->mutable_mesh()->set_data(1);
  request.mutable_layout()->mutable_mesh()->set_expert(1);
  request.mutable_layout()->mutable_mesh()->set_tensor(1);
  request.set_slots(1024);
  request.set_context(16);
  auto loaded = LoadShardFor(
      request, {.available_memory_bytes = std::numeric_limits<uint64_t>::max()},
      [](const v1::LoadProgress&) { return absl::OkStatus(); });
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::shared_ptr<LoadedShard> shard = *std::move(loaded);
  const auto create = [&shard](int cache_blocks) {
    return WorkerEpoch::Create(
               /*epoch=*/1, shard, std::make_shared<ExpertStatistics>(),
               /*transport=*/nullptr, cluster::AlgorithmTable::Default(),
               /*recorder=*/nullptr, /*trace=*/nullptr,
               {.context = 16, .cache_blocks = cache_blocks})
        .status();
  };
  // Far beyond the address space of a process.
  const absl::Status status = create(std::numeric_limits<int>::max());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cache of 2147483647 blocks of 128 positions: memory: "
                        "the system refuses "));
}

}  // namespace
}  // namespace ringfleet::worker
