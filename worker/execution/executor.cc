// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "cluster/process/status_macros.h"
#include "kernels/attention/latent_cache.h"
#include "worker/strategies/strategy_of_batch.h"

namespace ringfleet::worker {
namespace {

kernels::SamplingFilter MakeFilter(const v1::SamplingParams& params) {
  return {.temperature = params.temperature(),
          .top_k = params.top_k(),
          .top_p = params.top_p(),
          .min_p = params.min_p()};
}

// Most rows of a step. Bounds the activations of a faulty plan.
constexpr size_t kMaxRows = 8192;
constexpr int kHiddenHead = 8;  // Numbers of a HiddenState.

int64_t CachedPositions(const v1::CachedPrefix& cached) {
  return int64_t{cached.blocks_size()} *
             static_cast<int64_t>(kernels::kCacheBlockPositions) +
         cached.copied_positions();
}

void AddHiddenState(const float* x, size_t size, v1::ScoreResult* score) {
  v1::HiddenState* state = score->add_hidden_states();
  double squares = 0;
  for (size_t i = 0; i < size; ++i) {
    if (i < kHiddenHead) state->add_head(x[i]);
    squares += static_cast<double>(x[i]) * x[i];
  }
  state->set_norm(std::sqrt(squares));
}

}  // namespace

Executor::Executor(uint64_t epoch, ModelInstance main, ModelInstance reference,
                   int slots, v1::PrefillStrategy prefill_strategy)
    : epoch_(epoch),
      main_(main),
      reference_(reference),
      slots_(slots),
      group_(main.model->plan().data_group),
      prefill_strategy_(prefill_strategy),
      scorer_(*main.model, reference.model),
      sequences_(static_cast<size_t>(main.model->plan().mesh.data) * slots),
      drawer_(&main.model->communicator(), &main.model->pool()) {}

absl::Status Executor::Step(const v1::StepPlan& plan, v1::StepResult* result) {
  if (plan.epoch() != epoch_ || plan.step() != step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan of epoch ", plan.epoch(), " step ", plan.step(),
                     ", want epoch ", epoch_, " step ", step_ + 1));
  }
  step_ = plan.step();
  result->set_epoch(epoch_);
  result->set_step(step_);
  for (uint32_t slot : plan.releases()) RF_RETURN_IF_ERROR(Release(slot));
  for (const v1::Admission& admission : plan.admissions()) {
    RF_RETURN_IF_ERROR(Admit(admission));
  }
  for (const v1::Rewind& rewind : plan.rewinds()) {
    RF_RETURN_IF_ERROR(RewindSequence(rewind));
  }
  for (const v1::BlockGrant& grant : plan.grants()) {
    RF_RETURN_IF_ERROR(Grant(grant));
  }
  for (const v1::Admission& admission : plan.admissions()) {
    if (admission.synthetic_positions() == 0) continue;
    RF_RETURN_IF_ERROR(Synthesize(admission));
  }
  if (!plan.masks().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ": ", plan.masks_size(),
                     " masks, want none: this worker applies no masks"));
  }
  RF_RETURN_IF_ERROR(AssembleBatch(plan));
  if (!passes_.any) return absl::OkStatus();
  const auto scope =
      cluster::TraceScope::Step(main_.model->communicator().trace(), step_);
  const uint64_t bytes_before = main_.model->bytes_read();
  RF_RETURN_IF_ERROR(EvaluateBatch(result));
  RF_RETURN_IF_ERROR(ScoreSpans(result));
  RF_RETURN_IF_ERROR(DrawAndAdvance(result));
  result->set_bytes_read(main_.model->bytes_read() - bytes_before);
  return absl::OkStatus();
}

absl::StatusOr<Executor::Sequence*> Executor::ActiveSequence(uint32_t slot) {
  if (slot >= sequences_.size() || !sequences_[slot].active) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ": slot ", slot, " of ", sequences_.size(),
                     " holds no sequence"));
  }
  return &sequences_[slot];
}

absl::Status Executor::Release(uint32_t slot) {
  RF_ASSIGN_OR_RETURN(Sequence * sequence, ActiveSequence(slot));
  *sequence = Sequence();
  if (!IsOwn(slot)) return absl::OkStatus();
  for (KvCache* cache : {main_.cache, reference_.cache}) {
    if (cache != nullptr) cache->Release(static_cast<int>(slot) % slots_);
  }
  return absl::OkStatus();
}

absl::Status Executor::Grant(const v1::BlockGrant& grant) {
  const uint32_t slot = grant.slot();
  RF_ASSIGN_OR_RETURN(Sequence * sequence, ActiveSequence(slot));
  const auto error = [&](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step ", step_, ": blocks for slot ", slot, ": ", parts...));
  };
  const int own_slot = static_cast<int>(slot) % slots_;
  for (const uint32_t block : grant.blocks()) {
    if (block >= static_cast<uint32_t>(main_.cache->blocks())) {
      return error("block ", block, ", want below ", main_.cache->blocks());
    }
    if (!IsOwn(slot)) continue;
    if (main_.cache->taken(static_cast<int>(block))) {
      return error("block ", block, " is taken");
    }
    if (main_.cache->positions(own_slot) >= main_.cache->context()) {
      return error("block ", block, " behind ",
                   main_.cache->positions(own_slot), " positions, want within ",
                   main_.cache->context());
    }
    for (KvCache* cache : {main_.cache, reference_.cache}) {
      if (cache != nullptr) cache->Grant(own_slot, static_cast<int>(block));
    }
    if (const uint32_t positions = std::exchange(sequence->copied_positions, 0);
        positions > 0) {
      main_.cache->Copy(static_cast<int>(sequence->copied_block),
                        static_cast<int>(positions), own_slot);
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::CheckCached(const v1::Admission& admission) const {
  const v1::CachedPrefix& cached = admission.cached();
  const auto error = [&](auto... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ": cached prefix of slot ",
                     admission.slot(), ": ", parts...));
  };
  if (admission.has_score() || admission.forced_ids_size() > 0) {
    return error("want none beside score and forced ids");
  }
  const auto check = [&](uint32_t block) {
    if (block >= static_cast<uint32_t>(main_.cache->blocks())) {
      return error("block ", block, ", want below ", main_.cache->blocks());
    }
    if (IsOwn(admission.slot()) &&
        !main_.cache->written(static_cast<int>(block))) {
      return error("block ", block, " has no rows");
    }
    return absl::OkStatus();
  };
  for (const uint32_t block : cached.blocks()) {
    RF_RETURN_IF_ERROR(check(block));
  }
  if (cached.copied_positions() >= kernels::kCacheBlockPositions) {
    return error(cached.copied_positions(), " copied positions, want below ",
                 kernels::kCacheBlockPositions);
  }
  if (cached.copied_positions() > 0) {
    RF_RETURN_IF_ERROR(check(cached.copied_block()));
  }
  const int64_t positions = CachedPositions(cached);
  const int64_t known =
      int64_t{admission.prompt_ids_size()} + admission.committed_ids_size();
  if (positions >= known) {
    return error(positions, " positions, want less than the ", known,
                 " known ids");
  }
  return absl::OkStatus();
}

void Executor::ShareCached(const v1::CachedPrefix& cached, uint32_t slot,
                           Sequence* sequence) {
  sequence->length = static_cast<int>(CachedPositions(cached));
  if (!IsOwn(slot)) return;
  const int own_slot = static_cast<int>(slot) % slots_;
  for (const uint32_t block : cached.blocks()) {
    for (KvCache* cache : {main_.cache, reference_.cache}) {
      if (cache != nullptr) cache->Share(own_slot, static_cast<int>(block));
    }
  }
  sequence->copied_block = cached.copied_block();
  sequence->copied_positions = cached.copied_positions();
}

absl::Status Executor::Admit(const v1::Admission& admission) {
  const auto error = [&](auto... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ": admission to slot ", admission.slot(),
                     ": ", parts...));
  };
  if (admission.slot() >= sequences_.size()) {
    return error("want below ", sequences_.size());
  }
  if (sequences_[admission.slot()].active) return error("slot is taken");
  const int context = main_.cache->context();
  if (admission.prompt_ids_size() < 1 ||
      admission.prompt_ids_size() > context) {
    return error("prompt of ", admission.prompt_ids_size(),
                 " tokens, want 1 to ", context);
  }
  const uint32_t vocab = main_.model->spec().vocab_size;
  for (uint32_t id : admission.prompt_ids()) {
    if (id >= vocab) return error("token id ", id, ", want below ", vocab);
  }
  for (uint32_t id : admission.forced_ids()) {
    if (id >= vocab) return error("forced id ", id, ", want below ", vocab);
  }
  for (uint32_t id : admission.committed_ids()) {
    if (id >= vocab) return error("committed id ", id, ", want below ", vocab);
  }
  const int committed = admission.committed_ids_size();
  if (committed > 0 &&
      (admission.forced_ids_size() > 0 || admission.has_score() ||
       static_cast<uint32_t>(committed) >= admission.max_tokens() ||
       committed > context - admission.prompt_ids_size())) {
    return error(committed, " committed ids behind a prompt of ",
                 admission.prompt_ids_size(), ", want less than max_tokens, ",
                 admission.max_tokens(), ", within the context, ", context,
                 ", without forced ids and score");
  }
  const float temperature = admission.sampling().temperature();
  if (!(temperature >= 0) || std::isinf(temperature)) {
    return error("temperature ", temperature, ", want 0 or more");
  }
  const absl::Status rules = LogitRules::Check(admission, vocab);
  if (!rules.ok()) return error(rules.message());
  if (admission.has_cached()) RF_RETURN_IF_ERROR(CheckCached(admission));
  const uint32_t synthetic = admission.synthetic_positions();
  if (synthetic > 0 &&
      (synthetic >= static_cast<uint32_t>(admission.prompt_ids_size()) ||
       admission.has_cached() || admission.has_score())) {
    return error(synthetic, " synthetic positions, want less than the prompt, ",
                 admission.prompt_ids_size(),
                 ", without cached rows and score");
  }
  Sequence& sequence = sequences_[admission.slot()];
  sequence.active = true;
  if (IsOwn(admission.slot())) sequence.rules = LogitRules(admission);
  sequence.admission = admission;
  sequence.generated = static_cast<uint32_t>(committed);
  ShareCached(admission.cached(), admission.slot(), &sequence);
  return absl::OkStatus();
}

absl::Status Executor::Synthesize(const v1::Admission& admission) {
  const uint32_t slot = admission.slot();
  const uint32_t positions = admission.synthetic_positions();
  sequences_[slot].length = static_cast<int>(positions);
  if (!IsOwn(slot)) return absl::OkStatus();
  const int own_slot = static_cast<int>(slot) % slots_;
  for (KvCache* cache : {main_.cache, reference_.cache}) {
    if (cache == nullptr) continue;
    if (positions > cache->positions(own_slot)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "step ", step_, ": ", positions, " synthetic positions in slot ",
          slot, ", want within the ", cache->positions(own_slot),
          " positions granted"));
    }
    cache->Synthesize(own_slot, positions);
  }
  return absl::OkStatus();
}

absl::Status Executor::RewindSequence(const v1::Rewind& rewind) {
  RF_ASSIGN_OR_RETURN(Sequence * sequence, ActiveSequence(rewind.slot()));
  const int64_t length = rewind.length();
  const int64_t behind = length - sequence->prompt_size();  // The prompt.
  const auto& forced = sequence->admission.forced_ids();
  if (length > sequence->length || behind >= forced.size() ||
      sequence->admission.has_cached()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step ", step_, ": slot ", rewind.slot(), " goes back to ", length,
        " positions, want at most ", sequence->length,
        " and less than the prompt's and forced ids, ",
        sequence->prompt_size() + forced.size(), ", without a cached prefix"));
  }
  sequence->length = static_cast<int>(length);
  sequence->generated = behind < 0 ? 0 : static_cast<uint32_t>(behind) + 1;
  if (behind >= 0) sequence->last_token = forced[static_cast<int>(behind)];
  sequence->ended = false;
  return absl::OkStatus();
}

absl::Status Executor::AppendSpan(uint32_t slot, Sequence& sequence, int rows,
                                  bool as_decodes) {
  passes_.any = true;
  if (!IsOwn(slot)) {
    sequence.length += rows;
    return absl::OkStatus();
  }
  const int own_slot = static_cast<int>(slot) % slots_;
  if (sequence.length + rows > main_.cache->positions(own_slot)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ": slot ", slot, ": ", rows,
                     " rows behind ", sequence.length, ", want within the ",
                     main_.cache->positions(own_slot), " positions granted"));
  }
  batch_.spans.push_back({.slot = own_slot,
                          .first_row = batch_.ids.size(),
                          .rows = static_cast<size_t>(rows),
                          .first_position = sequence.length,
                          .as_decodes = as_decodes,
                          .absorbed = main_.model->reproducible()});
  for (int row = 0; row < rows; ++row) {
    batch_.ids.push_back(sequence.IdAt(sequence.length + row));
  }
  return absl::OkStatus();
}

void Executor::NoteScoring(uint32_t slot, const Sequence& sequence,
                           uint32_t count) {
  const v1::ScoreOptions& score = sequence.admission.score();
  passes_.hidden |= score.hidden();
  passes_.reference |= score.reference();
  // The MTP layer looks at tokens that have a successor.
  const int64_t rows = std::min<int64_t>(
      count, int64_t{sequence.prompt_size()} - 1 - sequence.length);
  if (score.mtp() && rows > 0 && main_.model->has_mtp()) {
    ++passes_.mtp[GroupOf(slot)];
  }
}

absl::Status Executor::CheckSpan(absl::string_view what, uint32_t slot,
                                 uint32_t count, int left) const {
  if (count < 1 || static_cast<int64_t>(count) > left) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ": ", what, " of ", count,
                     " tokens in slot ", slot, ", want 1 to ", left));
  }
  if (batch_.rows() + count > kMaxRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step ", step_, ": more than ", kMaxRows, " tokens in one step"));
  }
  return absl::OkStatus();
}

absl::Status Executor::AssembleBatch(const v1::StepPlan& plan) {
  batch_.ids.clear();
  batch_.spans.clear();
  passes_.any = passes_.hidden = passes_.reference = false;
  passes_.mtp.assign(main_.model->plan().mesh.data, 0);
  seen_.assign(sequences_.size(), 0);
  const auto claim = [&](uint32_t slot) -> absl::Status {
    if (seen_[slot] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", step_, ": slot ", slot, " appears twice"));
    }
    seen_[slot] = 1;
    return absl::OkStatus();
  };
  for (const v1::PrefillSpan& span : plan.prefills()) {
    RF_ASSIGN_OR_RETURN(Sequence * sequence, ActiveSequence(span.slot()));
    RF_RETURN_IF_ERROR(claim(span.slot()));
    RF_RETURN_IF_ERROR(
        CheckSpan("prefill", span.slot(), span.count(),
                  std::max(sequence->prompt_size() - sequence->length, 0)));
    NoteScoring(span.slot(), *sequence, span.count());
    RF_RETURN_IF_ERROR(AppendSpan(span.slot(), *sequence,
                                  static_cast<int>(span.count()),
                                  /*as_decodes=*/false));
    if (IsOwn(span.slot()) && span.part_of_count() > 0) {
      batch_.spans.back().form_first_position = span.part_of_first();
      batch_.spans.back().form_rows = span.part_of_count();
    }
  }
  for (const v1::ReplaySpan& span : plan.replays()) {
    RF_ASSIGN_OR_RETURN(Sequence * sequence, ActiveSequence(span.slot()));
    RF_RETURN_IF_ERROR(claim(span.slot()));
    RF_RETURN_IF_ERROR(
        CheckSpan("replay", span.slot(), span.count(),
                  std::max(sequence->known_size() - sequence->length, 0)));
    NoteScoring(span.slot(), *sequence, span.count());
    RF_RETURN_IF_ERROR(AppendSpan(span.slot(), *sequence,
                                  static_cast<int>(span.count()),
                                  /*as_decodes=*/true));
  }
  // No drafts are proposed, so none is left to evaluate behind the last token.
  for (const v1::Decode& decode : plan.decodes()) {
    const uint32_t slot = decode.slot();
    RF_ASSIGN_OR_RETURN(Sequence * sequence, ActiveSequence(slot));
    RF_RETURN_IF_ERROR(claim(slot));
    if (sequence->ended) {
      // Other data groups do not know that the sequence has ended.
      passes_.any |= main_.model->plan().mesh.data > 1;
      continue;
    }
    if (sequence->InKnown() || (IsOwn(slot) && sequence->generated == 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", step_, ": decode of slot ", slot,
                       " before its prompt and committed ids are evaluated"));
    }
    if (sequence->length >= main_.cache->context()) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", step_, ": decode of slot ", slot, " behind ",
                       sequence->length, " positions, want less than ",
                       main_.cache->context()));
    }
    RF_RETURN_IF_ERROR(
        AppendSpan(slot, *sequence, /*rows=*/1, /*as_decodes=*/true));
  }
  return absl::OkStatus();
}

