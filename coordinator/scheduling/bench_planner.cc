// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/bench_planner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduling/scheduler.h"
#include "kernels/attention/latent_cache.h"

namespace ringfleet::coordinator {
namespace {

// Any number will do, as long as it stays the same.
constexpr uint64_t kSeed = 20412;

// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable
// pseudorandom number generators, OOPSLA 2014, figure 17).
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Returns the blocks of a sequence with `positions`.
uint32_t BlocksEach(uint64_t positions) {
  return static_cast<uint32_t>(
      kernels::CacheBlocks(static_cast<int64_t>(positions)));
}

std::string Describe(const v1::BenchTest& test) {
  return absl::StrCat("bench: ", test.n_prompt(), " prompt and ", test.n_gen(),
                      " generated tokens at depth ", test.n_depth(), " of ",
                      test.n_parallel(), " sequences");
}

}  // namespace

void BenchEvents::Push(Event event) {
  MutexLock lock(&mu_);
  events_.push_back(std::move(event));
  arrived_.NotifyAll();
}

std::optional<BenchEvents::Event> BenchEvents::Pop(cluster::Deadline deadline) {
  MutexLock lock(&mu_);
  while (events_.empty()) {
    if (deadline.Expired()) return std::nullopt;
    arrived_.WaitUntil(&mu_, deadline.when());
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

BenchShape::BenchShape(const v1::BenchTest& test)
    : fill_n(test.n_prompt() > 0 ? test.n_depth()
                                 : std::max(test.n_depth(), 1u)),
      prompt_n(fill_n + test.n_prompt()),
      positions(uint64_t{fill_n} + test.n_prompt() + test.n_gen()) {}

absl::Status CheckBenchTest(const v1::BenchTest& test, const BenchRoom& room) {
  if (test.n_parallel() < 1 || (test.n_prompt() < 1 && test.n_gen() < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(test), ", want 1 or more of each, or one of ",
                     "prompt and generated 0"));
  }
  if (test.n_parallel() > room.slots) {
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(test), ", want at most ", room.slots, " (slots)"));
  }
  const uint64_t positions = BenchShape(test).positions;
  if (positions > room.context) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(test), ", want at most ", room.context,
                     " positions (context)"));
  }
  const uint64_t sequences =
      (uint64_t{test.n_parallel()} + room.groups - 1) / room.groups;
  const uint64_t blocks = sequences * BlocksEach(positions);
  if (blocks > room.blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(test), ", which take ", blocks,
        " cache blocks of a data group, want at most ", room.blocks));
  }
  return absl::OkStatus();
}

BenchPlanner::BenchPlanner(Options options, Now now)
    : options_(std::move(options)),
      shape_(options_.test),
      now_(std::move(now)),
      sequences_(options_.test.n_parallel()) {}

void BenchPlanner::Own(uint64_t epoch, uint64_t last_step, uint32_t groups,
                       uint32_t group_slots) {
  epoch_ = epoch;
  groups_ = groups;
  group_slots_ = group_slots;
  last_step_ = last_step;
  phase_ = Phase::kOwning;
  events_.Push(BenchEvents::Owned());
}

void BenchPlanner::Start() {
  if (phase_ == Phase::kOwning) {
    Enter(Phase::kFilling);
  } else if (phase_ == Phase::kResting) {
    Enter(repetition_ < options_.repetitions ? Phase::kTiming
                                             : Phase::kFreeing);
  }
}

void BenchPlanner::Cancel(const absl::Status& cause) {
  if (done()) return;
  if (verdict_.ok()) verdict_ = cause;
  if (phase_ == Phase::kWaiting || phase_ == Phase::kOwning) {
    Enter(Phase::kDone);
  } else if (phase_ != Phase::kFreeing) {
    Enter(Phase::kFreeing);
  }
}

void BenchPlanner::Fail(const absl::Status& cause) {
  if (done()) return;
  verdict_ = cause;
  in_flight_.clear();
  Enter(Phase::kDone);
}

uint32_t BenchPlanner::SlotOf(size_t sequence) const {
  const auto index = static_cast<uint32_t>(sequence);
  return index % groups_ * group_slots_ + index / groups_;
}

uint32_t BenchPlanner::IdAt(uint32_t sequence, uint32_t position) const {
  if (position == 0) return options_.bos_id;
  const uint64_t key = kSeed + (uint64_t{sequence} << 32) + position;
  return static_cast<uint32_t>(Mix(key * 0x9e3779b97f4a7c15u) %
                               options_.vocab_size);
}

uint32_t BenchPlanner::SyntheticN() const {
  if (!options_.test.fill()) return 0;
  // The end of the prompt draws the token that decodes begin with.
  return options_.test.n_prompt() > 0 ? shape_.fill_n : shape_.fill_n - 1;
}

void BenchPlanner::Admit(uint32_t sequence, v1::StepPlan* plan) const {
  v1::Admission* admission = plan->add_admissions();
  admission->set_slot(SlotOf(sequence));
  for (uint32_t i = 0; i < shape_.prompt_n; ++i) {
    admission->add_prompt_ids(IdAt(sequence, i));
  }
  // The prompt's end draws a token, and so does every token generated; no id
  // ends a sequence. Greedy, as SamplingParams are by default.
  admission->set_max_tokens(options_.test.n_gen() + 1);
  for (uint32_t i = 0; i < options_.test.n_gen(); ++i) {
    admission->add_forced_ids(IdAt(sequence, shape_.prompt_n + i));
  }
  admission->set_synthetic_positions(SyntheticN());
  v1::BlockGrant* grant = plan->add_grants();
  grant->set_slot(SlotOf(sequence));
  const uint32_t each = BlocksEach(shape_.positions);
  for (uint32_t i = 0; i < each; ++i) {
    grant->add_blocks(sequence / groups_ * each + i);
  }
}

