// SPDX-License-Identifier: Apache-2.0
// Random requests, cancellations and failures on caches of random sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
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

// A hash of all that a row depends on: the ids up to its position, and the
// forms in which they were evaluated.
using RowHash = uint64_t;

// Hashes of the rows that drew a request's tokens, by request and position.
using DrawnRows = std::map<std::pair<uint32_t, uint32_t>, RowHash>;

// A worker as the contract alone describes it.
class ModelOfWorker {
 public:
  // Accepts as many drafts as `accept` returns, of at most its argument.
  // `drawn` outlives the worker. An admission's usable_vocab numbers its
  // request.
  ModelOfWorker(uint32_t slots, uint32_t context, uint32_t blocks,
                std::function<uint32_t(uint32_t)> accept, DrawnRows* drawn)
      : slots_(slots),
        context_(context),
        accept_(std::move(accept)),
        drawn_(drawn),
        users_(blocks),
        rows_(blocks) {}

  v1::StepResult Execute(const v1::StepPlan& plan) {
    for (const uint32_t slot : plan.releases()) {
      EXPECT_TRUE(sequences_.contains(slot)) << "released a free slot";
      for (const uint32_t block : sequences_[slot].blocks) --users_.at(block);
      sequences_.erase(slot);
    }
    for (const v1::Admission& admission : plan.admissions()) {
      EXPECT_LT(admission.slot(), slots_);
      EXPECT_FALSE(sequences_.contains(admission.slot())) << "slot is taken";
      Sequence& sequence = sequences_[admission.slot()];
      sequence.admission = admission;
      sequence.tokens = static_cast<uint32_t>(admission.committed_ids_size());
      const v1::CachedPrefix& cached = admission.cached();
      for (const uint32_t block : cached.blocks()) {
        ++users_.at(block);
        sequence.blocks.push_back(block);
        EXPECT_EQ(rows_.at(block).size(), kBlock);
      }
      sequence.position =
          cached.blocks_size() * kBlock + cached.copied_positions();
      reused_ += sequence.position;
      EXPECT_LT(sequence.position,
                admission.prompt_ids_size() + sequence.tokens);
    }
    for (const v1::BlockGrant& grant : plan.grants()) {
      Sequence& sequence = sequences_.at(grant.slot());
      const v1::CachedPrefix& cached = sequence.admission.cached();
      for (const uint32_t block : grant.blocks()) {
        EXPECT_EQ(users_.at(block), 0) << "block is taken";
        ++users_.at(block);
        const std::vector<Row> source = rows_.at(cached.copied_block());
        rows_.at(block).clear();
        if (sequence.blocks.size() ==
                static_cast<size_t>(cached.blocks_size()) &&
            cached.copied_positions() > 0) {
          EXPECT_GE(source.size(), cached.copied_positions());
          rows_.at(block).assign(source.begin(),
                                 source.begin() + cached.copied_positions());
        }
        sequence.blocks.push_back(block);
      }
    }
    for (const v1::Admission& admission : plan.admissions()) {
      const Sequence& sequence = sequences_.at(admission.slot());
      for (uint32_t i = 0; i < sequence.position; ++i) {
        EXPECT_EQ(RowAt(sequence, i).ids, sequence.IdsUpTo(i))
            << "rows of another text";
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
      const bool repeats = span.part_of_count() > 0;
      Evaluate(span.count(), repeats ? span.part_of_first() : sequence.position,
               repeats ? span.part_of_count() : span.count(), &sequence);
      const uint32_t prompt_n = sequence.admission.prompt_ids_size();
      EXPECT_LE(sequence.position, prompt_n);
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
      Evaluate(span.count(), 0, 0, &sequence);
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
      EXPECT_LT(sequence.position + decode.drafts(),
                sequence.blocks.size() * kBlock);
      EXPECT_EQ(sequence.position + 1,
                sequence.admission.prompt_ids_size() + sequence.tokens)
          << "decode before the replay's end";
      const uint32_t accepted = accept_(decode.drafts());
      for (uint32_t i = 0; i <= accepted && !sequence.ended; ++i) {
        Evaluate(1, 0, 0, &sequence);
        Draw(slot, sequence, result);
      }
    }
    return result;
  }

  size_t occupied() const { return sequences_.size(); }
  uint64_t reused() const { return reused_; }  // Positions.

 private:
  struct Row {
    uint64_t ids;   // Hash of all ids up to the row's.
    RowHash forms;  // With their forms.
  };

  struct Sequence {
    v1::Admission admission;
    uint32_t position = 0;  // Cached.
    uint32_t tokens = 0;
    std::vector<uint32_t> blocks;
    bool ended = false;
    bool draws = false;

    uint32_t IdAt(uint32_t i) const {
      const auto prompt_n = static_cast<uint32_t>(admission.prompt_ids_size());
      // Token k of a request is its first prompt id + k.
      return i < prompt_n ? admission.prompt_ids(static_cast<int>(i))
                          : admission.prompt_ids(0) + i - prompt_n + 1;
    }
    uint64_t IdsUpTo(uint32_t i) const {
      uint64_t hash = 0;
      for (uint32_t at = 0; at <= i; ++at) hash = Mix(hash, IdAt(at));
      return hash;
    }
  };

  static uint64_t Mix(uint64_t hash, uint64_t value) {
    return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29) + 1;
  }

