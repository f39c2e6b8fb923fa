// SPDX-License-Identifier: Apache-2.0
// Random requests, cancellations and failures on caches of random sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention/latent_cache.h"
#include "tests/coordinator/scheduling/scheduler_fixture.h"

namespace ringfleet::coordinator {
namespace {

// A worker as the contract alone describes it.
class ModelOfWorker {
 public:
  // Accepts as many drafts as `accept` returns, of at most its argument.
  ModelOfWorker(uint32_t slots, uint32_t context, uint32_t blocks,
                std::function<uint32_t(uint32_t)> accept)
      : slots_(slots),
        context_(context),
        accept_(std::move(accept)),
        owners_(blocks) {}

  v1::StepResult Execute(const v1::StepPlan& plan) {
    for (const uint32_t slot : plan.releases()) {
      EXPECT_EQ(sequences_.erase(slot), 1u) << "released a free slot";
      std::replace(owners_.begin(), owners_.end(), std::optional(slot),
                   std::optional<uint32_t>());
    }
    for (const v1::Admission& admission : plan.admissions()) {
      EXPECT_LT(admission.slot(), slots_);
      EXPECT_FALSE(sequences_.contains(admission.slot())) << "slot is taken";
      sequences_[admission.slot()] = {
          admission, 0, static_cast<uint32_t>(admission.committed_ids_size()),
          0, false};
    }
    for (const v1::BlockGrant& grant : plan.grants()) {
      for (const uint32_t block : grant.blocks()) {
        EXPECT_FALSE(owners_.at(block).has_value()) << "block is taken";
        owners_.at(block) = grant.slot();
        sequences_.at(grant.slot()).room += kBlock;
      }
    }
    v1::StepResult result;
    result.set_step(plan.step());
    uint32_t new_tokens = 0;
    std::set<uint32_t> touched;
    for (const v1::PrefillSpan& span : plan.prefills()) {
      Sequence& sequence = sequences_.at(span.slot());
      EXPECT_TRUE(touched.insert(span.slot()).second);
      EXPECT_GT(span.count(), 0u);
      new_tokens += span.count();
      sequence.position += span.count();
      const uint32_t prompt_n = sequence.admission.prompt_ids_size();
      EXPECT_LE(sequence.position, prompt_n);
      EXPECT_LE(sequence.position, sequence.room);
      if (sequence.position == prompt_n) {
        if (sequence.admission.max_tokens() == 0) {
          sequence.ended = true;
        } else if (sequence.tokens == 0) {
          Draw(span.slot(), sequence, result);
        }
      }
    }
    EXPECT_LE(new_tokens, kMaxPrefillRows);
    uint32_t replayed = 0;
    for (const v1::ReplaySpan& span : plan.replays()) {
      Sequence& sequence = sequences_.at(span.slot());
      EXPECT_TRUE(touched.insert(span.slot()).second);
      const uint32_t prompt_n = sequence.admission.prompt_ids_size();
      EXPECT_GE(sequence.position, prompt_n);
      for (uint32_t i = 0; i < span.count(); ++i) {
        // Committed tokens are those that this worker would have drawn.
        EXPECT_EQ(
            sequence.admission.committed_ids(sequence.position - prompt_n),
            sequence.admission.prompt_ids(0) + sequence.position - prompt_n +
                1);
        ++sequence.position;
      }
      EXPECT_LE(sequence.position, sequence.room);
      replayed += span.count();
      if (sequence.position == prompt_n + sequence.tokens) {
        Draw(span.slot(), sequence, result);
      }
    }
    EXPECT_LE(replayed, kMaxReplayRows);
    EXPECT_TRUE(replayed == 0 || new_tokens == 0);
    for (const v1::Decode& decode : plan.decodes()) {
      const uint32_t slot = decode.slot();
      Sequence& sequence = sequences_.at(slot);
      EXPECT_TRUE(touched.insert(slot).second);
      EXPECT_GT(sequence.tokens, 0u) << "decode before the prompt's end";
      if (sequence.ended) continue;
      EXPECT_LT(sequence.position + decode.drafts(), context_);
      EXPECT_LT(sequence.position + decode.drafts(), sequence.room);
      EXPECT_EQ(sequence.position + 1,
                sequence.admission.prompt_ids_size() + sequence.tokens)
          << "decode before the replay's end";
      const uint32_t accepted = accept_(decode.drafts());
      for (uint32_t i = 0; i <= accepted && !sequence.ended; ++i) {
        ++sequence.position;
        Draw(slot, sequence, result);
      }
    }
    return result;
  }

  size_t occupied() const { return sequences_.size(); }

 private:
  struct Sequence {
    v1::Admission admission;
    uint32_t position;  // Cached.
    uint32_t tokens;
    uint32_t room;  // Positions in its blocks.
    bool ended;
  };

  void Draw(uint32_t slot, Sequence& sequence, v1::StepResult& result) {
    ++sequence.tokens;
    const bool more = result.slots_size() > 0 &&
                      result.slots(result.slots_size() - 1).slot() == slot;
    auto* out = more ? result.mutable_slots(result.slots_size() - 1)
                     : result.add_slots();
    out->set_slot(slot);
    // Token k of a request is its first prompt id + k.
    out->add_tokens(sequence.admission.prompt_ids(0) + sequence.tokens);
    out->add_logprobs(0);
    if (sequence.tokens == sequence.admission.sampling().seed()) {
      out->set_finish(v1::FINISH_REASON_STOP);  // The seed says when to stop.
    } else if (sequence.tokens == sequence.admission.max_tokens() ||
               sequence.position == context_) {
      out->set_finish(v1::FINISH_REASON_LENGTH);
    }
    sequence.ended = out->finish() != v1::FINISH_REASON_UNSPECIFIED;
  }

  static constexpr uint32_t kBlock = kernels::kCacheBlockPositions;

  const uint32_t slots_, context_;
  const std::function<uint32_t(uint32_t)> accept_;
  std::map<uint32_t, Sequence> sequences_;
  std::vector<std::optional<uint32_t>> owners_;  // Slots, by block.
};

TEST_F(SchedulerTest, RandomLoadEndsEveryRequestOnceAndLeaksNothing) {
  std::mt19937 random(4711);
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  uint64_t preemptions = 0;
  for (int round = 0; round < 100; ++round) {
    const uint32_t slots = draw(1, 6);
    const uint32_t context = draw(1, 1500);
    const auto least = static_cast<int>(kernels::CacheBlocks(context));
    const auto blocks =
        static_cast<uint32_t>(draw(least, static_cast<int>(slots) * least));
    const uint32_t drafts = draw(0, 1) == 0 ? 0 : draw(1, 4);
    const auto accept = [&draw](uint32_t most) {
      return static_cast<uint32_t>(draw(0, static_cast<int>(most)));
    };
    std::optional<ModelOfWorker> worker;
    uint64_t epoch = 76;
    const auto open = [&] {
      scheduler_->OpenEpoch({.id = ++epoch,
                             .slots = slots,
                             .context = context,
                             .blocks = blocks,
                             .drafts = drafts});
      worker.emplace(slots, context, blocks, accept);
    };
    scheduler_.emplace([this] { return now_; });
    open();
    told_.clear();
    struct Want {
      uint32_t first, tokens;
      bool score, cancelled = false;
    };
    std::map<std::string, Want> want;
    std::deque<v1::StepPlan> in_flight;
    const int requests = draw(1, 25);
    int submitted = 0;
    for (int turn = 0; submitted < requests || !in_flight.empty() ||
                       scheduler_->running() + scheduler_->waiting() > 0;
         ++turn) {
      ASSERT_LT(turn, 1'000'000) << "round " << round << " does not end";
      switch (draw(0, 4)) {
        case 0: {
          if (submitted == requests) break;
          auto request = std::make_shared<Request>();
          request->id = absl::StrCat("r", submitted++);
          const uint32_t prompt_n = draw(1, context);
          const uint32_t first = 1000 * submitted;
          request->prompt_ids.assign(prompt_n, first);
          request->max_tokens = draw(0, 3) == 0 ? draw(0, 400) : draw(0, 40);
          request->priority = draw(-1, 1);
          const uint32_t stop = draw(1, 450);
          request->sampling.set_seed(stop);
          ASSERT_TRUE(scheduler_->Submit(request).ok());
          want[request->id] = {
              first,
              std::min({request->max_tokens, stop, context - prompt_n + 1}),
              request->max_tokens == 0};
          break;
        }
        case 1:
          if (submitted > 0 && draw(0, 9) == 0) {
            const std::string id = absl::StrCat("r", draw(0, submitted - 1));
            if (scheduler_->Cancel(id).ok()) want[id].cancelled = true;
          }
          break;
        case 2:
          if (auto plan = scheduler_->NextPlan()) {
            in_flight.push_back(*plan);
            ASSERT_LE(in_flight.size(), 2u);
          }
          break;
        case 3:
          if (!in_flight.empty()) {
            const auto result = worker->Execute(in_flight.front());
            in_flight.pop_front();
            ASSERT_TRUE(scheduler_->OnResult(result).ok());
          }
          break;
        case 4:  // The epoch fails, not often enough in a row for a suspect.
          if (draw(0, 60) != 0) break;
          scheduler_->CloseEpoch(absl::UnavailableError("lost"),
                                 /*failed=*/draw(0, 9) == 0);
          in_flight.clear();
          open();
          break;
      }
      Collect();
    }
    while (auto plan = scheduler_->NextPlan()) {
      ASSERT_TRUE(scheduler_->OnResult(worker->Execute(*plan)).ok());
    }
    EXPECT_EQ(worker->occupied(), 0u) << "slots leaked in round " << round;
    EXPECT_EQ(scheduler_->cache_use().blocks_used, 0u);
    preemptions += scheduler_->cache_use().preemptions;
    for (const auto& [id, expected] : want) {
      const Told& told = told_[id];
      EXPECT_EQ(told.ends, 1) << id;
      std::vector<uint32_t> tokens(told.tokens.size());
      std::iota(tokens.begin(), tokens.end(), expected.first + 1);
      EXPECT_EQ(told.tokens, tokens) << id;
      if (!expected.cancelled) {
        EXPECT_TRUE(told.failure.ok()) << told.failure;
        EXPECT_EQ(told.tokens.size(), expected.score ? 0 : expected.tokens);
      } else {
        EXPECT_LE(told.tokens.size(), expected.tokens);
      }
    }
  }
  EXPECT_GT(preemptions, 0u);
}

}  // namespace
}  // namespace ringfleet::coordinator
