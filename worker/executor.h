// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_EXECUTOR_H_
#define RINGFLEET_WORKER_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/sampling.h"
#include "protos/worker.pb.h"
#include "worker/kv_cache.h"
#include "worker/model.h"
#include "worker/sampler.h"
#include "worker/scorer.h"

namespace ringfleet::worker {

// A model with the cache it writes.
struct ModelInstance {
  Model* model = nullptr;
  KvCache* cache = nullptr;
};

// Executes step plans. Keeps every sequence's state (length, last token, end)
// in its slot and advances it as all other ranks do, so a plan never names
// them. One thread calls it.
class Executor {
 public:
  // `reference` has null pointers unless a plain float32 copy is loaded.
  Executor(uint64_t epoch, ModelInstance main, ModelInstance reference,
           int slots);

  // Runs one step and fills `result`. After an error the epoch is over.
  // Errors: INVALID_ARGUMENT for a plan that no coordinator should send (names
  // step, slot and what is wrong); FAILED_PRECONDITION for another epoch or a
  // step out of order; else of the model.
  absl::Status Step(const v1::StepPlan& plan, v1::StepResult* result);

  uint64_t steps() const { return step_; }

 private:
  struct Sequence {
    bool active = false;
    bool ended = false;
    v1::Admission admission;
    int length = 0;           // Positions in the cache.
    uint32_t last_token = 0;  // Drawn, not yet in the cache.
    uint32_t generated = 0;

    int prompt_size() const { return admission.prompt_ids_size(); }
    bool InPrompt() const { return length < prompt_size(); }
  };

  absl::Status Admit(const v1::Admission& admission);
  absl::Status Release(uint32_t slot);
  absl::Status RewindSequence(const v1::Rewind& rewind);
  absl::StatusOr<Sequence*> ActiveSequence(uint32_t slot);
  // Collects the step's tokens into batch_ and gives them cache blocks.
  absl::Status AssembleBatch(const v1::StepPlan& plan);
  void AppendSegment(uint32_t slot, Sequence& sequence, int rows);
  void CollectWantedRows();
  absl::Status EvaluateBatch(v1::StepResult* result);
  absl::Status ScoreSegments(v1::StepResult* result);
  absl::Status DrawAndAdvance(v1::StepResult* result);
  v1::SlotResult* ResultOf(int slot, v1::StepResult* result);

  const uint64_t epoch_;
  const ModelInstance main_;
  const ModelInstance reference_;
  Scorer scorer_;
  uint64_t step_ = 0;
  std::vector<Sequence> sequences_;  // By slot.
  // Buffers of a step, which the next one uses again.
  Batch batch_;
  std::vector<char> seen_;  // By slot: it is in batch_.
  std::vector<uint32_t> wanted_rows_;
  std::vector<DrawRequest> draws_;
  std::vector<int> draw_slots_;
  TokenDrawer drawer_;
  std::vector<float> hidden_;            // [rows, D]
  std::vector<float> reference_hidden_;  // [rows, D]
  std::vector<float> draw_hidden_;       // [draws, D]
  std::vector<float> draw_logits_;       // [draws, vocab (local)]
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTOR_H_
