// SPDX-License-Identifier: Apache-2.0
// What one of two workers reads and holds when it loads a model with layers of
// DeepSeek-R1's size: its share of the bytes, and its shard.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/synthetic/synthetic_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/process.h"
#include "tests/testing/sanitized.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {
namespace {

constexpr char kSlice[] = "synth:r1-slice";

// An fp8 matrix and its float32 scales, one for each 128 x 128 (the model's
// weight_block_size).
constexpr uint64_t Fp8Bytes(uint64_t rows, uint64_t columns) {
  return rows * columns + 4 * ((rows + 127) / 128) * ((columns + 127) / 128);
}
constexpr uint64_t Bf16Bytes(uint64_t count) { return 2 * count; }

constexpr uint64_t kHidden = 7168;
constexpr uint64_t kVocabulary = 32768;
constexpr uint64_t kExperts = 32;
constexpr uint64_t kMoeLayers = 2;  // Behind one dense layer.

// Of a layer what both workers need: norms, and the products that make latents
// of 1536 and of 512 + 64 numbers.
constexpr uint64_t kReplicatedOfALayer =
    Bf16Bytes(2 * kHidden) + Fp8Bytes(1536, kHidden) + Bf16Bytes(1536) +
    Fp8Bytes(512 + 64, kHidden) + Bf16Bytes(512);
constexpr uint64_t kReplicated =
    Bf16Bytes(kVocabulary * kHidden) + Bf16Bytes(kHidden) +
    (1 + kMoeLayers) * kReplicatedOfALayer +
    kMoeLayers * (Bf16Bytes(kExperts * kHidden) + 4 * kExperts);

// Of a layer what a worker has of its own with 64 of 128 heads of 128 + 64 and
// 128 + 128 numbers: rows of q_b and kv_b, columns of o.
constexpr uint64_t kHeads = 64;
constexpr uint64_t kOwnAttention = Fp8Bytes(kHeads * (128 + 64), 1536) +
                                   Fp8Bytes(kHeads * (128 + 128), 512) +
                                   Fp8Bytes(kHidden, kHeads * 128);
constexpr uint64_t OwnMlp(uint64_t width) {
  return 2 * Fp8Bytes(width, kHidden) + Fp8Bytes(kHidden, width);
}
// Every routed expert and the shared one.
constexpr uint64_t kOwn = Bf16Bytes(kVocabulary / 2 * kHidden) +
                          (1 + kMoeLayers) * kOwnAttention + OwnMlp(18432 / 2) +
                          kMoeLayers * (kExperts + 1) * OwnMlp(2048 / 2);
constexpr uint64_t kShare = kReplicated + kOwn;

// Files with r1-slice's headers; their tensors are holes, which read as zeros.
void WriteHollowSlice(const std::string& dir) {
  const auto slice = cluster::OpenCheckpoint(kSlice);
  ASSERT_TRUE(slice.ok()) << slice.status();
  nlohmann::json header = nlohmann::json::object();
  uint64_t bytes = 0;
  for (const std::string& name : (*slice)->Names()) {
    const cluster::TensorInfo& tensor = **(*slice)->Find(name);
    const bool fp8 = tensor.dtype == kernels::Dtype::kF8E4M3;
    header[name] = {{"dtype", fp8 ? "F8_E4M3"
                              : tensor.dtype == kernels::Dtype::kBf16 ? "BF16"
                                                                      : "F32"},
                    {"shape", tensor.shape},
                    {"data_offsets", {bytes, bytes + tensor.bytes}}};
    bytes += tensor.bytes;
  }
  // Two workers' own parts make all that is not on both.
  EXPECT_EQ(bytes, kReplicated + 2 * kOwn);
  const std::string path = dir + "/model.safetensors";
  testing::WriteFile(path, testing::RawSafetensors(header.dump(), ""));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + bytes);
  testing::WriteFile(dir + "/config.json",
                     cluster::SyntheticFile(
                         *cluster::ParseSyntheticModel(kSlice), "config.json")
                         .value());
}

TEST(LoadShareTest, OneOfTwoWorkersReadsItsShareAndHoldsItsShard) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer's shadow is no measure, and 2.5 GB take it "
                    "minutes";
  }
  const testing::TempDir dir;
  ASSERT_NO_FATAL_FAILURE(WriteHollowSlice(dir.path()));
  v1::LoadRequest request;
  request.set_model_path(dir.path());
  request.set_dtype(v1::DTYPE_INT8);
  request.set_context(64);
  request.set_slots(1);
  v1::Mesh* mesh = request.mutable_layout()->mutable_mesh();
  mesh->set_data(1);
  mesh->set_expert(1);
  mesh->set_tensor(2);
  request.mutable_layout()->set_rank(1);

  const uint64_t before = testing::StatusBytes(getpid(), "RssAnon");
  uint64_t most = 0;
  const auto sample = [&most] {
    most = std::max(most, testing::StatusBytes(getpid(), "RssAnon"));
  };
  const auto shard = LoadShardFor(
      request,
      {.threads = 2,
       .available_memory_bytes = std::numeric_limits<uint64_t>::max()},
      [&sample](const v1::LoadProgress&) {
        sample();
        return absl::OkStatus();
      });
  ASSERT_TRUE(shard.ok()) << shard.status();
  sample();

  EXPECT_GE((*shard)->tensor_bytes_read, kShare);
  const uint64_t read =
      (*shard)->tensor_bytes_read + (*shard)->other_bytes_read;
  EXPECT_LE(read, kShare + kShare / 50);
  RecordProperty("share_bytes", std::to_string(kShare));
  RecordProperty("read_bytes", std::to_string(read));

  EXPECT_GT(most - before, (*shard)->resident_bytes);
  EXPECT_LE(most - before, (*shard)->resident_bytes + (uint64_t{256} << 20));
  RecordProperty("shard_bytes", std::to_string((*shard)->resident_bytes));
  RecordProperty("anonymous_bytes", std::to_string(most - before));
}

}  // namespace
}  // namespace ringfleet::worker
