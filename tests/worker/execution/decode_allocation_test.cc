// SPDX-License-Identifier: Apache-2.0
// A decode step allocates nothing once its buffers have grown.
#include <gtest/gtest.h>

#include <map>

#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/shard_plan.h"
#include "tests/testing/count_allocations.h"
#include "tests/testing/trace_checks.h"
#include "worker/execution/executor.h"
#include "worker/loading/shard_loader.h"

namespace ringfleet::worker {
namespace {

// The only rank of its world: every sum and gather is what it has.
class LoneCommunicator final : public cluster::Communicator {
 public:
  explicit LoneCommunicator(cluster::TraceRecorder* trace) : trace_(trace) {}
  cluster::TraceRecorder* trace() const override { return trace_; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status AllReduce(absl::Span<const float>, absl::Span<float>,
                         cluster::Encoding, uint64_t,
                         cluster::Deadline) override {
    return absl::OkStatus();
  }
  absl::Status AllGather(absl::Span<const char>, absl::Span<char>,
                         absl::Span<const uint64_t>,
                         cluster::Deadline) override {
    return absl::OkStatus();
  }
  absl::Status AllGather(absl::Span<const float>, absl::Span<float>,
                         absl::Span<const uint64_t>, cluster::Encoding,
                         cluster::Deadline) override {
    return absl::UnimplementedError("not part of a step");
  }
  absl::Status ReduceScatter(absl::Span<float>, absl::Span<float>,
                             absl::Span<const uint64_t>, cluster::Encoding,
                             uint64_t, cluster::Deadline) override {
    return absl::UnimplementedError("not part of a step");
  }
  absl::Status AllToAll(absl::Span<const char>, absl::Span<const uint64_t>,
                        absl::Span<char>, absl::Span<const uint64_t>,
                        cluster::Deadline) override {
    return absl::UnimplementedError("not part of a step");
  }
  absl::Status AllToAll(absl::Span<const float>, absl::Span<const uint64_t>,
                        absl::Span<float>, absl::Span<const uint64_t>,
                        cluster::Encoding, cluster::Deadline) override {
    return absl::UnimplementedError("not part of a step");
  }
  absl::Status Broadcast(absl::Span<float>, int, cluster::Encoding,
                         cluster::Deadline) override {
    return absl::UnimplementedError("not part of a step");
  }
  absl::Status StreamingAllGather(const cluster::SplitRowsLayout&,
                                  absl::Span<const char>,
                                  cluster::StreamingReceiver&, uint64_t,
                                  cluster::Deadline) override {
    return absl::UnimplementedError("not part of a step");
  }
  absl::Status StreamingReduceScatter(const cluster::SplitRowsLayout&,
                                      cluster::Encoding,
                                      cluster::StreamingSource&, uint64_t,
                                      cluster::Deadline) override {
    return absl::UnimplementedError("not part of a step");
  }
  void Wake() override {}
  absl::Status Barrier(cluster::Deadline) override { return absl::OkStatus(); }

 private:
  cluster::TraceRecorder* const trace_;
};

struct Forms {
  kernels::WeightForm weights;
  kernels::Dtype cache;
};

class DecodeAllocationTest : public ::testing::TestWithParam<Forms> {};

TEST_P(DecodeAllocationTest, WarmStepsAllocateNothing) {
  if (!testing::CountsAllocations()) {
    GTEST_SKIP() << "a sanitizer has an allocator of its own";
  }
  const std::string folder = std::string(RINGFLEET_TEST_MODELS) + "/tiny-v3";
  const auto spec = cluster::LoadModelSpec(folder);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto checkpoint = cluster::OpenCheckpoint(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto plan = cluster::PlanShard(*spec, {}, 0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  kernels::ThreadPool pool(2);
  auto weights =
      LoadShard(**checkpoint, *spec, *plan, {.form = GetParam().weights}, pool,
                [](uint64_t, uint64_t) { return absl::OkStatus(); });
  ASSERT_TRUE(weights.ok()) << weights.status();
  constexpr uint32_t kSlots = 4;
  auto cache =
      KvCache::Create(GetParam().cache, Model::CacheLayers(*spec, *weights),
                      spec->kv_lora_rank, spec->qk_rope_head_dim,
                      {.slots = kSlots, .context = 256, .blocks = 2 * kSlots});
  ASSERT_TRUE(cache.ok()) << cache.status();
  cluster::TraceRecorder trace;
  LoneCommunicator lone(&trace);
  TimedCommunicator communicator(&lone, absl::Seconds(60));
  const cluster::ExpertLayout layout(spec->num_hidden_layers + 1,
                                     spec->n_routed_experts, 1);
  Model model(*spec, *plan, layout, *weights, pool, *cache, communicator,
              /*data_axis=*/nullptr, ModelSettings());
  Executor executor(/*epoch=*/1, {&model, &*cache}, {}, kSlots,
                    v1::PREFILL_STRATEGY_AUTO);

  // All but the first slot come to the border of a cache block, position 128.
  // The last one does so in a replay. It is released, and replays again.
  constexpr uint32_t kPrompts[kSlots] = {5, 90, 95, 100};
  constexpr uint32_t kReplaySlot = 3;
  constexpr uint32_t kReplayRows = 16;
  constexpr uint64_t kReplaySteps = 3;
  v1::StepPlan step;
  step.set_epoch(1);
  uint32_t positions[kSlots] = {};  // Of each slot, with those of this step.
  uint32_t blocks[kSlots] = {};
  const auto feed = [&](uint32_t slot, uint32_t rows) {
    positions[slot] += rows;
    const auto wanted =
        static_cast<uint32_t>(kernels::CacheBlocks(positions[slot]));
    if (wanted == blocks[slot]) return;
    v1::BlockGrant* grant = step.add_grants();
    grant->set_slot(slot);
    while (blocks[slot] < wanted) grant->add_blocks(2 * slot + blocks[slot]++);
  };
  const auto decode = [&](uint32_t slot) {
    step.add_decodes()->set_slot(slot);
    feed(slot, 1);
  };
  const auto admit = [&](uint32_t slot) {
    v1::Admission* admission = step.add_admissions();
    admission->set_slot(slot);
    for (uint32_t id = 0; id < kPrompts[slot]; ++id) {
      admission->add_prompt_ids(id);
    }
    if (slot == kReplaySlot) {
      for (uint32_t id = 0; id < kReplaySteps * kReplayRows; ++id) {
        admission->add_committed_ids(id);
      }
    }
    admission->set_max_tokens(1000);
    // One is greedy, the others are not.
    admission->mutable_sampling()->set_temperature(0.5f * slot);
    v1::PrefillSpan* prefill = step.add_prefills();
    prefill->set_slot(slot);
    prefill->set_count(kPrompts[slot]);
    positions[slot] = blocks[slot] = 0;
    feed(slot, kPrompts[slot]);
  };
  v1::StepResult result;
  size_t allocations = 0;
  // The slot is admitted for a second time here. Admissions may allocate.
  constexpr uint64_t kAdmittedAgain = 9;
  // The steps before this one grow buffers.
  constexpr uint64_t kFirstCounted = kReplaySteps + 3;
  // A trace that is on from some step on allocates nothing in those either.
  constexpr uint64_t kFirstTraced = 17;
  constexpr uint64_t kLast = 60;
  for (uint64_t i = 1; i <= kLast; ++i) {
    step.clear_releases();
    step.clear_admissions();
    step.clear_prefills();
    step.clear_grants();
    step.clear_replays();
    step.clear_decodes();
    if (i == 1) {
      for (uint32_t slot = 0; slot < kSlots; ++slot) admit(slot);
    } else {
      for (uint32_t slot = 0; slot < kReplaySlot; ++slot) {
        decode(slot);
      }
    }
    const uint64_t since =
        i < kAdmittedAgain ? i - 1 : i - kAdmittedAgain;  // Admission: 0.
    if (i == kAdmittedAgain) {
      step.add_releases(kReplaySlot);
      admit(kReplaySlot);
    } else if (since > kReplaySteps) {
      decode(kReplaySlot);
    } else if (since > 0) {
      v1::ReplaySpan* replay = step.add_replays();
      replay->set_slot(kReplaySlot);
      replay->set_count(kReplayRows);
      feed(kReplaySlot, kReplayRows);
    }
    if (i == kFirstTraced) {
      ASSERT_TRUE(trace.Start(10'000).ok());
    }
    step.set_step(i);
    result.Clear();
    const size_t before = testing::AllocationCount();
    const absl::Status status = executor.Step(step, &result);
    if (i >= kFirstCounted && i != kAdmittedAgain) {
      allocations += testing::AllocationCount() - before;
    }
    ASSERT_TRUE(status.ok()) << status;
    if (since >= kReplaySteps) {
      ASSERT_EQ(result.slots_size(), static_cast<int>(kSlots));
    }
  }
  EXPECT_EQ(allocations, 0u);

  const auto events = trace.Stop().events;
  EXPECT_EQ(testing::TraceError(events), "");
  std::map<absl::string_view, uint64_t> counts;
  for (const cluster::TraceEvent& event : events) {
    ++counts[event.name];
    EXPECT_GE(event.step, kFirstTraced);
    EXPECT_LE(event.step, kLast);
    const bool in_layer = event.name != "step" && event.name != "head" &&
                          event.name != "sampling";
    EXPECT_EQ(event.layer >= 0, in_layer) << event.name;
  }
  const uint64_t steps = kLast - kFirstTraced + 1;
  const uint64_t layers = steps * spec->num_hidden_layers;
  const uint64_t dense = steps * spec->first_k_dense_replace;
  EXPECT_EQ(counts, (std::map<absl::string_view, uint64_t>{
                        {"step", steps},
                        {"head", steps},
                        {"sampling", steps},
                        {"layer", layers},
                        {"latents", layers},
                        {"query product", layers},
                        {"attention", layers},
                        {"output product", layers},
                        {"dense MLP", dense},
                        {"routing", layers - dense},
                        {"experts", layers - dense}}));
}

INSTANTIATE_TEST_SUITE_P(
    Forms, DecodeAllocationTest,
    ::testing::Values(Forms{kernels::WeightForm::kF32, kernels::Dtype::kF32},
                      Forms{kernels::WeightForm::kBf16, kernels::Dtype::kBf16},
                      Forms{kernels::WeightForm::kInt8, kernels::Dtype::kBf16},
                      Forms{kernels::WeightForm::kInt8, kernels::Dtype::kInt8},
                      Forms{kernels::WeightForm::kInt4, kernels::Dtype::kInt8}),
    [](const auto& info) {
      return absl::StrCat(kernels::WeightFormName(info.param.weights), "_",
                          kernels::DtypeName(info.param.cache));
    });

}  // namespace
}  // namespace ringfleet::worker
