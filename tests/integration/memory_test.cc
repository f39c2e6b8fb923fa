// SPDX-License-Identifier: Apache-2.0
// No worker ever holds the whole model: its anonymous memory is its shard and
// a constant.
#include <filesystem>

#include "cluster/model/model_spec.h"
#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Beside shard and cache: the runtime, gRPC with its threads and windows, the
// buffers of a step, the allocator's slack. Measured on two cores: 5 MiB after
// a score of 401 tokens on tiny-v3 at world sizes 1 and 4, 1.5 MiB after
// loading a shard of 137 MiB. Machines with more cores have more arenas.
constexpr uint64_t kConstant = 24 * kMiB;

// VmHWM also counts the program's own pages; measured 20 MiB above the shard.
constexpr uint64_t kPeakConstant = 48 * kMiB;

class MemoryTest : public HandFleet {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow is no measure";
  }
  // Checks every worker against what `status` says it holds.
  void ExpectBounded(const char* when) {
    const json workers = Status()["workers"];
    ASSERT_FALSE(workers.empty());
    for (const json& worker : workers) {
      const auto anonymous =
          testing::StatusBytes(worker["pid"].get<int>(), "RssAnon");
      const uint64_t held = worker["resident_bytes"].get<uint64_t>() +
                            worker["cache_bytes"].get<uint64_t>();
      EXPECT_GT(anonymous, worker["resident_bytes"].get<uint64_t>())
          << "resident_bytes claims more than there is";
      EXPECT_LE(anonymous, held + kConstant)
          << when << ": rank " << worker["rank"] << " has "
          << (anonymous - std::min(anonymous, held)) / kMiB
          << " MiB beside shard and cache";
    }
  }
};

class TinyMemoryTest : public MemoryTest,
                       public ::testing::WithParamInterface<int> {};

TEST_P(TinyMemoryTest, IsShardAndCacheAndAConstant) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(GetParam()));
  ExpectBounded("loaded");
  const Finished scored =
      Cli({"score", "--cluster", cluster(), "--ids",
           JoinIds(Golden("tiny-v3")["cases"].back()["prompt_ids"])});
  ASSERT_EQ(scored.code, 0) << scored.errors;
  ExpectBounded("scored");
}

INSTANTIATE_TEST_SUITE_P(World, TinyMemoryTest, ::testing::Values(1, 4));

TEST_F(MemoryTest, OfALargerModelEachWorkerHoldsItsHalf) {
  cluster::ModelSpec spec = testing::TinyV2LiteSpec();
  spec.vocab_size = 4096;
  spec.hidden_size = 1024;
  spec.num_hidden_layers = 6;
  spec.num_attention_heads = 8;
  spec.kv_lora_rank = 128;
  spec.qk_nope_head_dim = 64;
  spec.qk_rope_head_dim = 32;
  spec.v_head_dim = 64;
  spec.intermediate_size = 3072;
  spec.moe_intermediate_size = 512;
  spec.n_routed_experts = 12;
  std::filesystem::create_directories(File("model"));
  testing::WriteRandomModel(File("model"), spec, kernels::Dtype::kBf16,
                            /*seed=*/3);
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(File("model"))) {
    bytes += entry.file_size();
  }
  ASSERT_GT(bytes, 190 * kMiB);
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, {}, {}, 0, File("model")));
  StartWorker(0);
  StartWorker(1);
  const json status = WaitForState("ready");
  ASSERT_EQ(status["state"], "ready");
  for (const json& worker : status["workers"]) {
    // The embedding, norms and latent projections are on both.
    EXPECT_LT(worker["resident_bytes"].get<uint64_t>(), bytes * 6 / 10);
    // Not at any time in the load, either.
    EXPECT_LT(testing::StatusBytes(worker["pid"].get<int>(), "VmHWM"),
              worker["resident_bytes"].get<uint64_t>() + kPeakConstant);
  }
  ExpectBounded("loaded");
}

// A long text takes many times its size for a moment, and is refused.
TEST_F(MemoryTest, ALongTextLeavesNoMemoryWithTheCoordinator) {
  constexpr uint64_t kTextBytes = 6 * kMiB;
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const pid_t pid = coordinator_->pid();
  const uint64_t before = testing::StatusBytes(pid, "RssAnon");
  std::string text;
  while (text.size() < kTextBytes) text += "def main(x):\n    return x\n";
  testing::WriteFile(File("long.txt"), text);
  const Finished refused =
      Cli({"submit", "--cluster", cluster(), "-f", File("long.txt")});
  EXPECT_EQ(refused.code, 2) << refused.errors;
  const uint64_t after = testing::StatusBytes(pid, "RssAnon");
  EXPECT_LE(after, before + kConstant)
      << (after - before) / kMiB << " MiB are left of a text of "
      << kTextBytes / kMiB << " MiB";
}

}  // namespace
}  // namespace ringfleet::integration