v1::SlotResult* Executor::ResultOf(const BatchSpan& span,
                                   v1::StepResult* result) {
  const auto slot = static_cast<uint32_t>(group_ * slots_ + span.slot);
  for (v1::SlotResult& entry : *result->mutable_slots()) {
    if (entry.slot() == slot) return &entry;
  }
  v1::SlotResult* entry = result->add_slots();
  entry->set_slot(slot);
  return entry;
}

// Lists the rows whose hidden states are scored or drawn from.
void Executor::CollectWantedRows() {
  wanted_rows_.clear();
  for (const BatchSpan& span : batch_.spans) {
    const size_t end = span.first_row + span.rows;
    const bool scored = SequenceOf(span).admission.has_score();
    for (size_t row = scored ? span.first_row : end - 1; row < end; ++row) {
      wanted_rows_.push_back(static_cast<uint32_t>(row));
    }
  }
}

absl::Status Executor::EvaluateBatch(v1::StepResult* result) {
  const size_t hidden_size = main_.model->spec().hidden_size;
  CollectWantedRows();
  const bool reports = main_.model->communicator().rank() == 0;
  const auto observe = [&](int index, const float* x) {
    if (!reports) return;
    for (const BatchSpan& span : batch_.spans) {
      const Sequence& sequence = SequenceOf(span);
      const bool ends_prompt =
          span.first_position + static_cast<int64_t>(span.rows) ==
          sequence.prompt_size();
      if (sequence.admission.score().hidden() && ends_prompt) {
        const size_t row = span.first_row + span.rows - 1;
        AddHiddenState(x + row * hidden_size, hidden_size,
                       ResultOf(span, result)->mutable_score());
      }
    }
  };
  float* hidden = Grow(hidden_, batch_.rows() * hidden_size);
  std::optional<StepObserver> observer;
  if (passes_.hidden) observer.emplace(observe);
  const StepStrategy& strategy = StrategyOfBatch(
      prefill_strategy_, batch_, main_.model->communicator().size());
  RF_RETURN_IF_ERROR(
      main_.model->Forward(strategy, batch_, wanted_rows_, observer, hidden));
  observe(main_.model->spec().num_hidden_layers, hidden);

  if (reference_.model != nullptr && passes_.reference) {
    RF_RETURN_IF_ERROR(reference_.model->Forward(
        strategy, batch_, wanted_rows_, std::nullopt,
        Grow(reference_hidden_, batch_.rows() * hidden_size)));
  }
  return absl::OkStatus();
}

absl::Status Executor::ScoreSpans(v1::StepResult* result) {
  const size_t hidden_size = main_.model->spec().hidden_size;
  for (const BatchSpan& span : batch_.spans) {
    const Sequence& sequence = SequenceOf(span);
    if (!sequence.admission.has_score() ||
        span.first_position >= sequence.prompt_size()) {
      continue;
    }
    const size_t first = span.first_row * hidden_size;
    v1::ScoreResult score;
    RF_RETURN_IF_ERROR(scorer_.Score(
        {.options = &sequence.admission.score(),
         .prompt = absl::MakeConstSpan(sequence.admission.prompt_ids().data(),
                                       sequence.prompt_size()),
         .span = span,
         .hidden = hidden_.data() + first,
         .reference_hidden = reference_.model == nullptr
                                 ? nullptr
                                 : reference_hidden_.data() + first},
        &score));
    if (main_.model->communicator().rank() == 0) {
      ResultOf(span, result)->mutable_score()->MergeFrom(score);
    }
  }
  // Spans that other data groups score may need this rank's experts.
  const int most = *std::max_element(passes_.mtp.begin(), passes_.mtp.end());
  const Batch none;
  for (int pass = passes_.mtp[group_]; pass < most; ++pass) {
    RF_RETURN_IF_ERROR(main_.model->ForwardMtp(none, nullptr, nullptr));
  }
  return absl::OkStatus();
}

