// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_EXECUTOR_H_
#define RINGFLEET_WORKER_EXECUTION_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/sampling.h"
#include "protos/worker.pb.h"
#include "worker/execution/logit_rules.h"
#include "worker/execution/sampler.h"
#include "worker/execution/scorer.h"
#include "worker/model/kv_cache.h"
#include "worker/model/model.h"

namespace ringfleet::worker {

// A model and its cache. Null pointers: there is no model.
struct ModelInstance {
  Model* model = nullptr;
  KvCache* cache = nullptr;
};

// Executes step plans. Keeps the state of every sequence by slot: length, last
// token, end. All ranks of a data group advance the state of the group's
// sequences alike, so plans do not carry the state. For sequences of other data
// groups, the executor keeps only the facts in the plans. The facts tell which
// passes over the model all ranks must make together. If the model is
// reproducible, attention is absorbed in every span. Belongs to one thread.
class Executor {
 public:
  // `slots` is the number of slots of one data group. Group d has slots
  // [d * slots, (d + 1) * slots). `reference` is the float32 copy of the model;
  // its pointers are null if no copy is loaded. `prefill_strategy` is the
  // fleet's setting.
  Executor(uint64_t epoch, ModelInstance main, ModelInstance reference,
           int slots, v1::PrefillStrategy prefill_strategy);

  // Runs one step and fills `result`. The epoch is over after an error.
  // Errors: INVALID_ARGUMENT: the plan is faulty. The message names step, slot
  // and fault. FAILED_PRECONDITION: the plan is for another epoch, or not for
  // step steps() + 1. Those of the model.
  absl::Status Step(const v1::StepPlan& plan, v1::StepResult* result);

  // Number of the last step; steps count from 1.
  uint64_t steps() const { return step_; }

 private:
  struct Sequence {
    bool active = false;
    bool ended = false;
    v1::Admission admission;
    int length = 0;           // Number of positions in the cache.
    uint32_t last_token = 0;  // Drawn last; not in the cache.
    uint32_t generated = 0;   // Number of drawn tokens, committed ids included.
    // Rows of another block to copy into the first block granted.
    uint32_t copied_block = 0;
    uint32_t copied_positions = 0;
    LogitRules rules;

    int prompt_size() const { return admission.prompt_ids_size(); }
    // Ids of the prompt and committed ones.
    int known_size() const {
      return prompt_size() + admission.committed_ids_size();
    }
    bool InPrompt() const { return length < prompt_size(); }
    bool InKnown() const { return length < known_size(); }
    uint32_t IdAt(int position) const {
      if (position < prompt_size()) return admission.prompt_ids(position);
      if (position < known_size()) {
        return admission.committed_ids(position - prompt_size());
      }
      return last_token;
    }
  };

  // Passes over the model that every rank makes in a step, because at least one
  // data group needs them.
  struct Passes {
    bool any = false;        // At least one data group has rows.
    bool hidden = false;     // A request wants hidden states.
    bool reference = false;  // A request wants the float32 reference.
    std::vector<int> mtp;    // Number of MTP evaluations, by data group.
  };

  absl::Status Admit(const v1::Admission& admission);
  absl::Status Release(uint32_t slot);
  absl::Status RewindSequence(const v1::Rewind& rewind);
  absl::Status CheckCached(const v1::Admission& admission) const;
  // Gives the slot of `sequence` its cached prefix.
  void ShareCached(const v1::CachedPrefix& cached, uint32_t slot,
                   Sequence* sequence);
  absl::Status Grant(const v1::BlockGrant& grant);
  // Makes up the rows of an admission's synthetic positions.
  absl::Status Synthesize(const v1::Admission& admission);
  absl::StatusOr<Sequence*> ActiveSequence(uint32_t slot);
  // Collects the step's tokens in batch_.
  absl::Status AssembleBatch(const v1::StepPlan& plan);
  // Adds the next `rows` positions, which must lie in the slot's blocks. See
  // BatchSpan for `as_decodes`.
  absl::Status AppendSpan(uint32_t slot, Sequence& sequence, int rows,
                          bool as_decodes);
  // Checks a prefill or a replay of `count` of `left` ids. `what` names it.
  absl::Status CheckSpan(absl::string_view what, uint32_t slot, uint32_t count,
                         int left) const;
  // Adds to passes_ the passes that the scores of `count` prompt tokens need.
  void NoteScoring(uint32_t slot, const Sequence& sequence, uint32_t count);
  int GroupOf(uint32_t slot) const { return static_cast<int>(slot) / slots_; }
  bool IsOwn(uint32_t slot) const { return GroupOf(slot) == group_; }
  // Returns the sequence of a span of batch_.
  Sequence& SequenceOf(const BatchSpan& span) {
    return sequences_[group_ * slots_ + span.slot];
  }
  void CollectWantedRows();
  absl::Status EvaluateBatch(v1::StepResult* result);
  absl::Status ScoreSpans(v1::StepResult* result);
  absl::Status DrawAndAdvance(v1::StepResult* result);
  v1::SlotResult* ResultOf(const BatchSpan& span, v1::StepResult* result);

  const uint64_t epoch_;
  const ModelInstance main_;
  const ModelInstance reference_;
  const int slots_;  // In each data group.
  const int group_;
  const v1::PrefillStrategy prefill_strategy_;
  Scorer scorer_;
  uint64_t step_ = 0;
  std::vector<Sequence> sequences_;  // By slot, for all data groups.
  // Buffers of a step, which keep their memory for the next step.
  Batch batch_;
  std::vector<char> seen_;  // By slot. 1: the plan has named the slot.
  std::vector<uint32_t> wanted_rows_;
  Passes passes_;
  std::vector<DrawRequest> draws_;
  std::vector<const BatchSpan*> drawn_spans_;
  TokenDrawer drawer_;
  std::vector<float> hidden_;            // [rows, D]
  std::vector<float> reference_hidden_;  // [rows, D]
  std::vector<float> draw_hidden_;       // [draws, D]
  std::vector<float> draw_logits_;       // [draws, vocab (local)]
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_EXECUTOR_H_
