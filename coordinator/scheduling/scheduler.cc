// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

double Milliseconds(cluster::Deadline::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// The form of all spans of the first chunk of a prompt. It costs little there,
// and short texts have the same bits however they are cut, and whether they are
// cached. In a reproducible epoch, the form of every position.
constexpr SpanForm kCommonForm = {.first = 0, .count = kPrefillChunk};

// A plan that is held back is sent by a tenth of the step before, and by this
// time, earlier than the step should end. It has to be planned and sent.
constexpr int kHeldPart = 10;
constexpr std::chrono::milliseconds kHeldTime{5};

bool HasNan(const v1::ScoreResult& score) {
  return std::any_of(score.logprobs().begin(), score.logprobs().end(),
                     [](float logprob) { return std::isnan(logprob); });
}

}  // namespace

void RequestUpdate::Deliver() const {
  RequestEvents& events = *request->events;
  if (const auto* token = std::get_if<DrawnToken>(&what)) {
    events.OnToken(*token);
  } else if (const auto* progress = std::get_if<Progress>(&what)) {
    events.OnProgress(progress->scored);
  } else if (const auto* running = std::get_if<Running>(&what)) {
    events.OnRunning(running->cached_n);
  } else if (const auto* waiting = std::get_if<Waiting>(&what)) {
    events.OnWaiting(waiting->why);
  } else if (const auto* score = std::get_if<v1::ScoreResult>(&what)) {
    events.OnScore(*score);
  } else if (const auto* finished = std::get_if<Finished>(&what)) {
    events.OnFinished(finished->reason, finished->timings);
  } else {
    events.OnFailed(std::get<absl::Status>(what));
  }
}

std::optional<cluster::Deadline::Clock::time_point> Scheduler::held_until()
    const {
  if (in_flight_.size() != 1) return std::nullopt;
  const PlanInFlight& flight = in_flight_.front();
  if (flight.prompt_rows == 0 || flight.replays) return std::nullopt;
  const auto time = pace_.StepTime(flight.prompt_rows);
  const auto until =
      std::max(flight.sent, last_result_) + time - time / kHeldPart - kHeldTime;
  if (until <= now_()) return std::nullopt;
  return until;
}

std::optional<v1::StepPlan> Scheduler::NextPlan() {
  if (in_flight_.size() >= kMaxPlansInFlight || held_until().has_value()) {
    return std::nullopt;
  }
  v1::StepPlan plan;
  PlanInFlight flight;
  YieldToSuspects();
  Release(&plan);
  Admit(&plan);
  for (const v1::Admission& admission : plan.admissions()) {
    flight.admitted.push_back(slots_[admission.slot()]);
  }
  BatchRows batch_rows = LimitBatch(&flight);
  const bool replays = ReplaysNext(batch_rows);
  // Found before this plan's spans, which draw their next tokens themselves.
  const std::vector<NextDecode> decodes = GrowDecodes(&batch_rows, &plan);
  // Prompts wait for replays, whose exchanges stay those of decodes.
  if (replays) {
    PlanReplays(&batch_rows, &plan, &flight);
  } else {
    PlanPrefills(
        flight.limits_batch ? flight.rows.decodes > 0 : !decodes.empty(),
        &batch_rows, &plan, &flight);
  }
  PlanDecodes(decodes, &plan, &flight);
  if (flight.limits_batch) {
    flight.rows.batch -=
        *std::min_element(batch_rows.begin(), batch_rows.end());
  }
  if (plan.releases().empty() && plan.admissions().empty() &&
      flight.work.empty()) {
    return std::nullopt;
  }
  return Send(std::move(plan), std::move(flight));
}

std::optional<v1::StepPlan> Scheduler::EmptyPlan() {
  if (in_flight_.size() >= kMaxPlansInFlight) return std::nullopt;
  return Send(v1::StepPlan(), PlanInFlight());
}

v1::StepPlan Scheduler::Send(v1::StepPlan plan, PlanInFlight flight) {
  plan.set_epoch(epoch_->id);
  plan.set_step(++last_step_);
  flight.step = last_step_;
  if (flight.limits_batch) batch_budget_.OnPlan(flight.rows);
  for (const PlannedWork& work : flight.work) {
    work.sequence->last_planned = last_step_;
  }
  flight.sent = now_();
  in_flight_.push_back(std::move(flight));
  return plan;
}