bool BenchPlanner::PlanPrompts(uint32_t limit, v1::StepPlan* plan) {
  std::vector<uint32_t> budgets(groups_, kPrefillChunk);
  bool any = false;
  for (uint32_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = sequences_[i];
    uint32_t& budget = budgets[i % groups_];
    if (budget == 0) continue;
    if (!sequence.admitted) {
      if (plan->ByteSizeLong() > kMaxPlanBytes) return true;
      Admit(i, plan);
      sequence.admitted = any = true;
      sequence.length = SyntheticN();
    }
    const uint32_t count =
        std::min(budget, limit - std::min(limit, sequence.length));
    if (count == 0) continue;
    v1::PrefillSpan* span = plan->add_prefills();
    span->set_slot(SlotOf(i));
    span->set_count(count);
    sequence.length += count;
    budget -= count;
    any = true;
  }
  return any;
}

bool BenchPlanner::PlanDecodes(uint32_t count, v1::StepPlan* plan) {
  // All sequences are equally far.
  if (sequences_[0].decodes >= count) return false;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    plan->add_decodes()->set_slot(SlotOf(i));
    ++sequences_[i].decodes;
  }
  return true;
}

void BenchPlanner::PlanRewinds(v1::StepPlan* plan) {
  if (!std::exchange(rewind_, false)) return;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    v1::Rewind* rewind = plan->add_rewinds();
    rewind->set_slot(SlotOf(i));
    rewind->set_length(shape_.fill_n);
  }
}

bool BenchPlanner::PlanReleases(v1::StepPlan* plan) {
  bool any = false;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (!std::exchange(sequences_[i].admitted, false)) continue;
    plan->add_releases(SlotOf(i));
    any = true;
  }
  return any;
}

bool BenchPlanner::PlanPhase(v1::StepPlan* plan) {
  const v1::BenchTest& test = options_.test;
  switch (phase_) {
    case Phase::kFilling:
      return PlanPrompts(shape_.fill_n, plan);
    case Phase::kWarming: {
      if (std::exchange(warmed_, true)) return false;
      // One chunk or one token: what a worker makes for the first step of a
      // size it keeps for the others.
      if (test.n_prompt() == 0) return PlanDecodes(1, plan);
      const uint32_t each = std::max<uint32_t>(
          kPrefillChunk / static_cast<uint32_t>(sequences_.size()), 1);
      return PlanPrompts(shape_.fill_n + std::min(each, test.n_prompt()), plan);
    }
    case Phase::kTiming:
      PlanRewinds(plan);
      return PlanPrompts(shape_.prompt_n, plan) ||
             PlanDecodes(test.n_gen(), plan);
    case Phase::kFreeing:
      return PlanReleases(plan);
    default:
      return false;
  }
}

std::optional<v1::StepPlan> BenchPlanner::NextPlan() {
  if (in_flight_.size() >= kMaxPlansInFlight) return std::nullopt;
  while (!done()) {
    v1::StepPlan plan;
    if (PlanPhase(&plan)) {
      plan.set_epoch(epoch_);
      plan.set_step(++last_step_);
      in_flight_.push_back(last_step_);
      if (phase_ == Phase::kTiming && !std::exchange(clock_runs_, true)) {
        begun_ = now_();
      }
      return plan;
    }
    if (!in_flight_.empty() || phase_ == Phase::kWaiting || WaitsForStart()) {
      break;
    }
    EndPhase();
  }
  return std::nullopt;
}

void BenchPlanner::EndPhase() {
  switch (phase_) {
    case Phase::kFilling:
      Enter(options_.warmup ? Phase::kWarming : Phase::kResting);
      break;
    case Phase::kTiming:
      ++repetition_;
      [[fallthrough]];
    case Phase::kWarming:
      rewind_ = true;
      Enter(Phase::kResting);
      break;
    default:
      Enter(Phase::kDone);
  }
}

void BenchPlanner::Enter(Phase phase) {
  phase_ = phase;
  if (phase == Phase::kTiming) {
    for (Sequence& sequence : sequences_) {
      sequence.length = shape_.fill_n;
      sequence.decodes = 0;
    }
    clock_runs_ = false;
    bytes_read_ = 0;
  }
  if (phase == Phase::kResting) events_.Push(BenchEvents::Rests());
  if (phase == Phase::kDone) events_.Push(verdict_);
}

absl::Status BenchPlanner::OnResult(const v1::StepResult& merged) {
  if (in_flight_.empty() || in_flight_.front() != merged.step()) {
    return absl::InternalError(
        absl::StrCat("result of step ", merged.step(), ", want ",
                     in_flight_.empty() ? std::string("none")
                                        : absl::StrCat(in_flight_.front())));
  }
  in_flight_.pop_front();
  if (phase_ == Phase::kTiming) {
    bytes_read_ += merged.bytes_read();
    const bool last = in_flight_.empty() &&
                      sequences_[0].decodes == options_.test.n_gen() &&
                      std::all_of(sequences_.begin(), sequences_.end(),
                                  [this](const Sequence& sequence) {
                                    return sequence.length == shape_.prompt_n;
                                  });
    if (last) {
      const auto time = now_() - begun_;
      events_.Push(BenchEvents::Sample{
          repetition_,
          static_cast<uint64_t>(
              std::chrono::duration_cast<std::chrono::nanoseconds>(time)
                  .count()),
          bytes_read_});
    }
  } else if (phase_ == Phase::kFreeing && in_flight_.empty() &&
             std::none_of(
                 sequences_.begin(), sequences_.end(),
                 [](const Sequence& sequence) { return sequence.admitted; })) {
    Enter(Phase::kDone);
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator
