// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

double Milliseconds(cluster::Deadline::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

void RequestUpdate::Deliver() const {
  RequestEvents& events = *request->events;
  if (const auto* token = std::get_if<Token>(&what)) {
    events.OnToken(token->id, token->logprob);
  } else if (const auto* score = std::get_if<v1::ScoreResult>(&what)) {
    events.OnScore(*score);
  } else if (const auto* finished = std::get_if<Finished>(&what)) {
    events.OnFinished(finished->reason, finished->timings);
  } else {
    events.OnFailed(std::get<absl::Status>(what));
  }
}

Scheduler::Scheduler(Options options, Now now)
    : options_(options),
      now_(std::move(now)),
      slots_(size_t{options.groups} * options.slots) {}

absl::Status Scheduler::Submit(std::shared_ptr<const Request> request) {
  const size_t prompt_n = request->prompt_ids.size();
  if (prompt_n == 0)
    return absl::InvalidArgumentError("prompt: empty, want at least one token");
  if (prompt_n > options_.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt: ", prompt_n, " tokens, want at most ",
                     options_.context, " (the context)"));
  }
  if (queue_.size() >= kMaxWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(queue_.size(), " jobs are waiting, want fewer than ",
                     kMaxWaiting, "; try again later"));
  }
  queue_.Push(std::move(request));
  return absl::OkStatus();
}

absl::Status Scheduler::Cancel(absl::string_view id) {
  const absl::Status status =
      absl::CancelledError(absl::StrCat("job ", id, " was cancelled"));
  if (auto request = queue_.Remove(id); request != nullptr) {
    updates_.push_back({std::move(request), status});
    return absl::OkStatus();
  }
  for (const uint32_t slot : order_) {
    Sequence& sequence = *slots_[slot];
    if (sequence.ended || sequence.request->id != id) continue;
    sequence.ended = true;
    updates_.push_back({sequence.request, status});
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("job ", id, " is neither running nor waiting"));
}

void Scheduler::FailAll(const absl::Status& status) {
  for (const uint32_t slot : order_) {
    Sequence& sequence = *slots_[slot];
    if (sequence.ended) continue;
    sequence.ended = true;
    updates_.push_back({sequence.request, status});
  }
  while (auto request = queue_.Pop()) {
    updates_.push_back({std::move(request), status});
  }
  order_.clear();
  std::fill(slots_.begin(), slots_.end(), nullptr);
  in_flight_.clear();
}

std::optional<v1::StepPlan> Scheduler::NextPlan() {
  if (in_flight_.size() >= kMaxPlansInFlight) return std::nullopt;
  v1::StepPlan plan;
  PlanInFlight flight;
  Release(&plan);
  Admit(&plan);
  // Chosen before this plan's prefills, which draw their first tokens
  // themselves.
  std::vector<uint32_t> decodes;
  for (const uint32_t slot : order_) {
    const Sequence& sequence = *slots_[slot];
    if (!sequence.ended && sequence.prompt_planned == sequence.prompt_n() &&
        MayGoOn(sequence, sequence.tokens_planned)) {
      decodes.push_back(slot);
    }
  }
  PlanPrefills(&plan, &flight);
  PlanDecodes(decodes, &plan, &flight);
  if (plan.releases().empty() && plan.prefills().empty() &&
      plan.decodes().empty()) {
    return std::nullopt;
  }
  return Send(std::move(plan), std::move(flight));
}

std::optional<v1::StepPlan> Scheduler::EmptyPlan() {
  if (in_flight_.size() >= kMaxPlansInFlight) return std::nullopt;
  return Send(v1::StepPlan(), PlanInFlight());
}

v1::StepPlan Scheduler::Send(v1::StepPlan plan, PlanInFlight flight) {
  plan.set_epoch(options_.epoch);
  plan.set_step(++last_step_);
  flight.step = last_step_;
  in_flight_.push_back(std::move(flight));
  return plan;
}

void Scheduler::Release(v1::StepPlan* plan) {
  std::vector<uint32_t> going_on;
  for (const uint32_t slot : order_) {
    if (slots_[slot]->ended) {
      plan->add_releases(slot);
      slots_[slot] = nullptr;
    } else {
      going_on.push_back(slot);
    }
  }
  order_ = std::move(going_on);
}

std::optional<uint32_t> Scheduler::FreeSlot() const {
  std::optional<uint32_t> best;
  uint32_t least = options_.slots;
  for (uint32_t group = 0; group < options_.groups; ++group) {
    std::optional<uint32_t> free;
    uint32_t taken = 0;
    for (uint32_t i = 0; i < options_.slots; ++i) {
      const uint32_t slot = group * options_.slots + i;
      if (slots_[slot] != nullptr) {
        ++taken;
      } else if (!free.has_value()) {
        free = slot;
      }
    }
    if (taken >= least) continue;
    least = taken;
    best = free;
  }
  return best;
}

std::vector<std::shared_ptr<const Request>> Scheduler::TakeWaiting() {
  std::vector<std::shared_ptr<const Request>> waiting;
  while (auto request = queue_.Pop()) waiting.push_back(std::move(request));
  return waiting;
}