void Scheduler::YieldToSuspects() {
  const auto& runs = queue_.runs();
  if (std::none_of(runs.begin(), runs.end(),
                   [](const auto& run) { return run->suspect(); })) {
    return;
  }
  for (const uint32_t slot : order_) {
    Sequence& sequence = *slots_[slot];
    // A suspect has its slot until it makes progress.
    if (!sequence.left && (sequence.progressed || !sequence.run->suspect())) {
      updates_.push_back(
          {sequence.run->request,
           RequestUpdate::Waiting{
               "another job runs alone, because the fleet failed with it"}});
      WaitAgain(sequence);
    }
  }
}

std::vector<uint32_t> Scheduler::PromptsInTurn() const {
  std::vector<uint32_t> slots;
  for (const uint32_t slot : order_) {
    if (slots_[slot]->evaluates()) slots.push_back(slot);
  }
  const auto turn = [this](uint32_t slot) {
    const Sequence& sequence = *slots_[slot];
    return std::make_pair(sequence.request().batch(),
                          sequence.prompt_n() - sequence.planned);
  };
  std::stable_sort(slots.begin(), slots.end(), [&turn](uint32_t a, uint32_t b) {
    return turn(a) < turn(b);
  });
  return slots;
}

SpanForm Scheduler::FormOfPrompt(uint32_t begin, uint32_t count) const {
  return begin < kPrefillChunk || epoch_->reproducible
             ? kCommonForm
             : SpanForm{.first = begin, .count = count};
}

SpanForm Scheduler::FormOfDecodes() const {
  return epoch_->reproducible ? kCommonForm : SpanForm();
}

std::vector<Scheduler::OldestPrompt> Scheduler::OldestPrompts(
    bool cuts, uint32_t most) const {
  std::vector<OldestPrompt> oldest(epoch_->groups);
  for (const uint32_t slot : order_) {
    const Sequence& sequence = *slots_[slot];
    OldestPrompt& prompt = oldest[GroupOf(slot)];
    if (prompt.slot.has_value() || !sequence.evaluates() ||
        sequence.request().batch()) {
      continue;
    }
    prompt.slot = slot;
    prompt.planned = sequence.planned;
    if (sequence.owed < 2 * most) continue;
    const uint32_t next =
        std::min(kPrefillChunk - sequence.planned % kPrefillChunk,
                 sequence.prompt_n() - sequence.planned);
    if (!cuts) {
      prompt.rows = next;
    } else if (sequence.request().windows) {
      prompt.rows = most - std::min(most, kMaxPrefillRows - kPrefillChunk);
    } else if (most >= 2 * StepPace::kLeastRows) {
      prompt.rows = std::min(most / 2, next);
    } else if (last_step_ % 2 == 0) {
      prompt.rows = std::min(most, next);
    }
  }
  return oldest;
}

uint32_t Scheduler::MostPromptRows(bool beside_decodes) const {
  if (!beside_decodes || epoch_->step_time.count() == 0) return kMaxPrefillRows;
  return std::min(kMaxPrefillRows, pace_.RowsWithin(epoch_->step_time));
}

