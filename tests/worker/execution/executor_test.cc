// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/executor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::worker {
namespace {

using ringfleet::testing::BundledModel;
using ringfleet::testing::RankWorld;
using ringfleet::testing::RankWorldOptions;
using ringfleet::testing::TempDir;
using ::testing::ElementsAre;

// A sequence, the spans of its prompt, and when and where it runs.
struct Job {
  v1::Admission admission;
  std::vector<int> spans;
  int start = 0;  // Steps after the first.
};

Job MakeJob(uint32_t slot, uint32_t first_id, std::vector<int> spans,
            int max_tokens, int start = 0) {
  Job job;
  job.admission.set_slot(slot);
  uint32_t id = first_id;
  for (int span : spans) {
    for (int i = 0; i < span; ++i) {
      job.admission.add_prompt_ids(id);
      id = (id * 37 + 11) % 101;
    }
  }
  job.admission.set_max_tokens(max_tokens);
  job.spans = std::move(spans);
  job.start = start;
  return job;
}

// What all ranks must agree on: scores come from rank 0 only, and each rank
// reads weights of its own.
v1::StepResult Agreed(const v1::StepResult& result) {
  v1::StepResult others = result;
  others.clear_slots();
  others.clear_bytes_read();
  for (const v1::SlotResult& slot : result.slots()) {
    if (slot.tokens().empty()) continue;
    *others.add_slots() = slot;
    others.mutable_slots(others.slots_size() - 1)->clear_score();
  }
  // Rank 0 may mention a slot earlier, for a score.
  std::sort(others.mutable_slots()->begin(), others.mutable_slots()->end(),
            [](const v1::SlotResult& a, const v1::SlotResult& b) {
              return a.slot() < b.slot();
            });
  return others;
}

// Runs jobs to their ends, each released in the step after; what every one
// produced, as if it had been one step. All ranks must agree.
std::vector<v1::SlotResult> RunJobs(RankWorld& world,
                                    const std::vector<Job>& jobs) {
  std::vector<v1::SlotResult> merged(jobs.size());
  std::vector<size_t> spans_done(jobs.size());
  std::vector<bool> released(jobs.size());
  for (int step = 0; step < 200; ++step) {
    v1::StepPlan plan;
    bool any = false;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const Job& job = jobs[i];
      const uint32_t slot = job.admission.slot();
      if (released[i]) continue;
      any = true;
      if (step < job.start) continue;
      if (merged[i].finish() != v1::FINISH_REASON_UNSPECIFIED) {
        plan.add_releases(slot);
        released[i] = true;
        continue;
      }
      if (step == job.start) *plan.add_admissions() = job.admission;
      if (spans_done[i] < job.spans.size()) {
        v1::PrefillSpan* prefill = plan.add_prefills();
        prefill->set_slot(slot);
        prefill->set_count(job.spans[spans_done[i]++]);
      } else {
        plan.add_decodes()->set_slot(slot);
      }
    }
    if (!any) return merged;
    const std::vector<v1::StepResult> results = world.Step(plan);
    for (const v1::StepResult& result : results) {
      EXPECT_EQ(Agreed(result).SerializeAsString(),
                Agreed(results[0]).SerializeAsString());
    }
    for (const v1::SlotResult& result : results[0].slots()) {
      for (size_t i = 0; i < jobs.size(); ++i) {
        if (jobs[i].admission.slot() == result.slot() && !released[i] &&
            step >= jobs[i].start) {
          merged[i].MergeFrom(result);
        }
      }
    }
  }
  ADD_FAILURE() << "jobs did not end";
  return merged;
}

// Bit for bit, but for the slot.
void ExpectSame(v1::SlotResult actual, v1::SlotResult expected) {
  actual.clear_slot();
  expected.clear_slot();
  EXPECT_GT(expected.tokens_size(), 0);
  EXPECT_EQ(actual.SerializeAsString(), expected.SerializeAsString())
      << actual.ShortDebugString() << "\n"
      << expected.ShortDebugString();
}

