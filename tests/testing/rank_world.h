// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_RANK_WORLD_H_
#define RINGFLEET_TESTS_TESTING_RANK_WORLD_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/expert_layout.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "kernels/thread_pool.h"
#include "protos/worker.pb.h"
#include "tests/testing/memory_communicator.h"
#include "worker/execution/executor.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"

namespace ringfleet::testing {

struct RankWorldOptions {
  cluster::MeshShape mesh;
  kernels::WeightForm form = kernels::WeightForm::kF32;
  cluster::Wire wire = cluster::Wire::kF32;
  v1::PrefillStrategy prefill_strategy = v1::PREFILL_STRATEGY_AUTO;
  size_t fuse_rows = worker::ModelSettings().fuse_rows;
  int slots = 4;
  int context = 512;
  int threads = 1;
  bool reference = false;
  v1::ExpertLayout experts;
  double expert_capacity = 0;
  worker::TunedTiles tiles;
};

// All ranks of a model in one process, each with its shard, cache and
// executor, on threads while a step runs.
class RankWorld {
 public:
  static constexpr uint64_t kEpoch = 7;

  RankWorld(const std::string& model_dir, const RankWorldOptions& options);
  ~RankWorld();

  // Runs one plan on every rank (epoch and step are filled in where they are
  // 0) and returns each rank's result. Fails the test on an error. Slots of the
  // data group d are [d * options.slots, (d + 1) * options.slots).
  std::vector<v1::StepResult> Step(v1::StepPlan plan);
  // The same, but returns the statuses.
  std::vector<absl::Status> TryStep(v1::StepPlan plan,
                                    std::vector<v1::StepResult>* results);

  // Moves experts on all ranks, from the checkpoint.
  void MoveExperts(const cluster::ExpertLayout& next);
  const cluster::ExpertLayout& experts() const;

  // Tokens that `rank` has routed since the start, [layer][expert].
  const std::vector<std::vector<uint64_t>>& ExpertCounts(int rank) const;

  // Of these, by layer, what was beyond the capacity.
  const std::vector<uint64_t>& DroppedCounts(int rank) const;

  // What exchanges beside products were asked to cut by; 0: nothing.
  const std::set<size_t>& SegmentBytes(int rank) const;
  // What ranks have compared with reductions that scatter their sums.
  const std::set<uint64_t>& Checks(int rank) const;

  const cluster::ModelSpec& spec() const { return spec_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int data_group(int rank) const;

 private:
  struct Instance;
  struct Rank;

  cluster::ModelSpec spec_;
  std::unique_ptr<cluster::Checkpoint> checkpoint_;
  // By data group, and by rank within a group: what their ranks share.
  std::vector<std::unique_ptr<MemoryWorld>> groups_;
  std::vector<std::unique_ptr<MemoryWorld>> axes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  uint64_t step_ = 0;
};

// Scores `ids` in slot 0 in spans of `span` tokens; rank 0's results, joined.
v1::ScoreResult ScorePrompt(RankWorld& world, const std::vector<uint32_t>& ids,
                            const v1::ScoreOptions& options, int span);

struct GeneratedTokens {
  std::vector<uint32_t> ids;
  std::vector<float> logprobs;
};

// Generates in slot 0; expects the same tokens from every rank.
GeneratedTokens GenerateTokens(RankWorld& world,
                               const std::vector<uint32_t>& ids,
                               const v1::SamplingParams& sampling, int count,
                               int span);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RANK_WORLD_H_