void Scheduler::PlanPrefills(bool beside_decodes, BatchRows* batch_rows,
                             v1::StepPlan* plan, PlanInFlight* flight) {
  const bool cuts = beside_decodes && epoch_->step_time.count() > 0;
  const uint32_t most = MostPromptRows(beside_decodes);
  std::vector<uint32_t> rows(epoch_->groups, 0);
  std::vector<OldestPrompt> oldest = OldestPrompts(cuts, most);
  for (const uint32_t slot : PromptsInTurn()) {
    OldestPrompt& first = oldest[GroupOf(slot)];
    if (first.slot == slot) first.rows = 0;
    uint32_t& taken = rows[GroupOf(slot)];
    const uint32_t used = taken + first.rows;
    Sequence& sequence = *slots_[slot];
    EvaluatedSpans& spans = sequence.run->spans;
    const uint32_t begin = sequence.planned;
    const uint32_t left = sequence.prompt_n() - begin;
    const bool repeats = begin < spans.size();
    const EvaluatedSpans::Run repeated =
        repeats ? spans.From(begin) : EvaluatedSpans::Run();
    uint32_t count = std::min(kPrefillChunk - begin % kPrefillChunk, left);
    if (repeats) count = std::min(count, repeated.positions);
    // Sums over a text that is scored depend on its chunks.
    const bool whole = sequence.request().windows;
    const bool batch = sequence.request().batch();
    uint32_t& batch_left = (*batch_rows)[GroupOf(slot)];
    if (batch && flight->limits_batch) {
      count = std::min({count, batch_left, most - std::min(most, used)});
      if (count == 0) continue;
    } else if (used + count > (whole ? kMaxPrefillRows : most)) {
      if (!cuts || whole || used + StepPace::kLeastRows > most) continue;
      // Products work on tiles of rows.
      count = (most - used) / StepPace::kLeastRows * StepPace::kLeastRows;
    }
    const uint32_t chunk = whole ? begin - begin % kPrefillChunk : begin;
    const SpanForm form =
        repeats
            ? repeated.form
            : FormOfPrompt(chunk, whole ? std::min(kPrefillChunk,
                                                   sequence.prompt_n() - chunk)
                                        : count);
    v1::PrefillSpan* span = plan->add_prefills();
    span->set_slot(slot);
    span->set_count(count);
    if (form != FormOfPrompt(begin, count) || (form.first == 0 && begin > 0)) {
      span->set_part_of_first(form.first);
      span->set_part_of_count(form.count);
    }
    taken += count;
    if (batch) batch_left -= count;
    flight->prompt_rows = std::max(flight->prompt_rows, taken);
    if (!repeats) spans.Append(count, form);
    sequence.planned += count;
    flight->work.push_back(
        {.sequence = slots_[slot], .begin = begin, .end = sequence.planned});
    Index(sequence, sequence.planned);
    if (sequence.planned < sequence.prompt_n()) continue;
    flight->evaluated.push_back(slots_[slot]);
    if (sequence.request().max_tokens > 0 && sequence.replay_n == 0) {
      sequence.tokens_planned = flight->work.back().tokens = 1;
    }
  }
  for (const OldestPrompt& prompt : oldest) {
    if (!prompt.slot.has_value()) continue;
    Sequence& sequence = *slots_[*prompt.slot];
    const uint32_t got = sequence.planned - prompt.planned;
    const uint32_t others = rows[GroupOf(*prompt.slot)] - got;
    sequence.owed += std::min(others, most / 2);
    sequence.owed -= std::min(sequence.owed, got);
  }
}

bool Scheduler::ReplaysNext(const BatchRows& batch_rows) const {
  bool replays = false;
  bool batch_replays = false;
  bool prompts = false;
  for (const uint32_t slot : order_) {
    const Sequence& sequence = *slots_[slot];
    if (sequence.left) continue;
    if (!sequence.request().batch()) {
      replays |= sequence.replays();
      prompts |= sequence.evaluates();
    } else if (batch_rows[GroupOf(slot)] > 0) {
      batch_replays |= sequence.replays();
    }
  }
  // Interactive prompts wait for batches only when it is their turn.
  return replays || (batch_replays && (!prompts || batch_budget_.turn()));
}

void Scheduler::PlanReplays(BatchRows* batch_rows, v1::StepPlan* plan,
                            PlanInFlight* flight) {
  flight->replays = true;
  std::vector<uint32_t> rows(epoch_->groups, 0);
  for (const uint32_t slot : SlotsByPriority()) {
    uint32_t& taken = rows[GroupOf(slot)];
    uint32_t& batch_left = (*batch_rows)[GroupOf(slot)];
    Sequence& sequence = *slots_[slot];
    if (sequence.left || !sequence.replays()) continue;
    uint32_t count =
        std::min(kMaxReplayRows - taken, sequence.known_n() - sequence.planned);
    if (sequence.planned < sequence.prompt_n()) {
      count =
          std::min(count, sequence.run->spans.From(sequence.planned).positions);
    }
    const bool batch = sequence.request().batch();
    if (batch) count = std::min(count, batch_left);
    if (count == 0) continue;
    if (batch) batch_left -= count;
    v1::ReplaySpan* span = plan->add_replays();
    span->set_slot(slot);
    span->set_count(count);
    taken += count;
    flight->work.push_back({.sequence = slots_[slot],
                            .begin = sequence.planned,
                            .end = sequence.planned + count});
    sequence.planned += count;
    EvaluatedSpans& spans = sequence.run->spans;
    spans.Append(sequence.planned - std::min(sequence.planned, spans.size()),
                 FormOfDecodes());
    Index(sequence, sequence.planned);
    // The last row draws the token behind the committed ones.
    if (sequence.knows_next()) continue;
    flight->work.back().tokens = 1;
    sequence.tokens_planned = sequence.replay_n + 1;
  }
}

