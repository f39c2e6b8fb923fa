// SPDX-License-Identifier: Apache-2.0
// The scheduler's hold on slots and cache blocks.
#include <algorithm>
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
  pools_[GroupOf(slot)].Return(slots_[slot]->blocks);
  slots_[slot] = nullptr;
  order_.erase(std::find(order_.begin(), order_.end(), slot));
}

bool Scheduler::Grant(uint32_t slot, uint64_t positions, v1::StepPlan* plan) {
  std::vector<uint32_t>& blocks = slots_[slot]->blocks;
  const auto wanted = BlocksOf(positions);
  if (wanted <= blocks.size()) return true;
  const auto missing = static_cast<uint32_t>(wanted - blocks.size());
  BlockPool& pool = pools_[GroupOf(slot)];
  if (missing > pool.free()) return false;
  pool.Take(missing, &blocks);
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

void Scheduler::Preempt(uint32_t slot, v1::StepPlan* plan) {
  Sequence& sequence = *slots_[slot];
  ++preemptions_;
  updates_.push_back({sequence.run->request,
                      RequestUpdate::Waiting{"the cache is full; the job goes "
                                             "on when blocks are free"}});
  WaitAgain(sequence);
  FreeSlot(slot, plan);
}

std::vector<Scheduler::NextDecode> Scheduler::GrowDecodes(v1::StepPlan* plan) {
  std::vector<NextDecode> decodes;
  for (const uint32_t slot : std::vector<uint32_t>(order_)) {
    // A sequence before may have taken this one's blocks.
    if (slots_[slot] == nullptr) continue;
    const Sequence& sequence = *slots_[slot];
    if (sequence.left || sequence.evaluates() || sequence.replays()) continue;
    const uint64_t left = TokensLeft(sequence, sequence.tokens_planned);
    if (left == 0) continue;
    const auto tokens =
        static_cast<uint32_t>(std::min<uint64_t>(left, epoch_->drafts + 1));
    // The last of the tokens is not in the cache.
    const uint64_t positions =
        sequence.prompt_n() + sequence.tokens_planned + tokens - 1;
    while (slots_[slot] != nullptr && !Grant(slot, positions, plan)) {
      Preempt(Victim(GroupOf(slot)), plan);
    }
    if (slots_[slot] != nullptr) {
      decodes.push_back({.slot = slot, .tokens = tokens});
    }
  }
  // A sequence behind may have taken blocks of one before.
  decodes.erase(std::remove_if(decodes.begin(), decodes.end(),
                               [this](const NextDecode& decode) {
                                 return slots_[decode.slot] == nullptr;
                               }),
                decodes.end());
  return decodes;
}

std::optional<uint32_t> Scheduler::FindSlot(uint64_t positions) const {
  const auto needed = BlocksOf(positions);
  std::optional<uint32_t> best;
  uint32_t least = epoch_->slots;
  for (uint32_t group = 0; group < epoch_->groups; ++group) {
    std::optional<uint32_t> free;
    uint32_t taken = 0;
    uint32_t may_grow = 0;
    for (uint32_t i = 0; i < epoch_->slots; ++i) {
      const uint32_t slot = group * epoch_->slots + i;
      const Sequence* sequence = slots_[slot].get();
      if (sequence == nullptr) {
        if (!free.has_value()) free = slot;
        continue;
      }
      ++taken;
      const uint64_t most = std::min<uint64_t>(
          epoch_->context,
          uint64_t{sequence->prompt_n()} + sequence->request().max_tokens);
      if (BlocksOf(most) > sequence->blocks.size()) {
        ++may_grow;
      }
    }
    if (taken >= least || needed + may_grow > pools_[group].free()) continue;
    least = taken;
    best = free;
  }
  return best;
}

std::shared_ptr<Run> Scheduler::Next() const {
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
  if (suspect == runs.end()) return queue_.Next();
  return quiet() ? *suspect : nullptr;
}

void Scheduler::Admit(v1::StepPlan* plan) {
  // A plan must stay below what a worker receives in one message.
  while (plan->ByteSizeLong() <= kMaxPlanBytes) {
    const std::shared_ptr<Run> run = Next();
    if (run == nullptr) return;
    const auto leave_queue = [&] {
      queue_.Take([&run](const Run& waiting) { return &waiting == run.get(); });
    };
    const Request& request = *run->request;
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
    // With the position of the first decode.
    const std::optional<uint32_t> slot = FindSlot(
        std::min<uint64_t>(known + (request.max_tokens > 0), epoch_->context));
    if (!slot.has_value()) return;
    leave_queue();
    Enter(run, window, *slot, plan);
  }
}

void Scheduler::Enter(std::shared_ptr<Run> run, const ScoreWindow& window,
                      uint32_t slot, v1::StepPlan* plan) {
  const Request& request = *run->request;
  const std::vector<uint32_t>& ids = request.prompt_ids;
  auto sequence = std::make_shared<Sequence>();
  sequence->slot = slot;
  sequence->begin = window.begin;
  sequence->end = window.end;
  sequence->replay_n = static_cast<uint32_t>(run->committed.size());
  v1::Admission* admission = plan->add_admissions();
  admission->set_slot(slot);
  admission->mutable_prompt_ids()->Add(ids.begin() + window.begin,
                                       ids.begin() + window.end);
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
    if (window.end < ids.size()) admission->mutable_score()->set_top(0);
  }
  if (run->admitted == Run::Time()) {
    run->admitted = now_();
    queue_.Charge(*run, ids.size());
  }
  updates_.push_back({run->request, RequestUpdate::Running{}});
  recomputed_ += std::exchange(run->evaluated, 0);
  const uint64_t known = sequence->prompt_n() + sequence->replay_n;
  sequence->run = std::move(run);
  slots_[slot] = std::move(sequence);
  order_.push_back(slot);
  RF_CHECK(Grant(slot, known, plan));  // FindSlot has counted the blocks.
}

}  // namespace ringfleet::coordinator