  const Row& RowAt(const Sequence& sequence, uint32_t position) const {
    return rows_.at(sequence.blocks.at(position / kBlock))
        .at(position % kBlock);
  }

  // Writes rows of the span's form; count 0: as decodes.
  void Evaluate(uint32_t rows, uint32_t form_first, uint32_t form_count,
                Sequence* sequence) {
    // A span without a past takes one form, whatever its size.
    if (form_first == 0 && form_count > 0) form_count = 1;
    for (uint32_t i = 0; i < rows; ++i) {
      const uint32_t at = sequence->position++;
      ASSERT_LT(at, sequence->blocks.size() * kBlock);
      const uint32_t block = sequence->blocks[at / kBlock];
      EXPECT_EQ(users_.at(block), 1) << "a shared block is written";
      const Row before = at == 0 ? Row{} : RowAt(*sequence, at - 1);
      const uint32_t id = sequence->IdAt(at);
      std::vector<Row>& held = rows_.at(block);
      held.resize(at % kBlock);
      held.push_back(
          {.ids = Mix(before.ids, id),
           .forms = Mix(Mix(Mix(before.forms, id), form_first), form_count)});
    }
  }

  void Draw(uint32_t slot, Sequence& sequence, v1::StepResult& result) {
    ++sequence.tokens;
    // The first draw of a stay checks the rows that drew earlier tokens.
    const uint32_t first = std::exchange(sequence.draws, true)
                               ? sequence.position - 1
                               : sequence.admission.prompt_ids_size() - 1;
    for (uint32_t at = first; at < sequence.position; ++at) {
      const RowHash row = RowAt(sequence, at).forms;
      const auto [drawn, is_new] =
          drawn_->try_emplace({sequence.admission.usable_vocab(), at}, row);
      EXPECT_EQ(drawn->second, row) << "a replay has other bits";
    }
    const bool more = result.slots_size() > 0 &&
                      result.slots(result.slots_size() - 1).slot() == slot;
    auto* out = more ? result.mutable_slots(result.slots_size() - 1)
                     : result.add_slots();
    out->set_slot(slot);
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
  DrawnRows* const drawn_;
  std::map<uint32_t, Sequence> sequences_;
  std::vector<int> users_;              // By block.
  std::vector<std::vector<Row>> rows_;  // By block.
  uint64_t reused_ = 0;
};

TEST_F(SchedulerTest, RandomLoadEndsEveryRequestOnceAndLeaksNothing) {
  std::mt19937 random(4711);
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  uint64_t preemptions = 0;
  uint64_t reused = 0;
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
    const auto reuse = static_cast<Scheduler::Reuse>(draw(0, 2));
    std::optional<StepPace::Duration> batch_step;
    if (draw(0, 2) > 0) batch_step = std::chrono::milliseconds(draw(0, 40));
    DrawnRows drawn;
    std::optional<ModelOfWorker> worker;
    uint64_t epoch = 76;
    const auto open = [&] {
      scheduler_->OpenEpoch({.id = ++epoch,
                             .slots = slots,
                             .context = context,
                             .blocks = blocks,
                             .drafts = drafts,
                             .reuse = reuse,
                             .batch_step_time = batch_step});
      if (worker.has_value()) reused += worker->reused();
      worker.emplace(slots, context, blocks, accept, &drawn);
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
          // Many texts begin alike, and some go on like others' answers.
          const auto first = static_cast<uint32_t>(1000 * draw(1, 3));
          request->prompt_ids.assign(prompt_n, first);
          const int branch = draw(0, 300);
          for (int i = branch; i < static_cast<int>(prompt_n); ++i) {
            request->prompt_ids[i] += i - branch + 1;
          }
          request->prompt_ids[0] = first;
          request->usable_vocab = submitted;
          request->owner = draw(0, 3) == 0 ? "other" : "";
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
            now_ += std::chrono::milliseconds(draw(5, 30));
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
    reused += worker->reused();
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
  EXPECT_GT(reused, 0u);
}

// Interactive requests come one after another, lines of a batch run beside
// them, and a host is lost again and again: nobody is blamed.
TEST_F(SchedulerTest, HostsThatAreLostOftenCostNoRequest) {
  std::mt19937 generator(7);
  const auto draw = [&generator](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(generator);
  };
  constexpr uint32_t kSlots = 16;
  constexpr uint32_t kContext = 256;
  const auto blocks =
      static_cast<uint32_t>(kSlots * kernels::CacheBlocks(kContext));
  DrawnRows drawn;
  std::optional<ModelOfWorker> worker;
  uint64_t epoch = 76;
  scheduler_.emplace([this] { return now_; });
  const auto open = [&] {
    scheduler_->OpenEpoch({.id = ++epoch,
                           .groups = 1,
                           .slots = kSlots,
                           .context = kContext,
                           .blocks = blocks});
    worker.emplace(
        kSlots, kContext, blocks, [](uint32_t) { return 0; }, &drawn);
  };
  open();
  uint32_t submitted = 0;
  const auto submit = [&](const std::string& id, int64_t priority,
                          uint32_t max_tokens) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt_ids.assign(draw(3, 12), 1000 + submitted);
    request->usable_vocab = ++submitted;
    request->max_tokens = max_tokens;
    request->priority = priority;
    request->sampling.set_seed(max_tokens);
    ASSERT_TRUE(scheduler_->Submit(request).ok());
  };
  constexpr int kClients = 8;
  constexpr int kLines = 100;
  std::vector<int> asked(kClients, 0);
  const auto id_of = [&](int client) {
    return absl::StrCat("c", client, "-", asked[client]);
  };
  for (int client = 0; client < kClients; ++client) {
    submit(id_of(client), 0, 6);
  }
  for (int line = 0; line < kLines; ++line) {
    submit(absl::StrCat("line", line), 1, 40);
  }
  std::deque<v1::StepPlan> in_flight;
  int epochs = 0;
  int steps_left = draw(1, 40);
  const auto lines_left = [&] {
    int left = 0;
    for (int line = 0; line < kLines; ++line) {
      left += told_[absl::StrCat("line", line)].ends == 0;
    }
    return left;
  };
  while (lines_left() > 0) {
    ASSERT_LT(epochs, 100'000);
    while (auto plan = scheduler_->NextPlan()) in_flight.push_back(*plan);
    if (--steps_left == 0) {
      scheduler_->CloseEpoch(absl::UnavailableError("lost"), /*failed=*/true);
      ++epochs;
      in_flight.clear();
      open();
      steps_left = draw(1, 40);
    } else if (!in_flight.empty()) {
      const auto result = worker->Execute(in_flight.front());
      in_flight.pop_front();
      now_ += std::chrono::milliseconds(2 + result.slots_size());
      ASSERT_TRUE(scheduler_->OnResult(result).ok());
    } else {
      now_ += std::chrono::milliseconds(1);
    }
    Collect();
    for (int client = 0; client < kClients; ++client) {
      const Told& told = told_[id_of(client)];
      if (told.ends == 0) continue;
      ++asked[client];
      submit(id_of(client), 0, 6);
    }
  }
  std::printf("%d lost epochs, %zu requests\n", epochs, told_.size());
  int failed = 0;
  for (const auto& [id, told] : told_) failed += !told.failure.ok();
  EXPECT_EQ(failed, 0) << "of " << told_.size() << " in " << epochs
                       << " epochs";
}

}  // namespace
}  // namespace ringfleet::coordinator