void Scheduler::PlanDecodes(const std::vector<NextDecode>& decodes,
                            v1::StepPlan* plan, PlanInFlight* flight) {
  for (const NextDecode& next : decodes) {
    v1::Decode* decode = plan->add_decodes();
    decode->set_slot(next.slot);
    decode->set_drafts(next.tokens - 1);
    Sequence& sequence = *slots_[next.slot];
    const uint64_t begin = sequence.cached();
    sequence.tokens_planned += next.tokens;
    flight->work.push_back({.sequence = slots_[next.slot],
                            .tokens = next.tokens,
                            .begin = begin,
                            .end = sequence.cached()});
  }
}

uint64_t Scheduler::TokensLeft(const Sequence& sequence,
                               uint64_t tokens) const {
  // Token number `tokens` is fed into position prompt + tokens - 1.
  const uint64_t by_context =
      uint64_t{epoch_->context} + 1 - sequence.prompt_n();
  const uint64_t most =
      std::min<uint64_t>(sequence.request().max_tokens, by_context);
  return most - std::min(most, tokens);
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
  const auto now = now_();
  if (!flight.work.empty()) {
    const auto time = now - std::max(flight.sent, last_result_);
    if (!flight.replays) pace_.Observe(time, flight.prompt_rows);
    if (flight.limits_batch) batch_budget_.Observe(time, flight.rows);
  }
  last_result_ = now;
  for (const v1::SlotResult& slot : result.slots()) {
    const auto it = std::find_if(flight.work.begin(), flight.work.end(),
                                 [&slot](const PlannedWork& work) {
                                   return work.sequence->slot == slot.slot();
                                 });
    if (it == flight.work.end()) {
      return absl::InternalError(
          absl::StrCat("step ", result.step(), ": result for slot ",
                       slot.slot(), ", which the plan does not name"));
    }
    if (static_cast<uint32_t>(slot.tokens_size()) > it->tokens) {
      return absl::InternalError(absl::StrCat(
          "step ", result.step(), ": ", slot.tokens_size(), " tokens of slot ",
          slot.slot(), ", want at most ", it->tokens));
    }
    // Drafts that were not accepted leave room for later plans.
    it->sequence->tokens_planned -= it->tokens - slot.tokens_size();
    Take(slot, *it->sequence);
  }
  for (const auto& sequence : flight.evaluated) {
    if (!sequence->left && sequence->request().max_tokens == 0) {
      EndEvaluation(*sequence);
    }
  }
  return absl::OkStatus();
}

void Scheduler::Take(const v1::SlotResult& result, Sequence& sequence) {
  if (sequence.left) return;  // Surplus of a plan made before it left.
  Run& run = *sequence.run;
  if (result.has_error()) {
    const uint32_t code = result.error().code();
    sequence.left = true;
    caches_[GroupOf(sequence.slot)].Discard(&sequence.table);
    return Fail(absl::Status(code >= 1 && code <= 16
                                 ? static_cast<absl::StatusCode>(code)
                                 : absl::StatusCode::kInternal,
                             result.error().message()),
                run);
  }
  if (result.has_score()) {
    TakeScore(result.score(), sequence);
    if (sequence.left) return;
  }
  for (int i = 0; i < result.tokens_size(); ++i) {
    if (TokensLeft(sequence, run.committed.size()) == 0) break;
    run.last_token = now_();
    if (run.committed.empty()) run.first_token = run.last_token;
    sequence.progressed = true;
    run.committed.push_back(result.tokens(i));
    queue_.Charge(run, 1);
    DrawnToken token = {
        .id = result.tokens(i),
        .logprob = i < result.logprobs_size() ? result.logprobs(i) : 0};
    if (i < result.top_size()) {
      const v1::TopLogprobs& top = result.top(i);
      for (int j = 0; j < std::min(top.ids_size(), top.logprobs_size()); ++j) {
        token.top.push_back({.id = top.ids(j), .logprob = top.logprobs(j)});
      }
    }
    updates_.push_back({run.request, std::move(token)});
  }
  // The last token's own row is not in the cache.
  if (!run.committed.empty()) {
    const auto rows =
        static_cast<uint32_t>(sequence.prompt_n() + run.committed.size() - 1);
    if (rows > run.spans.size()) {
      run.spans.Append(rows - run.spans.size(), FormOfDecodes());
    }
    Index(sequence, rows);
  }
  if (run.request->max_tokens == 0) return;  // Ends with its last span.
  if (result.finish() != v1::FINISH_REASON_UNSPECIFIED) {
    sequence.left = true;
    Finish(result.finish(), run);
  } else if (!run.committed.empty() &&
             TokensLeft(sequence, run.committed.size()) == 0) {
    sequence.left = true;
    Finish(v1::FINISH_REASON_LENGTH, run);
  }
}