void Scheduler::Admit(v1::StepPlan* plan) {
  while (!held_ && !queue_.empty()) {
    const std::optional<uint32_t> free = FreeSlot();
    if (!free.has_value()) break;
    // A plan must stay below what a worker receives in one message.
    if (plan->ByteSizeLong() > kMaxPlanBytes) break;
    const uint32_t slot = *free;
    auto sequence = std::make_shared<Sequence>();
    sequence->request = queue_.Pop();
    sequence->slot = slot;
    sequence->admitted = now_();
    const Request& request = *sequence->request;
    v1::Admission* admission = plan->add_admissions();
    admission->set_slot(slot);
    admission->mutable_prompt_ids()->Add(request.prompt_ids.begin(),
                                         request.prompt_ids.end());
    *admission->mutable_sampling() = request.sampling;
    admission->set_max_tokens(request.max_tokens);
    admission->mutable_stop_ids()->Add(request.stop_ids.begin(),
                                       request.stop_ids.end());
    admission->set_usable_vocab(request.usable_vocab);
    if (request.score.has_value()) *admission->mutable_score() = *request.score;
    slots_[slot] = std::move(sequence);
    order_.push_back(slot);
  }
}

void Scheduler::PlanPrefills(v1::StepPlan* plan, PlanInFlight* flight) {
  std::vector<uint32_t> budgets(options_.groups, kPrefillChunk);
  for (const uint32_t slot : order_) {
    uint32_t& budget = budgets[slot / options_.slots];
    Sequence& sequence = *slots_[slot];
    const uint32_t count =
        std::min(budget, sequence.prompt_n() - sequence.prompt_planned);
    if (count == 0) continue;
    v1::PrefillSpan* span = plan->add_prefills();
    span->set_slot(slot);
    span->set_count(count);
    budget -= count;
    sequence.prompt_planned += count;
    flight->sequences.push_back(slots_[slot]);
    if (sequence.prompt_planned < sequence.prompt_n()) continue;
    flight->evaluated.push_back(slots_[slot]);
    if (sequence.request->max_tokens > 0) sequence.tokens_planned = 1;
  }
}

void Scheduler::PlanDecodes(const std::vector<uint32_t>& slots,
                            v1::StepPlan* plan, PlanInFlight* flight) {
  for (const uint32_t slot : slots) {
    plan->add_decodes(slot);
    ++slots_[slot]->tokens_planned;
    flight->sequences.push_back(slots_[slot]);
  }
}

bool Scheduler::MayGoOn(const Sequence& sequence, uint64_t tokens) const {
  // The next decode feeds token number `tokens` into position
  // prompt + tokens - 1.
  return tokens < sequence.request->max_tokens &&
         sequence.prompt_n() + tokens <= options_.context;
}

absl::Status Scheduler::OnResult(const v1::StepResult& result) {
  if (in_flight_.empty() || in_flight_.front().step != result.step()) {
    return absl::InternalError(absl::StrCat(
        "result of step ", result.step(), ", want ",
        in_flight_.empty() ? std::string("none")
                           : absl::StrCat(in_flight_.front().step)));
  }
  const PlanInFlight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const v1::SlotResult& slot : result.slots()) {
    const auto it =
        std::find_if(flight.sequences.begin(), flight.sequences.end(),
                     [&slot](const auto& sequence) {
                       return sequence->slot == slot.slot();
                     });
    if (it == flight.sequences.end()) {
      return absl::InternalError(
          absl::StrCat("step ", result.step(), ": result for slot ",
                       slot.slot(), ", which the plan does not name"));
    }
    Take(slot, **it);
  }
  for (const auto& sequence : flight.evaluated) {
    if (!sequence->ended && sequence->request->max_tokens == 0) {
      sequence->first_token = sequence->last_token = now_();
      Finish(v1::FINISH_REASON_LENGTH, *sequence);
    }
  }
  return absl::OkStatus();
}

void Scheduler::Take(const v1::SlotResult& result, Sequence& sequence) {
  if (sequence.ended) return;  // Surplus of a plan made before its end.
  if (result.has_score()) {
    updates_.push_back({sequence.request, result.score()});
  }
  for (int i = 0; i < result.tokens_size(); ++i) {
    if (!MayGoOn(sequence, sequence.tokens_seen)) break;
    sequence.last_token = now_();
    if (sequence.tokens_seen++ == 0) sequence.first_token = sequence.last_token;
    const float logprob = i < result.logprobs_size() ? result.logprobs(i) : 0;
    updates_.push_back(
        {sequence.request, RequestUpdate::Token{result.tokens(i), logprob}});
  }
  if (sequence.request->max_tokens == 0) return;  // Ends with its last span.
  if (result.finish() != v1::FINISH_REASON_UNSPECIFIED) {
    Finish(result.finish(), sequence);
  } else if (sequence.tokens_seen > 0 &&
             !MayGoOn(sequence, sequence.tokens_seen)) {
    Finish(v1::FINISH_REASON_LENGTH, sequence);
  }
}

void Scheduler::Finish(v1::FinishReason reason, Sequence& sequence) {
  sequence.ended = true;
  RequestTimings timings;
  timings.prompt_n = sequence.prompt_n();
  timings.predicted_n = sequence.tokens_seen;
  timings.prompt_ms = Milliseconds(sequence.first_token - sequence.admitted);
  timings.predicted_ms =
      Milliseconds(sequence.last_token - sequence.first_token);
  updates_.push_back(
      {sequence.request, RequestUpdate::Finished{reason, timings}});
}

std::vector<RequestUpdate> Scheduler::TakeUpdates() {
  return std::exchange(updates_, {});
}

size_t Scheduler::running() const {
  return std::count_if(order_.begin(), order_.end(),
                       [this](uint32_t slot) { return !slots_[slot]->ended; });
}

}  // namespace ringfleet::coordinator
