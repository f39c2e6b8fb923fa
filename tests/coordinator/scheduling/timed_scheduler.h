// SPDX-License-Identifier: Apache-2.0
// A scheduler with a simulated worker, in virtual time.
#ifndef RINGFLEET_TESTS_COORDINATOR_SCHEDULING_TIMED_SCHEDULER_H_
#define RINGFLEET_TESTS_COORDINATOR_SCHEDULING_TIMED_SCHEDULER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tests/coordinator/scheduling/scheduler_fixture.h"

namespace ringfleet::coordinator {

inline uint32_t CachedRows(const v1::Admission& admission) {
  return admission.cached().blocks_size() *
             static_cast<uint32_t>(kernels::kCacheBlockPositions) +
         admission.cached().copied_positions();
}

class TimedSchedulerTest : public SchedulerTest {
 protected:
  void MakeWith(const Scheduler::Epoch& epoch) {
    scheduler_.emplace([this] { return now_; });
    scheduler_->OpenEpoch(epoch);
    epoch_ = epoch;
    ahead_.clear();
  }

  // Prompts of one `text` begin alike.
  std::shared_ptr<Request> RequestOf(const std::string& id, uint32_t prompt_n,
                                     uint32_t max_tokens, uint32_t text = 0) {
    auto request = std::make_shared<Request>();
    request->id = id;
    for (uint32_t i = 0; i < prompt_n; ++i) {
      request->prompt_ids.push_back(1000 * text + i % 97);
    }
    request->max_tokens = max_tokens;
    return request;
  }

  // Executes the next plan, which takes step_ms_ of it. Every sequence goes on
  // to its limit, and all drafts are accepted.
  v1::StepPlan Step() {
    const v1::StepPlan plan = StepIfAny();
    EXPECT_GT(plan.step(), 0u) << "no plan";
    return plan;
  }

  // Steps until there is nothing left to do.
  void RunAll() {
    for (int step = 0; step < 200'000; ++step) {
      if (StepIfAny().step() == 0) return;
    }
    ADD_FAILURE() << "there is no end";
  }

  void RunToEnd(const std::string& id) {
    for (int i = 0; i < 100'000 && told_[id].ends == 0; ++i) Step();
    EXPECT_EQ(told_[id].ends, 1) << id;
  }

  uint64_t evaluated() const { return evaluated_; }  // Rows of all steps.

  // Rows of the data group that has the most.
  struct Rows {
    uint32_t prompts = 0;
    uint32_t replays = 0;
    uint32_t decodes = 0;
  };
  // Milliseconds of a step.
  std::function<double(const Rows&)> step_ms_ = [](const Rows& rows) {
    return 20 + rows.prompts + rows.replays;
  };
  // Plans that the worker has, with the one that it executes.
  size_t plans_ahead_ = 1;

 private:
  // Returns the plan that was executed, number 0 if there was none.
  v1::StepPlan StepIfAny() {
    PlanAhead(plans_ahead_);
    if (ahead_.empty()) return {};
    const v1::StepPlan plan = std::move(ahead_.front());
    ahead_.pop_front();
    Execute(plan);
    return plan;
  }

  void PlanAhead(size_t plans) {
    while (ahead_.size() < plans) {
      auto plan = scheduler_->NextPlan();
      if (!plan.has_value()) break;
      ahead_.push_back(*std::move(plan));
    }
  }

  void Execute(const v1::StepPlan& plan) {
    v1::StepResult result;
    result.set_step(plan.step());
    std::map<uint32_t, Rows> rows;  // By data group.
    const auto draw = [&result](uint32_t slot, uint32_t tokens) {
      auto* out = result.add_slots();
      out->set_slot(slot);
      for (uint32_t i = 0; i < tokens; ++i) {
        out->add_tokens(9);
        out->add_logprobs(-1);
      }
    };
    for (const v1::Admission& admission : plan.admissions()) {
      left_[admission.slot()] = admission.prompt_ids_size() +
                                admission.committed_ids_size() -
                                CachedRows(admission);
      draws_[admission.slot()] = admission.max_tokens() > 0;
    }
    const auto evaluate = [&](const auto& spans, uint32_t Rows::*kind) {
      for (const auto& span : spans) {
        rows[span.slot() / epoch_.slots].*kind += span.count();
        evaluated_ += span.count();
        left_[span.slot()] -= span.count();
        if (left_[span.slot()] == 0 && draws_[span.slot()])
          draw(span.slot(), 1);
      }
    };
    evaluate(plan.prefills(), &Rows::prompts);
    evaluate(plan.replays(), &Rows::replays);
    for (const v1::Decode& decode : plan.decodes()) {
      ++rows[decode.slot() / epoch_.slots].decodes;
      draw(decode.slot(), 1 + decode.drafts());
    }
    Rows most;
    for (const auto& [group, count] : rows) {
      most.prompts = std::max(most.prompts, count.prompts);
      most.replays = std::max(most.replays, count.replays);
      most.decodes = std::max(most.decodes, count.decodes);
    }
    const auto end =
        now_ + std::chrono::duration_cast<cluster::Deadline::Clock::duration>(
                   std::chrono::duration<double, std::milli>(step_ms_(most)));
    // The plan that is held back comes before the step's end.
    const auto held = scheduler_->held_until();
    if (plans_ahead_ > 1 && held.has_value() && *held < end) {
      now_ = *held;
      PlanAhead(plans_ahead_ - 1);
    }
    now_ = end;
    EXPECT_TRUE(scheduler_->OnResult(result).ok());
    Collect();
  }

  Scheduler::Epoch epoch_;
  std::deque<v1::StepPlan> ahead_;
  std::map<uint32_t, uint32_t> left_;  // Known ids to evaluate, by slot.
  std::map<uint32_t, bool> draws_;     // By slot.
  uint64_t evaluated_ = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_TESTS_COORDINATOR_SCHEDULING_TIMED_SCHEDULER_H_
