// SPDX-License-Identifier: Apache-2.0
// The scheduler's hold on slots and cache blocks.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduling/scheduler.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/check.h"

namespace ringfleet::coordinator {
namespace {

uint64_t BlocksOf(uint64_t positions) {
  return static_cast<uint64_t>(
      kernels::CacheBlocks(static_cast<int64_t>(positions)));
}

}  // namespace

void Scheduler::Release(v1::StepPlan* plan) {
  for (const uint32_t slot : std::vector<uint32_t>(order_)) {
    if (slots_[slot]->left) FreeSlot(slot, plan);
  }
}

void Scheduler::FreeSlot(uint32_t slot, v1::StepPlan* plan) {
  plan->add_releases(slot);
  caches_[GroupOf(slot)].Leave(&slots_[slot]->table);
  slots_[slot] = nullptr;
  order_.erase(std::find(order_.begin(), order_.end(), slot));
}

bool Scheduler::Grant(uint32_t slot, uint64_t positions, v1::StepPlan* plan) {
  BlockCache::Table& table = slots_[slot]->table;
  const std::vector<uint32_t>& blocks = table.blocks;
  const auto wanted = BlocksOf(positions);
  if (wanted <= blocks.size()) return true;
  const auto missing = static_cast<uint32_t>(wanted - blocks.size());
  BlockCache& cache = caches_[GroupOf(slot)];
  if (missing > cache.available()) return false;
  cache.Take(missing, &table);
  v1::BlockGrant* grant = plan->add_grants();
  grant->set_slot(slot);
  grant->mutable_blocks()->Add(blocks.end() - missing, blocks.end());
  return true;
}

uint32_t Scheduler::Victim(uint32_t group) const {
  std::optional<uint32_t> victim;
  for (const uint32_t slot : order_) {
    if (GroupOf(slot) != group || slots_[slot]->left) continue;
    if (!victim.has_value() || slots_[slot]->request().priority >=
                                   slots_[*victim]->request().priority) {
      victim = slot;
    }
  }
  return *victim;
}

void Scheduler::Preempt(uint32_t slot, const std::string& why,
                        v1::StepPlan* plan) {
  Sequence& sequence = *slots_[slot];
  ++preemptions_;
  updates_.push_back({sequence.run->request, RequestUpdate::Waiting{why}});
  WaitAgain(sequence);
  FreeSlot(slot, plan);
}

bool Scheduler::MakeRoom(uint64_t positions, v1::StepPlan* plan) {
  std::optional<uint32_t> victim;
  for (uint32_t group = 0; group < epoch_->groups; ++group) {
    // Without batches. Blocks that sequences share count for each of them.
    uint64_t blocks = BlocksOf(positions);
    uint32_t interactive = 0;
    bool batch = false;
    for (const uint32_t slot : order_) {
      if (GroupOf(slot) != group) continue;
      const Sequence& other = *slots_[slot];
      batch |= other.request().batch();
      if (other.request().batch()) continue;
      ++interactive;
      blocks += other.table.blocks.size() + (MayGrow(other) ? 1 : 0);
    }
    if (!batch || interactive == epoch_->slots ||
        blocks > caches_[group].total()) {
      continue;
    }
    const uint32_t slot = Victim(group);
    if (!victim.has_value() || slots_[slot]->request().priority >
                                   slots_[*victim]->request().priority) {
      victim = slot;
    }
  }
  if (!victim.has_value()) return false;
  Preempt(*victim, "a job of a higher priority has taken the place", plan);
  return true;
}

bool Scheduler::InteractiveRuns() const {
  return std::any_of(order_.begin(), order_.end(), [this](uint32_t slot) {
    return !slots_[slot]->left && !slots_[slot]->request().batch();
  });
}

std::vector<uint32_t> Scheduler::SlotsByPriority() const {
  std::vector<uint32_t> slots(order_);
  std::stable_sort(slots.begin(), slots.end(), [this](uint32_t a, uint32_t b) {
    return slots_[a]->request().priority < slots_[b]->request().priority;
  });
  return slots;
}

uint32_t Scheduler::TokensOfDecode(const Sequence& sequence) const {
  if (sequence.left || sequence.knows_next()) return 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>(TokensLeft(sequence, sequence.tokens_planned),
                         uint64_t{epoch_->drafts} + 1));
}

