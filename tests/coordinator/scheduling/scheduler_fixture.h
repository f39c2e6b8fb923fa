// SPDX-License-Identifier: Apache-2.0
// A scheduler with a clock of the test's, and what its requests were told.
#ifndef RINGFLEET_TESTS_COORDINATOR_SCHEDULING_SCHEDULER_FIXTURE_H_
#define RINGFLEET_TESTS_COORDINATOR_SCHEDULING_SCHEDULER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/scheduling/scheduler.h"
#include "kernels/attention/latent_cache.h"

namespace ringfleet::coordinator {

// The events of one request.
struct Told {
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> scored;  // As progress told.
  int scores = 0;
  int runs = 0;
  std::vector<std::string> waits;
  int ends = 0;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  RequestTimings timings;
  absl::Status failure;
};

// The slots of a plan's admissions, or of its decodes.
template <typename Entry>
std::vector<uint32_t> Slots(
    const google::protobuf::RepeatedPtrField<Entry>& entries) {
  std::vector<uint32_t> slots;
  for (const auto& entry : entries) slots.push_back(entry.slot());
  return slots;
}

inline std::vector<std::pair<uint32_t, uint32_t>> Spans(
    const v1::StepPlan& plan) {
  std::vector<std::pair<uint32_t, uint32_t>> spans;
  for (const auto& span : plan.prefills()) {
    spans.emplace_back(span.slot(), span.count());
  }
  return spans;
}

class SchedulerTest : public ::testing::Test {
 protected:
  void Make(uint32_t slots, uint32_t context, uint32_t groups = 1) {
    scheduler_.emplace([this] { return now_; });
    Open(77, slots, context, groups);
  }

  // Opens an epoch whose cache holds the context of every slot.
  void Open(uint64_t epoch, uint32_t slots, uint32_t context,
            uint32_t groups = 1) {
    const auto blocks =
        static_cast<uint32_t>(slots * kernels::CacheBlocks(context));
    scheduler_->OpenEpoch({.id = epoch,
                           .groups = groups,
                           .slots = slots,
                           .context = context,
                           .blocks = blocks});
  }

  absl::Status Submit(const std::string& id, uint32_t prompt_n,
                      uint32_t max_tokens) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt_ids.assign(prompt_n, 5);
    request->max_tokens = max_tokens;
    return scheduler_->Submit(request);
  }

  // A result with the same token for each (slot, finish).
  v1::StepResult Result(
      uint64_t step,
      const std::vector<std::pair<uint32_t, v1::FinishReason>>& slots,
      uint32_t token = 9) {
    v1::StepResult result;
    result.set_epoch(77);
    result.set_step(step);
    for (const auto& [slot, finish] : slots) {
      auto* out = result.add_slots();
      out->set_slot(slot);
      out->add_tokens(token);
      out->add_logprobs(-1);
      out->set_finish(finish);
    }
    return result;
  }

  void Collect() {
    for (const RequestUpdate& update : scheduler_->TakeUpdates()) {
      Told& told = told_[update.request->id];
      EXPECT_EQ(told.ends, 0) << update.request->id << " told after its end";
      if (const auto* token = std::get_if<DrawnToken>(&update.what)) {
        told.tokens.push_back(token->id);
      } else if (const auto* progress =
                     std::get_if<RequestUpdate::Progress>(&update.what)) {
        told.scored.push_back(progress->scored);
      } else if (std::holds_alternative<v1::ScoreResult>(update.what)) {
        ++told.scores;
      } else if (std::holds_alternative<RequestUpdate::Running>(update.what)) {
        ++told.runs;
      } else if (const auto* waiting =
                     std::get_if<RequestUpdate::Waiting>(&update.what)) {
        told.waits.push_back(waiting->why);
      } else if (const auto* end =
                     std::get_if<RequestUpdate::Finished>(&update.what)) {
        ++told.ends;
        told.reason = end->reason;
        told.timings = end->timings;
      } else {
        ++told.ends;
        told.failure = std::get<absl::Status>(update.what);
      }
    }
  }

  static constexpr auto kGoesOn = v1::FINISH_REASON_UNSPECIFIED;
  static constexpr auto kStop = v1::FINISH_REASON_STOP;
  static constexpr auto kLength = v1::FINISH_REASON_LENGTH;

  cluster::Deadline::Clock::time_point now_{std::chrono::hours(1)};
  std::optional<Scheduler> scheduler_;
  std::map<std::string, Told> told_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_TESTS_COORDINATOR_SCHEDULING_SCHEDULER_FIXTURE_H_
