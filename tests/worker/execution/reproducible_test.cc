// SPDX-License-Identifier: Apache-2.0
// In a reproducible world a sequence has the same bits in whatever chunks its
// prompt is evaluated, whatever runs beside it, and whatever is cached.
#include <algorithm>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/random_layout.h"
#include "tests/testing/rank_world.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::worker {
namespace {

using ringfleet::testing::BundledModel;
using ringfleet::testing::RankWorld;
using ringfleet::testing::RankWorldOptions;

struct ReproducibleCase {
  std::string name;
  RankWorldOptions options;
  bool copies = false;  // Experts have random copies.
  bool drawn = false;   // Tokens are drawn with a seed.
};

std::ostream& operator<<(std::ostream& out,
                         const ReproducibleCase& reproduced) {
  return out << reproduced.name;
}

class ReproducibleTest : public ::testing::TestWithParam<ReproducibleCase> {
 protected:
  static constexpr int kTokens = 12;
  static constexpr int kPrompt = testing::kSanitized ? 150 : 530;
  // Chunks of a few tokens are tried to kBegin and from kEnd on, to save time.
  static constexpr int kBegin = 100;
  static constexpr int kEnd = kPrompt - 20;
  static constexpr int kSlots = 8;  // Of each data group.
  static constexpr int kContext = kPrompt + kTokens;
  static constexpr auto kBlocks =
      static_cast<uint32_t>(kernels::CacheBlocks(kContext));  // Of a slot.

  struct Drawn {
    std::vector<uint32_t> ids;
    std::vector<float> logprobs;
    bool operator==(const Drawn&) const = default;
  };

  static std::vector<uint32_t> RandomIds(std::mt19937& random, int size) {
    std::vector<uint32_t> ids;
    for (int i = 0; i < size; ++i) {
      ids.push_back(static_cast<uint32_t>(random() % 100));
    }
    return ids;
  }

  void SetUp() override {
    RankWorldOptions options = GetParam().options;
    options.reproducible = true;
    options.slots = kSlots;
    options.context = kContext;
    world_.emplace(BundledModel(testing::kSanitized ? "tiny-v2" : "tiny-v3"),
                   options);
    if (GetParam().copies) {
      std::mt19937_64 random(3);
      cluster::ExpertLayout layout = world_->experts();
      for (int layer = 0; layer < world_->spec().num_hidden_layers; ++layer) {
        if (world_->spec().IsMoeLayer(layer)) {
          testing::RandomizeLayer(random, layer, &layout);
        }
      }
      world_->MoveExperts(layout);
    }
    groups_ = GetParam().options.mesh.data;
    prompt_ = RandomIds(random_, kPrompt);
  }

  // The sequence under test, in any slot.
  v1::Admission Admission(uint32_t slot) const {
    v1::Admission admission;
    admission.set_slot(slot);
    admission.mutable_prompt_ids()->Add(prompt_.begin(), prompt_.end());
    admission.set_max_tokens(kTokens);
    if (GetParam().drawn) {
      admission.mutable_sampling()->set_temperature(0.8F);
      admission.mutable_sampling()->set_seed(11);
    }
    return admission;
  }

  // Runs a step and appends what the slot draws.
  void Step(const v1::StepPlan& plan, uint32_t slot, Drawn* drawn) {
    const std::vector<v1::StepResult> results = world_->Step(plan);
    for (int rank = 0; rank < world_->size(); ++rank) {
      if (world_->data_group(rank) != static_cast<int>(slot) / kSlots) continue;
      for (const v1::SlotResult& result : results[rank].slots()) {
        if (result.slot() != slot) continue;
        drawn->ids.insert(drawn->ids.end(), result.tokens().begin(),
                          result.tokens().end());
        drawn->logprobs.insert(drawn->logprobs.end(), result.logprobs().begin(),
                               result.logprobs().end());
      }
      return;  // The group's other ranks draw the same.
    }
  }

  static void Prefill(v1::StepPlan* plan, uint32_t slot, int count) {
    v1::PrefillSpan* span = plan->add_prefills();
    span->set_slot(slot);
    span->set_count(static_cast<uint32_t>(count));
  }