Scheduler::BatchRows Scheduler::LimitBatch(PlanInFlight* flight) const {
  flight->limits_batch = InteractiveRuns();
  if (!flight->limits_batch) return BatchRows(epoch_->groups, kNoLimit);
  std::vector<uint32_t> decodes(epoch_->groups, 0);
  std::vector<uint32_t> prompts(epoch_->groups, 0);
  for (const uint32_t slot : order_) {
    const Sequence& sequence = *slots_[slot];
    if (sequence.left || sequence.request().batch()) continue;
    const uint32_t group = GroupOf(slot);
    decodes[group] += TokensOfDecode(sequence);
    prompts[group] += sequence.known_n() - sequence.planned;
  }
  BatchBudget::Rows& rows = flight->rows;
  rows.decodes = *std::max_element(decodes.begin(), decodes.end());
  rows.prompts = std::min(*std::max_element(prompts.begin(), prompts.end()),
                          MostPromptRows(/*beside_decodes=*/rows.decodes > 0));
  rows.batch = batch_budget_.RowsBeside(rows, pace_.TimeOf(rows.prompts));
  return BatchRows(epoch_->groups, rows.batch);
}

std::map<uint32_t, uint32_t> Scheduler::ShareDecodes(
    BatchRows* batch_rows) const {
  // Batches that have waited the longest go first. Decodes leave their rows to
  // a prompt that has waited for longer, for kTurnSteps or more.
  std::vector<uint64_t> waits_since(epoch_->groups, last_step_);
  for (const uint32_t slot : order_) {
    const Sequence& sequence = *slots_[slot];
    if (sequence.left || !sequence.request().batch() ||
        !sequence.knows_next()) {
      continue;
    }
    uint64_t& since = waits_since[GroupOf(slot)];
    since = std::min(since, sequence.last_planned);
  }
  std::vector<uint32_t> turns(order_);
  std::stable_sort(turns.begin(), turns.end(), [this](uint32_t a, uint32_t b) {
    return slots_[a]->last_planned < slots_[b]->last_planned;
  });
  std::map<uint32_t, uint32_t> tokens_of;  // By slot.
  for (const uint32_t slot : turns) {
    const Sequence& sequence = *slots_[slot];
    uint32_t tokens = TokensOfDecode(sequence);
    if (sequence.request().batch()) {
      uint32_t& left = (*batch_rows)[GroupOf(slot)];
      const uint64_t since = waits_since[GroupOf(slot)];
      if (left != kNoLimit && sequence.last_planned > since &&
          last_step_ - since >= BatchBudget::kTurnSteps) {
        continue;
      }
      tokens = std::min(tokens, left);
      left -= left == kNoLimit ? 0 : tokens;
    }
    if (tokens > 0) tokens_of[slot] = tokens;
  }
  return tokens_of;
}

std::vector<Scheduler::NextDecode> Scheduler::GrowDecodes(BatchRows* batch_rows,
                                                          v1::StepPlan* plan) {
  const std::map<uint32_t, uint32_t> tokens_of = ShareDecodes(batch_rows);
  std::vector<NextDecode> decodes;
  // The victim is the last of these, so it has no grant in this plan.
  for (const uint32_t slot : SlotsByPriority()) {
    // A sequence before may have taken this one's blocks.
    const auto it = tokens_of.find(slot);
    if (slots_[slot] == nullptr || it == tokens_of.end()) continue;
    const Sequence& sequence = *slots_[slot];
    const uint32_t tokens = it->second;
    // The last of the tokens is not in the cache.
    const uint64_t positions =
        sequence.prompt_n() + sequence.tokens_planned + tokens - 1;
    while (slots_[slot] != nullptr && !Grant(slot, positions, plan)) {
      Preempt(Victim(GroupOf(slot)),
              "the cache is full; the job goes on when blocks are free", plan);
    }
    if (slots_[slot] != nullptr) {
      decodes.push_back({.slot = slot, .tokens = tokens});
    }
  }
  return decodes;
}

bool Scheduler::Reuses(const Request& request) const {
  // Scores need the hidden state of each position.
  return epoch_->reuse != Reuse::kNobodys && !request.score.has_value();
}

std::string Scheduler::SaltOf(const Request& request) const {
  if (epoch_->reuse == Reuse::kAll) return request.cache_salt;
  return absl::StrCat(request.owner, absl::string_view("\0", 1),
                      request.cache_salt);
}

BlockCache::Prefix Scheduler::FindPrefix(const Sequence& sequence,
                                         uint32_t group) const {
  if (!Reuses(sequence.request())) return {};
  // The last position is evaluated in any case, for its logits.
  return caches_[group].Find(
      SaltOf(sequence.request()), sequence.known_n() - 1,
      [&sequence](uint32_t position) { return sequence.IdAt(position); },
      sequence.run->spans);
}

bool Scheduler::MayGrow(const Sequence& sequence) const {
  const uint64_t most =
      std::min<uint64_t>(epoch_->context, uint64_t{sequence.prompt_n()} +
                                              sequence.request().max_tokens);
  return BlocksOf(most) > sequence.table.blocks.size();
}

