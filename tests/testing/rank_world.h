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
  bool native = false;  // LoadOptions::native.
  cluster::Wire wire = cluster::Wire::kF32;
  v1::PrefillStrategy prefill_strategy = v1::PREFILL_STRATEGY_AUTO;
  size_t fuse_rows = worker::ModelSettings().fuse_rows;
  int slots = 4;
  int context = 512;
  int threads = 1;
  bool reference = false;
  v1::ExpertLayout experts;
  double expert_capacity = 0;
  bool reproducible = false;
  worker::TunedTiles tiles;
};

// Adds to `plan` the blocks of `context` positions for each admitted slot. A
// data group has `slots` slots. Slots have blocks of their own.
void GrantContext(int slots, int context, v1::StepPlan* plan);

// All ranks of a model in one process. Each rank has a shard, a cache and an
// executor. A step runs every rank on its own thread.
class RankWorld {
 public:
  static constexpr uint64_t kEpoch = 7;

  RankWorld(const std::string& model_dir, const RankWorldOptions& options);
  ~RankWorld();

  // Runs one plan on every rank and returns each rank's result, by rank. Sets
  // the plan's epoch and step if they are 0. Grants admitted slots the blocks
  // of their context if the plan has no grant. Fails the test on an error. Data
  // group d has slots [d * options.slots, (d + 1) * options.slots).
  std::vector<v1::StepResult> Step(v1::StepPlan plan);
  // Runs one plan like Step. Returns the statuses by rank, and does not fail
  // the test.
  std::vector<absl::Status> TryStep(v1::StepPlan plan,
                                    std::vector<v1::StepResult>* results);

  // Moves the experts of all ranks to the layout `next`. Loads the experts from
  // the checkpoint.
  void MoveExperts(const cluster::ExpertLayout& next);
  const cluster::ExpertLayout& experts() const;

  // Returns the number of tokens of each expert that `rank` has counted since
  // the start, [layer][expert].
  const std::vector<std::vector<uint64_t>>& ExpertCounts(int rank) const;

  // Returns the number of routes that `rank` has dropped since the start, by
  // layer.
  const std::vector<uint64_t>& DroppedCounts(int rank) const;

  // Returns the segment_bytes of all streaming operations so far. 0: no cut.
  const std::set<size_t>& SegmentBytes(int rank) const;
  // Returns the `check` arguments of all reduce-scatters so far.
  const std::set<uint64_t>& Checks(int rank) const;

  const cluster::ModelSpec& spec() const { return spec_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int data_group(int rank) const;

 private:
  struct Instance;
  struct Rank;

  cluster::ModelSpec spec_;
  std::unique_ptr<cluster::Checkpoint> checkpoint_;
  // Worlds that ranks share: the ranks of each data group, and the ranks at one
  // coordinate of all data groups.
  std::vector<std::unique_ptr<MemoryWorld>> groups_;
  std::vector<std::unique_ptr<MemoryWorld>> axes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  const int slots_;  // Of a data group.
  const int context_;
  uint64_t step_ = 0;
};

// Scores `ids` in slot 0, in spans of `span` tokens. Returns the joined results
// of rank 0.
v1::ScoreResult ScorePrompt(RankWorld& world, const std::vector<uint32_t>& ids,
                            const v1::ScoreOptions& options, int span);

struct GeneratedTokens {
  std::vector<uint32_t> ids;
  std::vector<float> logprobs;
};

// Generates tokens in slot 0. Expects equal tokens from all ranks.
GeneratedTokens GenerateTokens(RankWorld& world,
                               const std::vector<uint32_t>& ids,
                               const v1::SamplingParams& sampling, int count,
                               int span);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_RANK_WORLD_H_
