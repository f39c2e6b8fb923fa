// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTION_EXECUTOR_H_
#define RINGFLEET_WORKER_EXECUTION_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/sampling.h"
#include "protos/worker.pb.h"
#include "worker/execution/sampler.h"
#include "worker/execution/scorer.h"
#include "worker/model/kv_cache.h"
#include "worker/model/model.h"

namespace ringfleet::worker {

// A model and the cache that it writes.
struct ModelInstance {
  Model* model = nullptr;
  KvCache* cache = nullptr;
};

// Executes step plans. Keeps the state of every sequence of its data group by
// slot: length, last token, end. All ranks of the group advance the state
// alike, so plans never name it. For sequences of other groups the executor
// keeps only the facts in the plans. These facts suffice to enter the same
// passes over the model. Belongs to one thread.
class Executor {
 public:
  // `slots` is the number of slots of one data group. Group d has slots
  // [d * slots, (d + 1) * slots). `reference` has null pointers unless a
  // float32 copy is loaded. `prefill_strategy` is the fleet's.
  Executor(uint64_t epoch, ModelInstance main, ModelInstance reference,
           int slots, v1::PrefillStrategy prefill_strategy);

  // Runs one step and fills `result`. After an error the epoch is over.
  // Errors: INVALID_ARGUMENT: a plan that no coordinator should send; names
  // step, slot and fault. FAILED_PRECONDITION: another epoch, or a step out of
  // order. Those of the model.
  absl::Status Step(const v1::StepPlan& plan, v1::StepResult* result);

  uint64_t steps() const { return step_; }

 private:
  struct Sequence {
    bool active = false;
    bool ended = false;
    bool failed = false;  // By a fault of its own.
    v1::Admission admission;
    int length = 0;           // Positions in the cache.
    uint32_t last_token = 0;  // Drawn, not yet in the cache.
    uint32_t generated = 0;   // Committed ids count.

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

  // Passes over the model that a step makes on every rank, because at least one
  // data group needs them.
  struct Passes {
    bool any = false;        // Some group has rows.
    bool hidden = false;     // Hidden states are observed.
    bool reference = false;  // The reference evaluates the rows too.
    std::vector<int> mtp;    // Evaluations of the MTP layer, by data group.
  };

  absl::Status Admit(const v1::Admission& admission);
  absl::Status Release(uint32_t slot);
  absl::Status RewindSequence(const v1::Rewind& rewind);
  absl::StatusOr<Sequence*> ActiveSequence(uint32_t slot);
  // Collects the step's tokens in batch_ and extends their slots' cache.
  absl::Status AssembleBatch(const v1::StepPlan& plan);
  // Adds the next `rows` positions. See BatchSpan for `as_decodes`.
  void AppendSpan(uint32_t slot, Sequence& sequence, int rows, bool as_decodes);
  // Checks a prefill or a replay of `count` of `left` ids. `what` names it.
  absl::Status CheckSpan(absl::string_view what, uint32_t slot, uint32_t count,
                         int left) const;
  // Adds the passes that scoring `count` prompt tokens takes.
  void NoteScoring(uint32_t slot, const Sequence& sequence, uint32_t count);
  int GroupOf(uint32_t slot) const { return static_cast<int>(slot) / slots_; }
  bool IsOwn(uint32_t slot) const { return GroupOf(slot) == group_; }
  // Returns the sequence of a span.
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
  // Buffers of a step, kept for the next one.
  Batch batch_;
  std::vector<char> seen_;  // By slot: the plan has named it.
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