uint32_t Scheduler::ComingPrefix(const Sequence& sequence,
                                 uint32_t group) const {
  const Request& request = sequence.request();
  if (!Reuses(request) || !sequence.run->committed.empty()) return 0;
  uint32_t most = 0;
  for (const uint32_t slot : order_) {
    const Sequence& other = *slots_[slot];
    // Nobody waits for a batch, whose rows may wait themselves.
    if (GroupOf(slot) != group || other.left || !other.evaluates() ||
        !Reuses(other.request()) ||
        (other.request().batch() && !request.batch()) ||
        SaltOf(other.request()) != SaltOf(request)) {
      continue;
    }
    // The last position is evaluated in any case, for its logits.
    const uint32_t end = std::min(sequence.prompt_n() - 1, other.prompt_n());
    uint32_t common = 0;
    while (common < end && sequence.IdAt(common) == other.IdAt(common)) {
      ++common;
    }
    if (common > other.planned) most = std::max(most, common);
  }
  return most;
}

std::optional<Scheduler::Place> Scheduler::FindPlace(
    const Sequence& sequence, uint64_t positions,
    const std::vector<Reserved>& reserved) const {
  // A sequence that decodes slows a newcomer like so many rows of a prompt.
  constexpr uint64_t kRowsOfDecodes = 128;
  std::optional<Place> best;
  uint64_t least = 0;
  for (uint32_t group = 0; group < epoch_->groups; ++group) {
    std::optional<uint32_t> free;
    uint32_t free_slots = 0;
    uint32_t may_grow = 0;
    uint64_t rows = sequence.known_n();
    for (uint32_t i = 0; i < epoch_->slots; ++i) {
      const uint32_t slot = group * epoch_->slots + i;
      const Sequence* other = slots_[slot].get();
      if (other == nullptr) {
        if (!free.has_value()) free = slot;
        ++free_slots;
        continue;
      }
      rows += kRowsOfDecodes + other->known_n() - other->planned;
      if (MayGrow(*other)) ++may_grow;
    }
    if (free_slots <= reserved[group].slots) continue;
    Place place = {.slot = *free, .prefix = FindPrefix(sequence, group)};
    place.blocks = BlocksOf(positions) - place.prefix.whole.size();
    if (place.blocks + may_grow + place.prefix.kept + reserved[group].blocks >
        caches_[group].available()) {
      continue;
    }
    // A text that goes on has its bits only where experts' copies are as
    // before.
    if (!sequence.run->committed.empty() && sequence.run->group == group) {
      return place;
    }
    // A few rows are not worth another place than that of the last time.
    const uint32_t found = place.prefix.positions();
    const uint32_t coming = std::max(found, ComingPrefix(sequence, group));
    place.waits = 2 * (coming - found) > sequence.known_n() - 1 - found;
    const uint64_t cost =
        (rows - (place.waits ? coming : found)) / kRowsOfDecodes;
    if (best.has_value() && cost >= least) continue;
    least = cost;
    best = std::move(place);
  }
  return best;
}

std::shared_ptr<Run> Scheduler::Next(
    absl::FunctionRef<bool(const Run&)> holds) const {
  if (!held_for_.empty() || queue_.empty()) return nullptr;
  // A suspect that runs, or waits, is alone. Plans in flight may still have
  // rows of others.
  for (const uint32_t slot : order_) {
    const Sequence& sequence = *slots_[slot];
    if (sequence.run->suspect() && !sequence.progressed) return nullptr;
  }
  const auto& runs = queue_.runs();
  const auto suspect = std::find_if(
      runs.begin(), runs.end(), [](const auto& run) { return run->suspect(); });
  if (suspect == runs.end()) return queue_.Next(holds);
  return quiet() ? *suspect : nullptr;
}

