// SPDX-License-Identifier: Apache-2.0
// What a worker holds, asked for again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "cluster/process/status_macros.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {
namespace {

using ::testing::HasSubstr;

class KeptShardTest : public ::testing::Test {
 protected:
  KeptShardTest() {
    model_ = folder_.File("model");
    std::filesystem::copy(testing::BundledModel("tiny-v3"), model_);
    request_.set_model_path(model_);
    request_.set_dtype(v1::DTYPE_INT8);
    request_.set_context(32);
    request_.set_slots(2);
    SetLayout({2, 1, 1}, 1, &request_);
    HoldAll(2, &request_);
    auto loaded = LoadShardFor(request_, Settings(),
                               [](const auto&) { return absl::OkStatus(); });
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    shard_ = *std::move(loaded);
  }

  static void SetLayout(const cluster::MeshShape& mesh, int rank,
                        v1::LoadRequest* request) {
    v1::Mesh* shape = request->mutable_layout()->mutable_mesh();
    shape->set_data(mesh.data);
    shape->set_expert(mesh.expert);
    shape->set_tensor(mesh.tensor);
    request->mutable_layout()->set_rank(rank);
  }

  // All 16 experts at each coordinate, in layers 1 to 6, the MTP layer's.
  static void HoldAll(int num_coordinates, v1::LoadRequest* request) {
    v1::ExpertLayout* experts = request->mutable_layout()->mutable_experts();
    experts->clear_layers();
    for (int layer = 1; layer <= 6; ++layer) {
      v1::ExpertLayer* all = experts->add_layers();
      all->set_layer(layer);
      for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
        v1::ExpertCoordinate* held = all->add_coordinates();
        for (int e = 0; e < 16; ++e) held->add_experts(e);
      }
    }
  }

  static LoadSettings Settings() {
    return {.threads = 1,
            .available_memory_bytes = std::numeric_limits<uint64_t>::max()};
  }

  // Returns why the shard is not kept; empty: it is.
  absl::StatusOr<std::string> Keep(
      const std::function<void(v1::LoadRequest*)>& edit,
      const LoadSettings& settings = Settings()) {
    v1::LoadRequest request = request_;
    edit(&request);
    LoadSettings planning = settings;
    planning.held_bytes = shard_->resident_bytes;
    RF_ASSIGN_OR_RETURN(const PlannedLoad planned, PlanLoad(request, planning));
    return KeepShard(request, settings, planned, shard_.get());
  }

  testing::TempDir folder_;
  std::string model_;
  v1::LoadRequest request_;
  std::unique_ptr<LoadedShard> shard_;
};

TEST_F(KeptShardTest, BecomesAnotherRankOfAnotherMesh) {
  const uint64_t bytes = shard_->weights.bytes;
  EXPECT_GT(shard_->tensor_bytes_read, 0u);
  EXPECT_FALSE(DoneMessage(*shard_).kept());
  const auto kept = Keep([](v1::LoadRequest* request) {
    SetLayout({1, 1, 1}, 0, request);
    HoldAll(1, request);
    request->set_slots(3);
    request->set_context(16);
  });
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(*kept, "");
  EXPECT_EQ(shard_->plan.rank, 0);
  EXPECT_EQ(shard_->plan.mesh.data, 1);
  EXPECT_EQ(shard_->layout.num_coordinates(), 1);
  EXPECT_EQ(shard_->slots, 3);
  EXPECT_EQ(shard_->context, 16);
  EXPECT_EQ(shard_->weights.bytes, bytes);
  const v1::LoadProgress done = DoneMessage(*shard_);
  EXPECT_TRUE(done.kept());
  EXPECT_EQ(done.tensor_bytes_read(), 0u);
  EXPECT_EQ(done.resident_bytes(), bytes);
}

TEST_F(KeptShardTest, WhatDiffersIsLeftAsItIs) {
  struct Other {
    std::function<void(v1::LoadRequest*)> edit;
    const char* cause;
  };
  const Other others[] = {
      {[](auto* request) { request->set_dtype(v1::DTYPE_INT4); }, "dtype int4"},
      {[](auto* request) { request->set_cache_dtype(v1::CACHE_DTYPE_F32); },
       "cache type f32"},
      {[](auto* request) { request->set_reference(true); }, "float32 reference"},
      {[](auto* request) { request->set_without_mtp(true); }, "prediction layers"},
      {[](auto* request) { request->set_threads(2); }, "threads 2"},
      {[](auto* request) {
         SetLayout({1, 1, 2}, 1, request);
         HoldAll(1, request);
       },
       "mesh 1x1x2"},
      // Without copies, and with one expert less in the last layer.
      {[](auto* request) {
         request->mutable_layout()->mutable_experts()->Clear();
       },
       "experts"},
      {[](auto* request) {
         request->mutable_layout()
             ->mutable_experts()
             ->mutable_layers(5)
             ->mutable_coordinates(1)
             ->mutable_experts()
             ->RemoveLast();
       },
       "other experts in layer 6"},
  };
  for (const Other& other : others) {
    const auto kept = Keep(other.edit);
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_THAT(*kept, HasSubstr(other.cause));
    EXPECT_EQ(shard_->plan.rank, 1);
    EXPECT_EQ(shard_->request.SerializeAsString(),
              request_.SerializeAsString());
    EXPECT_FALSE(shard_->kept);
  }
  const auto kept = Keep([](auto*) {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(*kept, "");
}

TEST_F(KeptShardTest, PredictionLayersCanBeLeftOut) {
  v1::LoadRequest request = request_;
  request.set_without_mtp(true);
  const auto loaded = LoadShardFor(
      request, Settings(), [](const auto&) { return absl::OkStatus(); });
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(shard_->weights.mtp.size(), 1u);
  EXPECT_TRUE((*loaded)->weights.mtp.empty());
  EXPECT_LT((*loaded)->weights.bytes, shard_->weights.bytes);
}

// A model that was trained with sparse attention over 8 positions.
TEST_F(KeptShardTest, ASparseModelHasThePositionsOfItsIndexOrAll) {
  v1::LoadRequest request;
  request.set_model_path(testing::BundledModel("tiny-v32"));
  request.set_dtype(v1::DTYPE_INT8);
  request.set_slots(1);
  SetLayout({1, 1, 1}, 0, &request);
  for (const bool dense : {false, true}) {
    request.set_dense_attention(dense);
    const auto planned = PlanLoad(request, Settings());
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->shard->context, dense ? 1024 : 8);
  }
  request.set_context(9);
  EXPECT_TRUE(PlanLoad(request, Settings()).ok());
  request.set_dense_attention(false);
  EXPECT_THAT(std::string(PlanLoad(request, Settings()).status().message()),
              HasSubstr("context: 9 positions, want at most 8 (index_topk"));
}

TEST_F(KeptShardTest, FilesThatChangedAreReadAgain) {
  const std::string file = model_ + "/config.json";
  std::string text = testing::ReadFile(file);
  testing::WriteFile(file, text + " ");
  const auto kept = Keep([](auto*) {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_NE(*kept, "");
  std::filesystem::remove(file);
  EXPECT_FALSE(Keep([](auto*) {}).ok());
}

TEST_F(KeptShardTest, ItsOwnWeightsTakeNoMemoryAgain) {
  LoadSettings settings = Settings();
  settings.available_memory_bytes = 300ull << 20;  // For buffers and a cache.
  EXPECT_EQ(*Keep([](auto*) {}, settings), "");
  settings.available_memory_bytes = 100ull << 20;
  const absl::Status status = Keep([](auto*) {}, settings).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of buffers"));
}

}  // namespace
}  // namespace ringfleet::worker