  // Evaluates an admitted prompt from position `done` on, its begin and its end
  // in chunks, then draws to the end, and frees the slot. `beside` adds work of
  // others to each plan.
  template <typename Beside>
  Drawn Finish(uint32_t slot, int done, int chunk, v1::StepPlan plan,
               Beside beside) {
    Drawn drawn;
    while (drawn.ids.size() < kTokens) {
      if (done < kPrompt) {
        const int count = done < kBegin ? std::min(chunk, kBegin - done)
                          : done < kEnd ? kEnd - done
                                        : std::min(chunk, kPrompt - done);
        Prefill(&plan, slot, count);
        done += count;
      } else {
        plan.add_decodes()->set_slot(slot);
      }
      beside(&plan);
      Step(plan, slot, &drawn);
      if (HasFailure()) break;
      plan.Clear();
    }
    plan.Clear();
    plan.add_releases(slot);
    Step(plan, slot, &drawn);
    return drawn;
  }

  Drawn Alone(uint32_t slot, int chunk) {
    v1::StepPlan plan;
    *plan.add_admissions() = Admission(slot);
    return Finish(slot, 0, chunk, plan, [](v1::StepPlan*) {});
  }

  std::mt19937 random_{1};
  std::optional<RankWorld> world_;
  uint32_t groups_ = 1;
  std::vector<uint32_t> prompt_;
};

TEST_P(ReproducibleTest, Chunks) {
  const Drawn whole = Alone(0, 512);
  ASSERT_EQ(whole.ids.size(), kTokens);
  for (const int chunk : {64, 7, 1}) {
    EXPECT_EQ(Alone(0, chunk), whole) << "chunks of " << chunk;
  }
}

TEST_P(ReproducibleTest, AnySlotBesideOthers) {
  const Drawn alone = Alone(0, 512);
  for (const uint32_t slot : {1U, groups_ * kSlots - 2}) {
    // Each other slot has prompts of random sizes, one after the other.
    std::vector<int> left(groups_ * kSlots, 0);
    std::vector<bool> busy(groups_ * kSlots, false);
    const auto beside = [&](v1::StepPlan* plan) {
      for (uint32_t other = 0; other < groups_ * kSlots; ++other) {
        if (other == slot || random_() % 4 == 0) continue;
        if (!busy[other] || (left[other] == 0 && random_() % 8 == 0)) {
          if (busy[other]) plan->add_releases(other);
          busy[other] = true;
          left[other] = 1 + static_cast<int>(random_() % 90);
          v1::Admission* admission = plan->add_admissions();
          admission->set_slot(other);
          const std::vector<uint32_t> ids = RandomIds(random_, left[other]);
          admission->mutable_prompt_ids()->Add(ids.begin(), ids.end());
          admission->set_max_tokens(kPrompt);
        }
        if (left[other] == 0) {
          plan->add_decodes()->set_slot(other);
          continue;
        }
        const int count = std::min(left[other], 40);
        Prefill(plan, other, count);
        left[other] -= count;
      }
    };
    v1::StepPlan plan;
    *plan.add_admissions() = Admission(slot);
    EXPECT_EQ(Finish(slot, 0, 100, plan, beside), alone) << "slot " << slot;
    v1::StepPlan release;
    for (uint32_t other = 0; other < groups_ * kSlots; ++other) {
      if (busy[other]) release.add_releases(other);
    }
    Drawn none;
    Step(release, slot, &none);
  }
}

TEST_P(ReproducibleTest, ReplayedWithCommittedTokens) {
  const Drawn alone = Alone(0, 512);
  constexpr int kCommitted = 7;
  for (const int replayed : {1, kCommitted}) {
    v1::StepPlan plan;
    v1::Admission* admission = plan.add_admissions();
    *admission = Admission(2);
    admission->mutable_committed_ids()->Add(alone.ids.begin(),
                                            alone.ids.begin() + kCommitted);
    Prefill(&plan, 2, kPrompt);
    Drawn drawn;
    Step(plan, 2, &drawn);
    for (int done = 0; done < kCommitted; done += replayed) {
      plan.Clear();
      v1::ReplaySpan* span = plan.add_replays();
      span->set_slot(2);
      span->set_count(static_cast<uint32_t>(replayed));
      Step(plan, 2, &drawn);
    }
    while (drawn.ids.size() < kTokens - kCommitted && !HasFailure()) {
      plan.Clear();
      plan.add_decodes()->set_slot(2);
      Step(plan, 2, &drawn);
    }
    plan.Clear();
    plan.add_releases(2);
    Step(plan, 2, &drawn);
    EXPECT_EQ(drawn.ids, std::vector<uint32_t>(alone.ids.begin() + kCommitted,
                                               alone.ids.end()));
    EXPECT_EQ(drawn.logprobs,
              std::vector<float>(alone.logprobs.begin() + kCommitted,
                                 alone.logprobs.end()));
  }
}

TEST_P(ReproducibleTest, APromptOfCachedRowsGeneratedOnesIncluded) {
  const Drawn alone = Alone(0, 512);
  // The last rows of the prompt are those of an answer to its first ones.
  constexpr int kFirst = kPrompt - 9;
  v1::StepPlan plan;
  v1::Admission* admission = plan.add_admissions();
  admission->set_slot(0);
  admission->mutable_prompt_ids()->Add(prompt_.begin(),
                                       prompt_.begin() + kFirst);
  admission->set_max_tokens(kTokens);
  admission->mutable_forced_ids()->Add(prompt_.begin() + kFirst, prompt_.end());
  Prefill(&plan, 0, kFirst);
  Drawn ignored;
  Step(plan, 0, &ignored);
  for (int i = kFirst; i < kPrompt; ++i) {
    plan.Clear();
    plan.add_decodes()->set_slot(0);
    Step(plan, 0, &ignored);
  }
  // All blocks of slot 0 but the last, to the last position but two.
  plan.Clear();
  *plan.add_admissions() = Admission(1);
  v1::CachedPrefix* cached = plan.mutable_admissions(0)->mutable_cached();
  constexpr int kWhole = (kPrompt - 2) / 128;
  for (int block = 0; block < kWhole; ++block) cached->add_blocks(block);
  cached->set_copied_block(kWhole);
  cached->set_copied_positions(kPrompt - 2 - kWhole * 128);
  v1::BlockGrant* grant = plan.add_grants();
  grant->set_slot(1);
  grant->add_blocks(kBlocks);  // The first behind those of slot 0.
  EXPECT_EQ(Finish(1, kPrompt - 2, 512, plan, [](v1::StepPlan*) {}), alone);
  plan.Clear();
  plan.add_releases(0);
  Step(plan, 0, &ignored);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, ReproducibleTest,
    ::testing::Values(
        ReproducibleCase{"f32_drawn", {}, /*copies=*/false, /*drawn=*/true},
        ReproducibleCase{"int8", {.form = kernels::WeightForm::kInt8}},
        ReproducibleCase{"bf16_two_ranks",
                         {.mesh = {.tensor = 2},
                          .form = kernels::WeightForm::kBf16,
                          .wire = cluster::Wire::kBf16}},
        ReproducibleCase{"int8_copies_on_three_ranks",
                         {.mesh = {.expert = 3, .tensor = 1},
                          .form = kernels::WeightForm::kInt8,
                          .wire = cluster::Wire::kInt8},
                         /*copies=*/true},
        ReproducibleCase{"int8_copies_in_two_groups",
                         {.mesh = {.data = 2, .expert = 1},
                          .form = kernels::WeightForm::kInt8,
                          .wire = cluster::Wire::kBf16},
                         /*copies=*/true,
                         /*drawn=*/true},
        ReproducibleCase{"int8_copies_in_two_groups_of_two",
                         {.mesh = {.data = 2, .expert = 2},
                          .form = kernels::WeightForm::kInt8,
                          .wire = cluster::Wire::kBf16},
                         /*copies=*/true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ringfleet::worker