void Scheduler::Admit(v1::StepPlan* plan) {
  std::set<const Run*> waits;  // For prefixes.
  std::vector<Reserved> reserved(epoch_->groups);
  // A plan must stay below what a worker receives in one message.
  while (plan->ByteSizeLong() <= kMaxPlanBytes) {
    const std::shared_ptr<Run> run =
        Next([&waits](const Run& waiting) { return waits.contains(&waiting); });
    if (run == nullptr) return;
    const auto leave_queue = [&] {
      queue_.Take([&run](const Run& waiting) { return &waiting == run.get(); });
    };
    const Request& request = *run->request;
    // It would take the place of others and stand still.
    if (request.batch() && batch_budget_.pauses() && InteractiveRuns()) return;
    const size_t ids = request.prompt_ids.size();
    ScoreWindow window = {.begin = 0, .end = ids};
    absl::Status status;
    if (request.windows) {
      const auto next = NextScoreWindow(ids, run->window_begin, epoch_->context,
                                        *request.score);
      status = next.status();
      if (next.ok()) window = *next;
    } else if (ids > epoch_->context) {
      status = PromptTooLong(ids, epoch_->context);
    }
    if (!status.ok()) {
      leave_queue();
      Fail(status, *run);
      continue;
    }
    const uint64_t known = window.end - window.begin + run->committed.size();
    if (known > epoch_->context) {
      leave_queue();
      Finish(v1::FINISH_REASON_LENGTH, *run);
      continue;
    }
    // Without a token there is no text whose bits could change.
    if (run->committed.empty()) run->spans.Clear();
    auto sequence = std::make_shared<Sequence>();
    sequence->run = run;
    sequence->begin = window.begin;
    sequence->end = window.end;
    sequence->replay_n = static_cast<uint32_t>(run->committed.size());
    // With the position of the first decode.
    const uint64_t positions =
        std::min<uint64_t>(known + (request.max_tokens > 0), epoch_->context);
    std::optional<Place> place = FindPlace(*sequence, positions, reserved);
    while (!place.has_value() && !request.batch() &&
           MakeRoom(positions, plan)) {
      place = FindPlace(*sequence, positions, reserved);
    }
    if (!place.has_value()) return;
    if (place->waits) {
      waits.insert(run.get());
      ++reserved[GroupOf(place->slot)].slots;
      reserved[GroupOf(place->slot)].blocks += place->blocks;
      continue;
    }
    leave_queue();
    Enter(std::move(sequence), *place, plan);
  }
}

void Scheduler::Enter(std::shared_ptr<Sequence> sequence, const Place& place,
                      v1::StepPlan* plan) {
  const uint32_t slot = place.slot;
  const std::shared_ptr<Run> run = sequence->run;
  const Request& request = *run->request;
  const std::vector<uint32_t>& ids = request.prompt_ids;
  sequence->slot = slot;
  sequence->last_planned = last_step_;
  v1::Admission* admission = plan->add_admissions();
  admission->set_slot(slot);
  admission->mutable_prompt_ids()->Add(ids.begin() + sequence->begin,
                                       ids.begin() + sequence->end);
  *admission->mutable_sampling() = request.sampling;
  admission->set_max_tokens(request.max_tokens);
  admission->mutable_stop_ids()->Add(request.stop_ids.begin(),
                                     request.stop_ids.end());
  admission->set_usable_vocab(request.usable_vocab);
  admission->set_top_logprobs(request.top_logprobs);
  admission->mutable_committed_ids()->Add(run->committed.begin(),
                                          run->committed.end());
  if (request.score.has_value() && !run->scored) {
    *admission->mutable_score() = *request.score;
    if (sequence->end < ids.size()) admission->mutable_score()->set_top(0);
  }
  BlockCache& cache = caches_[GroupOf(slot)];
  EvaluatedSpans spans;
  const uint32_t cached =
      cache.Enter(SaltOf(request), place.prefix, &sequence->table, &spans);
  if (run->spans.size() == 0) run->spans = std::move(spans);
  if (cached > 0) {
    v1::CachedPrefix* prefix = admission->mutable_cached();
    const std::vector<uint32_t>& blocks = sequence->table.blocks;
    prefix->mutable_blocks()->Add(blocks.begin(),
                                  blocks.begin() + place.prefix.whole.size());
    if (cached % kernels::kCacheBlockPositions > 0) {
      prefix->set_copied_block(place.prefix.part_block());
      prefix->set_copied_positions(place.prefix.part_positions);
      v1::BlockGrant* grant = plan->add_grants();
      grant->set_slot(slot);
      grant->add_blocks(blocks.back());
    }
  }
  sequence->planned = cached;
  Index(*sequence, cached);
  if (run->admitted == Run::Time()) {
    run->admitted = now_();
    run->group = GroupOf(slot);
    run->cached_n = std::min(cached, sequence->prompt_n());
    if (Reuses(request)) {
      prefix_queries_ += sequence->prompt_n();
      prefix_hits_ += run->cached_n;
    }
    queue_.Charge(*run, ids.size() - run->cached_n);
  }
  updates_.push_back({run->request, RequestUpdate::Running{run->cached_n}});
  const uint64_t before = std::exchange(run->evaluated, 0);
  recomputed_ += before - std::min<uint64_t>(before, cached);
  const uint32_t known = sequence->known_n();
  slots_[slot] = std::move(sequence);
  order_.push_back(slot);
  RF_CHECK(Grant(slot, known, plan));  // FindPlace has counted the blocks.
}

void Scheduler::Index(Sequence& sequence, uint64_t end) {
  if (epoch_->reuse == Reuse::kNobodys || sequence.request().windows) return;
  caches_[GroupOf(sequence.slot)].Index(
      static_cast<uint32_t>(end),
      [&sequence](uint32_t position) { return sequence.IdAt(position); },
      sequence.run->spans, &sequence.table);
}

}  // namespace ringfleet::coordinator
