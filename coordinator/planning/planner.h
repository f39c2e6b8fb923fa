// SPDX-License-Identifier: Apache-2.0
// Plans a model on a fleet: finds a mesh whose ranks fit into the hosts'
// memory, and predicts its speed. Computes with the model's dimensions and the
// hosts' rates, and reads no file.
#ifndef RINGFLEET_COORDINATOR_PLANNING_PLANNER_H_
#define RINGFLEET_COORDINATOR_PLANNING_PLANNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/model/shard_sizes.h"
#include "coordinator/planning/step_cost.h"
#include "coordinator/planning/strategy_cost.h"

namespace ringfleet::coordinator {

// Bytes that a worker keeps free besides weights and cache: for activations,
// buffers of the links, code and stacks. A load fails if less would be free
// (worker/execution/loaded_shard.cc).
inline constexpr uint64_t kPlannedBufferBytes = uint64_t{256} << 20;
// Largest number of hosts in a plan.
inline constexpr int kMaxPlannedHosts = 64;

struct PlanRequest {
  CostInputs inputs;  // Hosts: 1 to kMaxPlannedHosts.
  // The planned load. In a decode step, `batch` sequences with `context` cached
  // positions each generate one token. A prompt has `context` tokens and is
  // evaluated without other sequences.
  int64_t context = 1;
  int64_t batch = 1;
  int64_t prefill_chunk = 512;  // Prompt tokens in each step.
};

// The use of one rank's memory.
struct RankMemory {
  cluster::ShardSizes weights;
  uint64_t cache_bytes = 0;
  uint64_t buffer_bytes = 0;
  int64_t free_bytes = 0;  // Negative: the number of missing bytes.
};

// A strategy with its predicted speed and memory.
struct Candidate {
  Strategy strategy;
  bool fits = false;      // No rank lacks memory.
  bool runnable = false;  // Strategy::IsRunnable.
  // Tokens per second, of the whole batch in decode and of one prompt in
  // prefill. Also predicted for a strategy that does not fit.
  double decode_tps = 0;
  double prefill_tps = 0;
  StepCost decode;
  StepCost prompt;                // The first step of the prompt.
  std::vector<RankMemory> ranks;  // By rank.
  // Reason for which the plan has another choice. Empty for the choice.
  std::string why_not;
};

// The smallest fleet that fits if every host has the least of every field over
// the request's hosts.
struct HostsNeeded {
  int hosts = 0;
  cluster::MeshShape mesh;
};

struct FleetPlan {
  bool fits = false;  // The choice fits.
  // The mesh with the fastest decode among meshes that fit and that workers can
  // run. If there is none: the fastest among meshes that fit. If none fits: the
  // mesh whose worst rank lacks the fewest bytes.
  Candidate choice;
  std::vector<Candidate> alternatives;  // Fastest decode first.
  // Number of cached positions of all sequences together that fit besides the
  // weights.
  uint64_t max_positions = 0;
  // Unset if the choice fits, or if kMaxPlannedHosts hosts are not enough.
  std::optional<HostsNeeded> hosts_needed;
};
// Returns the plan of a request. Requires batch >= 1 and context >= 1.
FleetPlan MakeFleetPlan(const PlanRequest& request);

// The best mesh on `hosts` hosts that each have the least of every field over
// the request's hosts.
struct TableCell {
  int hosts = 0;
  int64_t batch = 0;
  int64_t context = 0;
  bool fits = false;
  bool runnable = false;
  cluster::MeshShape mesh;
  double decode_tps = 0;
  double prefill_tps = 0;
};
// Returns a cell for each combination of `hosts`, `batches` and `contexts`.
// `contexts` vary fastest.
std::vector<TableCell> PlanTable(const PlanRequest& request,
                                 const std::vector<int>& hosts,
                                 const std::vector<int64_t>& batches,
                                 const std::vector<int64_t>& contexts);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_PLANNING_PLANNER_H_