void Scheduler::TakeScore(const v1::ScoreResult& part, Sequence& sequence) {
  Run& run = *sequence.run;
  if (HasNan(part)) {
    sequence.left = true;
    caches_[GroupOf(sequence.slot)].Discard(&sequence.table);
    return Fail(absl::DataLossError(absl::StrCat(
                    "score: logits within the first ",
                    sequence.begin + sequence.score.logprobs_size() +
                        part.logprobs_size() + 1,
                    " ids are NaN")),
                run);
  }
  AppendScore(part, &sequence.score);
  sequence.progressed = true;
  updates_.push_back(
      {run.request,
       RequestUpdate::Progress{static_cast<uint32_t>(
           run.score.logprobs_size() + sequence.score.logprobs_size())}});
  // A prompt in front of tokens is one window, whose last position is scored
  // together with the first draw.
  if (run.request->max_tokens > 0 &&
      sequence.score.logprobs_size() + 1 ==
          static_cast<int>(sequence.prompt_n())) {
    run.scored = true;
    updates_.push_back({run.request, std::move(sequence.score)});
    sequence.score.Clear();
  }
}

void Scheduler::EndEvaluation(Sequence& sequence) {
  Run& run = *sequence.run;
  run.first_token = run.last_token = now_();
  if (run.request->score.has_value()) {
    AppendScore(sequence.score, &run.score);
    sequence.score.Clear();
    sequence.progressed = true;
    if (sequence.end < run.request->prompt_ids.size()) {
      run.window_begin = sequence.end - 1;
      WaitAgain(sequence);
      run.evaluated = 0;  // The next window has rows of its own.
      run.spans.Clear();
      return;
    }
    updates_.push_back({run.request, std::move(run.score)});
  }
  sequence.left = true;
  Finish(v1::FINISH_REASON_LENGTH, run);
}

void Scheduler::WaitAgain(Sequence& sequence) {
  sequence.left = true;
  if (sequence.progressed) sequence.run->failures = 0;
  sequence.run->evaluated = sequence.cached();
  queue_.Push(sequence.run);
}

void Scheduler::Finish(v1::FinishReason reason, Run& run) {
  RequestTimings timings;
  timings.prompt_n = static_cast<uint32_t>(run.request->prompt_ids.size());
  timings.cached_n = run.cached_n;
  timings.predicted_n = static_cast<uint32_t>(run.committed.size());
  timings.prompt_ms = Milliseconds(run.first_token - run.admitted);
  timings.predicted_ms = Milliseconds(run.last_token - run.first_token);
  updates_.push_back({run.request, RequestUpdate::Finished{reason, timings}});
}

void Scheduler::Fail(const absl::Status& status, const Run& run) {
  updates_.push_back({run.request, status});
}

std::vector<RequestUpdate> Scheduler::TakeUpdates() {
  return std::exchange(updates_, {});
}

Scheduler::CacheUse Scheduler::cache_use() const {
  CacheUse use = {.preemptions = preemptions_,
                  .recomputed_positions = recomputed_,
                  .prefix_queries = prefix_queries_,
                  .prefix_hits = prefix_hits_};
  for (const BlockCache& cache : caches_) {
    use.blocks_total += cache.total();
    use.blocks_used += cache.total() - cache.available();
    use.blocks_kept += cache.kept();
  }
  return use;
}

size_t Scheduler::running() const {
  return std::count_if(order_.begin(), order_.end(),
                       [this](uint32_t slot) { return !slots_[slot]->left; });
}

}  // namespace ringfleet::coordinator