struct Variant {
  std::string name;
  RankWorldOptions options;
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

class RowInvarianceTest : public ::testing::TestWithParam<Variant> {};

TEST_P(RowInvarianceTest, CompanySlotAndThreadsDoNotChangeABit) {
  RankWorldOptions options = GetParam().options;
  options.context = 256;
  Job subject = MakeJob(0, 7, {9, 3}, 8);
  subject.admission.mutable_sampling()->set_temperature(0.7f);
  subject.admission.mutable_sampling()->set_seed(3);
  subject.admission.mutable_score()->set_hidden(true);
  subject.admission.mutable_score()->set_top(4);
  const std::string model =
      BundledModel(testing::kSanitized ? "tiny-v2" : "tiny-v3");
  v1::SlotResult alone;
  {
    RankWorld world(model, options);
    alone = RunJobs(world, {subject})[0];
    ASSERT_EQ(alone.tokens_size(), 8);
    ASSERT_EQ(alone.score().logprobs_size(), 11);
  }
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(::testing::Message() << threads << " threads");
    options.threads = threads;
    RankWorld world(model, options);
    for (const uint32_t slot : {0u, 3u}) {
      Job moved = subject;
      moved.start = 2;
      moved.admission.set_slot(slot);
      // Before, beside and behind it: prompts and decodes, also past a block.
      const auto results = RunJobs(
          world, {MakeJob(1, 50, {40}, 5), moved, MakeJob(2, 7, {1, 90, 40}, 4),
                  MakeJob(slot == 0 ? 3 : 0, 99, {2, 2, 2, 2, 2, 2}, 9, 1)});
      ExpectSame(results[1], alone);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, RowInvarianceTest,
    ::testing::Values(Variant{"f32", {}},
                      Variant{"f32_three_ranks", {.mesh = {.tensor = 3}}},
                      Variant{"bf16_two_ranks",
                              {.mesh = {.tensor = 2},
                               .form = kernels::WeightForm::kBf16,
                               .wire = cluster::Wire::kBf16}},
                      Variant{"int8", {.form = kernels::WeightForm::kInt8}},
                      Variant{"int4_two_ranks",
                              {.mesh = {.tensor = 2},
                               .form = kernels::WeightForm::kInt4,
                               .wire = cluster::Wire::kBf16}},
                      Variant{"bf16_expert_mesh",
                              {.mesh = {.expert = 2},
                               .form = kernels::WeightForm::kBf16,
                               .wire = cluster::Wire::kBf16}}),
    [](const auto& info) { return info.param.name; });

constexpr size_t kNeverFuses = ~size_t{0};
// Sanitizers take minutes where others take seconds, and one model is accessed
// as the next is.
const std::vector<const char*> kSplitModels =
    testing::kSanitized
        ? std::vector<const char*>{"tiny-v2"}
        : std::vector<const char*>{"tiny-v2", "tiny-v2-lite", "tiny-v3"};

class PrefillStrategyTest : public ::testing::TestWithParam<Variant> {};

TEST_P(PrefillStrategyTest, RowsDealtOutGetTheSameBits) {
  // Prompts whole and in parts, several in a step and beside decodes, fewer
  // rows than ranks, rows that no number of ranks divides.
  std::vector<Job> jobs = {MakeJob(0, 7, {40, 1, 90}, 5),
                           MakeJob(1, 50, {2, 33}, 6, 1),
                           MakeJob(2, 12, {3, 2}, 3, 2)};
  jobs[1].admission.mutable_score()->set_hidden(true);
  jobs[1].admission.mutable_score()->set_top(4);
  jobs[2].admission.mutable_score()->set_hidden(true);
  RankWorldOptions options = GetParam().options;
  options.context = 256;
  options.prefill_strategy = v1::PREFILL_STRATEGY_REPLICATED;
  for (const char* model : kSplitModels) {
    SCOPED_TRACE(model);
    options.threads = 1;
    options.prefill_strategy = v1::PREFILL_STRATEGY_REPLICATED;
    RankWorld replicated(BundledModel(model), options);
    const std::vector<v1::SlotResult> expected = RunJobs(replicated, jobs);
    options.prefill_strategy = v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL;
    // No exchange beside a product, all of them, or those of some steps, but
    // not their experts' sums, a quarter of which a token goes to.
    std::set<uint64_t> routing_hashes;
    for (const size_t fuse_rows : {kNeverFuses, size_t{0}, size_t{20}}) {
      SCOPED_TRACE(fuse_rows);
      options.threads = fuse_rows == 20 ? 1 : 2;
      options.fuse_rows = fuse_rows;
      RankWorld split(BundledModel(model), options);
      const std::vector<v1::SlotResult> actual = RunJobs(split, jobs);
      for (size_t i = 0; i < jobs.size(); ++i) {
        ExpectSame(actual[i], expected[i]);
      }
      for (int rank = 0; rank < split.size(); ++rank) {
        EXPECT_EQ(split.ExpertCounts(rank), replicated.ExpertCounts(0));
      }
      if (routing_hashes.empty()) routing_hashes = split.Checks(0);
      EXPECT_EQ(split.Checks(0), routing_hashes);
      EXPECT_GT(routing_hashes.size(), 3u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, PrefillStrategyTest,
    ::testing::Values(Variant{"f32_two_ranks", {.mesh = {.tensor = 2}}},
                      Variant{"f32_two_coordinates_of_experts",
                              {.mesh = {.expert = 2}}},
                      Variant{"int8_three_ranks_bf16_wire",
                              {.mesh = {.tensor = 3},
                               .form = kernels::WeightForm::kInt8,
                               .wire = cluster::Wire::kBf16}},
                      Variant{"int4_five_ranks_int8_wire",
                              {.mesh = {.tensor = 5},
                               .form = kernels::WeightForm::kInt4,
                               .wire = cluster::Wire::kInt8}},
                      Variant{"bf16_expert_mesh",
                              {.mesh = {.expert = 2, .tensor = 2},
                               .form = kernels::WeightForm::kBf16,
                               .wire = cluster::Wire::kBf16}}),
    [](const auto& info) { return info.param.name; });

// Of a step with 90 tokens; nobody has measured one with two.
TEST_P(PrefillStrategyTest, ExchangesBesideProductsFollowTheTileTable) {
  RankWorldOptions options = GetParam().options;
  options.context = 256;
  options.prefill_strategy = v1::PREFILL_STRATEGY_SEQUENCE_PARALLEL;
  options.fuse_rows = 0;
  const Job job = MakeJob(0, 7, {90, 2}, 2);
  RankWorld plain(BundledModel("tiny-v2"), options);
  const v1::SlotResult expected = RunJobs(plain, {job})[0];
  EXPECT_THAT(plain.SegmentBytes(0), ElementsAre(0u));

  const cluster::ModelSpec& spec = plain.spec();
  const auto heads = static_cast<uint64_t>(spec.num_attention_heads);
  cluster::TileTable::Key q_b = {
      .cpu = "this",
      .operation = cluster::Operation::kAllGatherMatmul,
      .rows = 60,
      .inputs = static_cast<uint64_t>(spec.q_lora_rank),
      .outputs = heads * static_cast<uint64_t>(spec.qk_head_dim()),
      .dtype = std::string(kernels::WeightFormName(options.form)),
      .world = plain.size()};
  cluster::TileTable::Key o = q_b;
  o.operation = cluster::Operation::kMatmulReduceScatter;
  o.inputs = heads * static_cast<uint64_t>(spec.v_head_dim);
  o.outputs = static_cast<uint64_t>(spec.hidden_size);
  cluster::TileTable table;
  table.Set({q_b, /*tile_columns=*/64, /*segment_bytes=*/777,
             /*piece_rows=*/3});
  table.Set({o, 128, 888, 5});
  options.tiles = worker::TunedTiles(std::move(table), "this");
  RankWorld tuned(BundledModel("tiny-v2"), options);
  ExpectSame(RunJobs(tuned, {job})[0], expected);
  for (int rank = 0; rank < tuned.size(); ++rank) {
    EXPECT_THAT(tuned.SegmentBytes(rank), ElementsAre(0u, 777u, 888u));
  }
}

// The mean difference of the logarithms of a prompt's probabilities, of a
// trained model: random weights choose experts without a margin.
double Difference(const RankWorldOptions& one, const RankWorldOptions& other) {
  Job job = MakeJob(0, 7, {60, 2, 31}, 3);
  job.admission.mutable_score()->set_top(4);
  RankWorld first(BundledModel("tiny-v3"), one);
  const v1::SlotResult expected = RunJobs(first, {job})[0];
  RankWorld second(BundledModel("tiny-v3"), other);
  const v1::SlotResult actual = RunJobs(second, {job})[0];
  EXPECT_EQ(actual.score().logprobs_size(), expected.score().logprobs_size());
  double difference = 0;
  for (int i = 0; i < actual.score().logprobs_size(); ++i) {
    difference +=
        std::abs(actual.score().logprobs(i) - expected.score().logprobs(i));
  }
  return difference / actual.score().logprobs_size();
}

// Another order of sums moves a rounded activation by a code now and then and a
// probability by hundredths; a wrong or misplaced matrix, or row of a sum,
// moves it by nats.
constexpr double kOfAnotherOrder = 0.3;

TEST_P(PrefillStrategyTest, GatheredWeightsAreTheRanksOwn) {
  RankWorldOptions replicated = GetParam().options;
  replicated.context = 256;
  // Nothing is rounded between ranks here.
  replicated.wire = cluster::Wire::kF32;
  replicated.prefill_strategy = v1::PREFILL_STRATEGY_REPLICATED;
  RankWorldOptions gathering = replicated;
  gathering.prefill_strategy = v1::PREFILL_STRATEGY_WEIGHT_GATHER;
  EXPECT_LE(Difference(replicated, gathering), kOfAnotherOrder);
}

// A small random model: what follows is about plans, not numbers.
class ExecutorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    ringfleet::testing::WriteRandomModel(folder_->path(),
                                         ringfleet::testing::TinyV3Spec(),
                                         kernels::Dtype::kBf16, 1);
    folder_v2_ = new TempDir();
    ringfleet::testing::WriteRandomModel(folder_v2_->path(),
                                         ringfleet::testing::TinyV2Spec(),
                                         kernels::Dtype::kBf16, 1);
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete folder_v2_;
  }
  static RankWorld MakeWorld(RankWorldOptions options = {}) {
    return RankWorld(folder_->path(), options);
  }

  static TempDir* folder_;
  static TempDir* folder_v2_;  // Without an MTP layer.
};
TempDir* ExecutorTest::folder_ = nullptr;
TempDir* ExecutorTest::folder_v2_ = nullptr;

TEST_F(ExecutorTest, SlotsServeOneSequenceAfterTheOther) {
  RankWorld alone = MakeWorld({.mesh = {.tensor = 2}, .slots = 2});
  std::vector<Job> jobs;
  std::vector<v1::SlotResult> expected;
  // Long sequences first, so that their rows lie where short ones follow.
  for (int i = 0; i < 6; ++i) {
    jobs.push_back(
        MakeJob(i % 2, 10 + i, {i < 2 ? 150 : 3 + i, 5}, 6, /*start=*/12 * i));
    Job first = jobs.back();
    first.start = 0;
    RankWorld fresh = MakeWorld({.mesh = {.tensor = 2}, .slots = 2});
    expected.push_back(RunJobs(fresh, {first})[0]);
  }
  const std::vector<v1::SlotResult> results = RunJobs(alone, jobs);
  for (size_t i = 0; i < jobs.size(); ++i) ExpectSame(results[i], expected[i]);
}

TEST_F(ExecutorTest, ReleaseAndAdmissionInOneStepReuseTheSlot) {
  RankWorld world = MakeWorld({.slots = 1});
  const Job job = MakeJob(0, 5, {4}, 3);
  const v1::SlotResult expected = RunJobs(world, {job})[0];
  v1::StepPlan plan;
  *plan.add_admissions() = MakeJob(0, 60, {9}, 3).admission;
  plan.add_prefills()->set_count(7);
  world.Step(plan);
  plan.Clear();
  plan.add_releases(0);  // In the middle of its prompt.
  *plan.add_admissions() = job.admission;
  plan.add_prefills()->set_count(4);
  v1::SlotResult merged = world.Step(plan)[0].slots(0);
  for (int i = 0; i < 2; ++i) {
    plan.Clear();
    plan.add_decodes()->set_slot(0);
    merged.MergeFrom(world.Step(plan)[0].slots(0));
  }
  ExpectSame(merged, expected);
}

TEST_F(ExecutorTest, EndedSequencesSkipTheirDecodes) {
  RankWorld world = MakeWorld({.mesh = {.tensor = 2}});
  v1::StepPlan plan;
  *plan.add_admissions() = MakeJob(0, 5, {4}, 1).admission;
  *plan.add_admissions() = MakeJob(1, 6, {4}, 3).admission;
  plan.add_prefills()->set_count(4);
  v1::PrefillSpan* second = plan.add_prefills();
  second->set_slot(1);
  second->set_count(4);
  std::vector<v1::StepResult> results = world.Step(plan);
  ASSERT_EQ(results[0].slots_size(), 2);
  EXPECT_EQ(results[0].slots(0).finish(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(results[0].slots(1).finish(), v1::FINISH_REASON_UNSPECIFIED);
  for (int i = 0; i < 2; ++i) {
    plan.Clear();
    plan.add_decodes()->set_slot(0);
    plan.add_decodes()->set_slot(1);
    for (const v1::StepResult& result : world.Step(plan)) {
      ASSERT_EQ(result.slots_size(), 1);
      EXPECT_EQ(result.slots(0).slot(), 1u);
    }
  }
  for (const v1::StepResult& result : world.Step(plan)) {
    EXPECT_EQ(result.slots_size(), 0);  // Both have ended.
    EXPECT_EQ(result.epoch(), RankWorld::kEpoch);
    EXPECT_EQ(result.step(), 4u);
  }
}

TEST_F(ExecutorTest, AnEmptyPlanIsAStep) {
  RankWorld world = MakeWorld();
  EXPECT_EQ(world.Step(v1::StepPlan())[0].step(), 1u);
  EXPECT_EQ(world.Step(v1::StepPlan())[0].step(), 2u);
}

TEST_F(ExecutorTest, StopIdEndsTheSequenceAsItsLastToken) {
  RankWorld world = MakeWorld({.mesh = {.tensor = 2}});
  Job job = MakeJob(0, 5, {6}, 20);
  job.admission.mutable_sampling()->set_temperature(1.5f);
  const v1::SlotResult free = RunJobs(world, {job})[0];
  ASSERT_EQ(free.tokens_size(), 20);
  EXPECT_EQ(free.finish(), v1::FINISH_REASON_LENGTH);
  const uint32_t stop = free.tokens(4);
  const int first = static_cast<int>(
      std::find(free.tokens().begin(), free.tokens().end(), stop) -
      free.tokens().begin());
  job.admission.add_stop_ids(100000);
  job.admission.add_stop_ids(stop);
  const v1::SlotResult stopped = RunJobs(world, {job})[0];
  ASSERT_EQ(stopped.tokens_size(), first + 1);
  EXPECT_EQ(stopped.tokens(first), stop);
  EXPECT_EQ(stopped.finish(), v1::FINISH_REASON_STOP);
  // At the limit and a stop at once, the stop is the reason.
  job.admission.set_max_tokens(first + 1);
  EXPECT_EQ(RunJobs(world, {job})[0].finish(), v1::FINISH_REASON_STOP);
}

TEST_F(ExecutorTest, AFullContextEndsTheSequence) {
  RankWorld world = MakeWorld({.context = 12});
  const v1::SlotResult result = RunJobs(world, {MakeJob(0, 5, {10}, 100)})[0];
  // Drawn at positions 10, 11 and 12; the last has no room in the cache.
  EXPECT_EQ(result.tokens_size(), 3);
  EXPECT_EQ(result.finish(), v1::FINISH_REASON_LENGTH);
  const v1::SlotResult full = RunJobs(world, {MakeJob(0, 5, {12}, 100)})[0];
  EXPECT_EQ(full.tokens_size(), 1);
  EXPECT_EQ(full.finish(), v1::FINISH_REASON_LENGTH);
}

TEST_F(ExecutorTest, NothingIsDecodedBehindAFullContext) {
  RankWorld world = MakeWorld({.context = 12});
  v1::StepPlan plan;
  *plan.add_admissions() = MakeJob(0, 5, {12}, 1).admission;
  plan.mutable_admissions(0)->add_forced_ids(3);
  plan.add_prefills()->set_count(12);
  world.Step(plan);
  plan.Clear();
  plan.add_rewinds()->set_length(12);  // Where it ended.
  plan.add_decodes()->set_slot(0);
  std::vector<v1::StepResult> results;
  for (const absl::Status& status : world.TryStep(plan, &results)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("behind 12 positions"));
  }
}

TEST_F(ExecutorTest, WithoutTokensToDrawThePromptIsOnlyEvaluated) {
  RankWorld world = MakeWorld({.mesh = {.tensor = 2}});
  v1::StepPlan plan;
  *plan.add_admissions() = MakeJob(0, 5, {4}, 0).admission;
  plan.add_prefills()->set_count(4);
  for (const v1::StepResult& result : world.Step(plan)) {
    EXPECT_EQ(result.slots_size(), 0);
  }
}

// Sent when slot 0 has evaluated 3 of 5 prompt tokens, slot 1 decodes, slot 2
// has ended, slot 3 is free.
struct InvalidPlan {
  std::string name;
  std::function<void(v1::StepPlan&)> make;
  absl::StatusCode code;
  std::string message;  // A part of it.
  bool v2 = false;      // On the model without an MTP layer.
};

std::ostream& operator<<(std::ostream& out, const InvalidPlan& plan) {
  return out << plan.name;
}

class InvalidPlanTest : public ExecutorTest,
                        public ::testing::WithParamInterface<InvalidPlan> {};

TEST_P(InvalidPlanTest, IsRefusedOnEveryRank) {
  const InvalidPlan& test = GetParam();
  RankWorld world((test.v2 ? folder_v2_ : folder_)->path(),
                  {.mesh = {.tensor = 3}, .slots = 4, .context = 32});
  v1::StepPlan plan;
  *plan.add_admissions() = MakeJob(0, 5, {5}, 4).admission;
  *plan.add_admissions() = MakeJob(1, 6, {2}, 4).admission;
  *plan.add_admissions() = MakeJob(2, 7, {2}, 1).admission;
  for (uint32_t slot : {0u, 1u, 2u}) {
    v1::PrefillSpan* prefill = plan.add_prefills();
    prefill->set_slot(slot);
    prefill->set_count(slot == 0 ? 3 : 2);
  }
  world.Step(plan);

  plan.Clear();
  test.make(plan);
  std::vector<v1::StepResult> results;
  for (const absl::Status& status : world.TryStep(plan, &results)) {
    EXPECT_EQ(status.code(), test.code) << status;
    EXPECT_NE(std::string(status.message()).find(test.message),
              std::string::npos)
        << status;
  }
}

v1::Admission& AddAdmission(v1::StepPlan& plan, uint32_t slot, int prompt) {
  v1::Admission& admission = *plan.add_admissions();
  admission.set_slot(slot);
  admission.set_max_tokens(4);
  for (int i = 0; i < prompt; ++i) admission.add_prompt_ids(i);
  return admission;
}

v1::Admission& AddCommitted(v1::StepPlan& plan, int prompt, int committed) {
  v1::Admission& admission = AddAdmission(plan, 3, prompt);
  for (int i = 0; i < committed; ++i) admission.add_committed_ids(i);
  return admission;
}

void AddGrant(v1::StepPlan& plan, uint32_t slot, uint32_t block) {
  v1::BlockGrant* grant = plan.add_grants();
  grant->set_slot(slot);
  grant->add_blocks(block);
}

v1::CachedPrefix& AddCached(v1::StepPlan& plan, int prompt) {
  return *AddAdmission(plan, 3, prompt).mutable_cached();
}

void AddReplay(v1::StepPlan& plan, uint32_t slot, uint32_t count) {
  v1::ReplaySpan* replay = plan.add_replays();
  replay->set_slot(slot);
  replay->set_count(count);
}

void AddPrefill(v1::StepPlan& plan, uint32_t slot, uint32_t count) {
  v1::PrefillSpan* prefill = plan.add_prefills();
  prefill->set_slot(slot);
  prefill->set_count(count);
}

std::vector<InvalidPlan> InvalidPlans() {
  using Plan = v1::StepPlan;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  const float infinity = std::numeric_limits<float>::infinity();
  const auto temperature = [](float value) {
    return [value](Plan& plan) {
      AddAdmission(plan, 3, 2).mutable_sampling()->set_temperature(value);
    };
  };
  return {
      {"other_epoch", [](Plan& p) { p.set_epoch(8); }, kPrecondition,
       "epoch 8"},
      {"step_again", [](Plan& p) { p.set_step(1); }, kPrecondition,
       "want epoch 7 step 2"},
      {"step_skipped", [](Plan& p) { p.set_step(3); }, kPrecondition, "step 3"},
      {"release_of_free_slot", [](Plan& p) { p.add_releases(3); }, kInvalid,
       "slot 3"},
      {"release_out_of_range", [](Plan& p) { p.add_releases(4); }, kInvalid,
       "slot 4 of 4"},
      {"release_twice",
       [](Plan& p) {
         p.add_releases(1);
         p.add_releases(1);
       },
       kInvalid, "slot 1"},
      {"admission_out_of_range", [](Plan& p) { AddAdmission(p, 4, 2); },
       kInvalid, "slot 4"},
      {"admission_to_largest_slot",
       [](Plan& p) { AddAdmission(p, 0xffffffffu, 2); }, kInvalid,
       "slot 4294967295"},
      {"admission_to_taken_slot", [](Plan& p) { AddAdmission(p, 1, 2); },
       kInvalid, "taken"},
      {"admission_twice",
       [](Plan& p) {
         AddAdmission(p, 3, 2);
         AddAdmission(p, 3, 2);
       },
       kInvalid, "taken"},
      {"empty_prompt", [](Plan& p) { AddAdmission(p, 3, 0); }, kInvalid,
       "prompt of 0 tokens, want 1 to 32"},
      {"prompt_past_context", [](Plan& p) { AddAdmission(p, 3, 33); }, kInvalid,
       "prompt of 33 tokens, want 1 to 32"},
      {"id_past_vocabulary",
       [](Plan& p) { AddAdmission(p, 3, 2).add_prompt_ids(101); }, kInvalid,
       "token id 101, want below 101"},
      {"largest_id",
       [](Plan& p) { AddAdmission(p, 3, 2).add_prompt_ids(0xffffffffu); },
       kInvalid, "token id 4294967295"},
      {"temperature_nan", temperature(std::numeric_limits<float>::quiet_NaN()),
       kInvalid, "temperature"},
      {"temperature_infinite", temperature(infinity), kInvalid, "temperature"},
      {"temperature_negative", temperature(-1), kInvalid, "temperature -1"},
      {"committed_past_max_tokens", [](Plan& p) { AddCommitted(p, 2, 4); },
       kInvalid, "4 committed ids behind a prompt of 2"},
      {"committed_past_context", [](Plan& p) { AddCommitted(p, 30, 3); },
       kInvalid, "3 committed ids behind a prompt of 30"},
      {"committed_id_past_vocabulary",
       [](Plan& p) { AddCommitted(p, 2, 1).set_committed_ids(0, 101); },
       kInvalid, "committed id 101, want below 101"},
      {"committed_beside_forced",
       [](Plan& p) { AddCommitted(p, 2, 1).add_forced_ids(1); }, kInvalid,
       "without forced ids"},
      {"replay_of_free_slot", [](Plan& p) { AddReplay(p, 3, 1); }, kInvalid,
       "slot 3"},
      {"replay_past_prompt", [](Plan& p) { AddReplay(p, 0, 3); }, kInvalid,
       "replay of 3 tokens in slot 0, want 1 to 2"},
      {"cached_block_out_of_range",
       [](Plan& p) { AddCached(p, 20).add_blocks(4); }, kInvalid,
       "cached prefix of slot 3: block 4, want below 4"},
      {"cached_block_without_rows",
       [](Plan& p) { AddCached(p, 20).add_blocks(3); }, kInvalid,
       "block 3 has no rows"},
      {"copied_block_without_rows",
       [](Plan& p) {
         AddCached(p, 20).set_copied_block(3);
         p.mutable_admissions(0)->mutable_cached()->set_copied_positions(1);
       },
       kInvalid, "block 3 has no rows"},
      {"copied_whole_block",
       [](Plan& p) { AddCached(p, 20).set_copied_positions(128); }, kInvalid,
       "128 copied positions, want below 128"},
      {"cached_all_ids",
       [](Plan& p) { AddCached(p, 20).set_copied_positions(20); }, kInvalid,
       "20 positions, want less than the 20 known ids"},
      {"cached_beside_score",
       [](Plan& p) {
         AddCached(p, 20).set_copied_positions(2);
         p.mutable_admissions(0)->mutable_score();
       },
       kInvalid, "want none beside score and forced ids"},
      {"replay_without_committed", [](Plan& p) { AddReplay(p, 1, 1); },
       kInvalid, "replay of 1 tokens in slot 1, want 1 to 0"},
      {"replay_beside_decode",
       [](Plan& p) {
         p.add_decodes()->set_slot(1);
         AddReplay(p, 1, 1);
       },
       kInvalid, "slot 1"},
      {"prefill_of_free_slot", [](Plan& p) { AddPrefill(p, 3, 1); }, kInvalid,
       "slot 3"},
      {"prefill_out_of_range", [](Plan& p) { AddPrefill(p, 77, 1); }, kInvalid,
       "slot 77"},
      {"prefill_of_nothing", [](Plan& p) { AddPrefill(p, 0, 0); }, kInvalid,
       "prefill of 0 tokens in slot 0, want 1 to 2"},
      {"prefill_past_prompt", [](Plan& p) { AddPrefill(p, 0, 3); }, kInvalid,
       "prefill of 3 tokens in slot 0, want 1 to 2"},
      {"prefill_of_largest_count",
       [](Plan& p) { AddPrefill(p, 0, 0xffffffffu); }, kInvalid, "want 1 to 2"},
      {"prefill_while_decoding", [](Plan& p) { AddPrefill(p, 1, 1); }, kInvalid,
       "slot 1"},
      {"prefill_after_end", [](Plan& p) { AddPrefill(p, 2, 1); }, kInvalid,
       "slot 2"},
      {"prefill_twice",
       [](Plan& p) {
         AddPrefill(p, 0, 1);
         AddPrefill(p, 0, 1);
       },
       kInvalid, "slot 0 appears twice"},
      {"decode_of_free_slot", [](Plan& p) { p.add_decodes()->set_slot(3); },
       kInvalid, "slot 3"},
      {"decode_out_of_range",
       [](Plan& p) { p.add_decodes()->set_slot(0xffffffffu); }, kInvalid,
       "slot 4294967295"},
      {"decode_inside_prompt", [](Plan& p) { p.add_decodes()->set_slot(0); },
       kInvalid, "decode of slot 0 before its prompt"},
      {"decode_before_first_prefill",
       [](Plan& p) {
         AddAdmission(p, 3, 2);
         p.add_decodes()->set_slot(3);
       },
       kInvalid, "decode of slot 3 before its prompt"},
      {"decode_twice",
       [](Plan& p) {
         p.add_decodes()->set_slot(1);
         p.add_decodes()->set_slot(1);
       },
       kInvalid, "slot 1 appears twice"},
      {"decode_beside_prefill",
       [](Plan& p) {
         AddPrefill(p, 0, 2);
         p.add_decodes()->set_slot(0);
       },
       kInvalid, "slot 0 appears twice"},
      {"decode_of_released_slot",
       [](Plan& p) {
         p.add_releases(1);
         p.add_decodes()->set_slot(1);
       },
       kInvalid, "slot 1"},
      {"block_out_of_range", [](Plan& p) { AddGrant(p, 1, 4); }, kInvalid,
       "block 4, want below 4"},
      {"largest_block", [](Plan& p) { AddGrant(p, 1, 0xffffffffu); }, kInvalid,
       "block 4294967295, want below 4"},
      {"block_of_another_slot", [](Plan& p) { AddGrant(p, 1, 0); }, kInvalid,
       "blocks for slot 1: block 0 is taken"},
      {"block_past_context", [](Plan& p) { AddGrant(p, 1, 3); }, kInvalid,
       "block 3 behind 128 positions, want within 32"},
      {"block_for_free_slot", [](Plan& p) { AddGrant(p, 3, 3); }, kInvalid,
       "slot 3"},
      {"block_twice",
       [](Plan& p) {
         AddAdmission(p, 3, 2);
         AddGrant(p, 3, 3);
         AddGrant(p, 3, 3);
       },
       kInvalid, "block 3 is taken"},
      {"rows_past_blocks",
       [](Plan& p) {
         AddAdmission(p, 3, 2);
         p.add_grants()->set_slot(3);
         AddPrefill(p, 3, 2);
       },
       kInvalid, "slot 3: 2 rows behind 0, want within the 0 positions"},
      {"all_of_a_prompt_made_up",
       [](Plan& p) { AddAdmission(p, 3, 2).set_synthetic_positions(2); },
       kInvalid, "2 synthetic positions, want less than the prompt, 2"},
      {"made_up_without_blocks",
       [](Plan& p) {
         AddAdmission(p, 3, 2).set_synthetic_positions(1);
         p.add_grants()->set_slot(3);
       },
       kInvalid, "1 synthetic positions in slot 3, want within the 0"},
      {"made_up_beside_score",
       [](Plan& p) {
         v1::Admission& admission = AddAdmission(p, 3, 2);
         admission.set_synthetic_positions(1);
         admission.mutable_score();
       },
       kInvalid, "without cached rows and score"},
      {"masks", [](Plan& p) { p.add_masks()->set_slot(1); }, kInvalid,
       "1 masks, want none"},
      {"score_without_reference",
       [](Plan& p) {
         AddAdmission(p, 3, 2).mutable_score()->set_reference(true);
         AddPrefill(p, 3, 2);
       },
       kInvalid, "reference"},
      {"score_without_mtp_layer",
       [](Plan& p) {
         AddAdmission(p, 3, 2).mutable_score()->set_mtp(true);
         AddPrefill(p, 3, 2);
       },
       kInvalid, "multi-token", /*v2=*/true},
  };
}

INSTANTIATE_TEST_SUITE_P(Plans, InvalidPlanTest,
                         ::testing::ValuesIn(InvalidPlans()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ringfleet::worker