absl::Status Executor::DrawAndAdvance(v1::StepResult* result) {
  const size_t hidden_size = main_.model->spec().hidden_size;
  draws_.clear();
  drawn_spans_.clear();
  for (const BatchSpan& span : batch_.spans) {
    Sequence& sequence = SequenceOf(span);
    sequence.length += static_cast<int>(span.rows);
    if (sequence.InKnown() || sequence.admission.max_tokens() == 0) continue;
    const v1::SamplingParams& sampling = sequence.admission.sampling();
    draws_.push_back(
        {.filter = MakeFilter(sampling),
         .key = {.seed = sampling.seed(),
                 .sample = sampling.sample(),
                 .position = static_cast<uint64_t>(sequence.length)},
         .usable_vocab = sequence.admission.usable_vocab(),
         .rules = &sequence.rules,
         .top = sequence.admission.top_logprobs()});
    drawn_spans_.push_back(&span);
    std::memcpy(Grow(draw_hidden_, draws_.size() * hidden_size) +
                    (draws_.size() - 1) * hidden_size,
                hidden_.data() + (span.first_row + span.rows - 1) * hidden_size,
                hidden_size * sizeof(float));
  }
  if (draws_.empty()) return absl::OkStatus();

  const cluster::Range vocab = main_.model->plan().vocab;
  float* logits = Grow(draw_logits_, draws_.size() * vocab.size());
  main_.model->Logits(draw_hidden_.data(), draws_.size(), logits);
  const cluster::TraceScope scope(main_.model->communicator().trace(),
                                  "sampling");
  RF_ASSIGN_OR_RETURN(
      const absl::Span<const DrawnToken> drawn,
      drawer_.Draw(draws_, logits, vocab, main_.model->spec().vocab_size));
  for (size_t i = 0; i < drawn.size(); ++i) {
    Sequence& sequence = SequenceOf(*drawn_spans_[i]);
    if (drawn[i].nan || drawn[i].forbidden) {
      sequence.ended = true;
      v1::SlotError* error =
          ResultOf(*drawn_spans_[i], result)->mutable_error();
      error->set_code(static_cast<uint32_t>(
          drawn[i].nan ? absl::StatusCode::kDataLoss
                       : absl::StatusCode::kInvalidArgument));
      error->set_message(absl::StrCat(
          drawn[i].nan ? "model: logits at position "
                       : "sampling: all ids at position ",
          sequence.length - 1, drawn[i].nan ? " are NaN" : " are forbidden"));
      continue;
    }
    const auto& forced = sequence.admission.forced_ids();
    sequence.last_token =
        sequence.generated < static_cast<uint32_t>(forced.size())
            ? forced[static_cast<int>(sequence.generated)]
            : drawn[i].id;
    ++sequence.generated;
    sequence.rules.Add(sequence.last_token);
    v1::SlotResult* slot_result = ResultOf(*drawn_spans_[i], result);
    slot_result->add_tokens(drawn[i].id);
    slot_result->add_logprobs(drawn[i].logprob);
    if (sequence.admission.top_logprobs() > 0) {
      v1::TopLogprobs* top = slot_result->add_top();
      for (const TokenLogprob& likely : drawn[i].top) {
        top->add_ids(likely.id);
        top->add_logprobs(likely.logprob);
      }
    }
    const auto& stop_ids = sequence.admission.stop_ids();
    if (std::find(stop_ids.begin(), stop_ids.end(), drawn[i].id) !=
        stop_ids.end()) {
      slot_result->set_finish(v1::FINISH_REASON_STOP);
    } else if (sequence.generated >= sequence.admission.max_tokens() ||
               sequence.length >= main_.cache->context()) {
      slot_result->set_finish(v1::FINISH_REASON_LENGTH);
    }
    sequence.ended = slot_result->finish() != v1::FINISH_REASON_UNSPECIFIED;
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
