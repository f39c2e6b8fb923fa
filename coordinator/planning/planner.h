// SPDX-License-Identifier: Apache-2.0
// Plans a model on a fleet: the mesh that fits, and its speed. Plans follow
// from dimensions and rates alone; nothing is read.
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

// Memory that a worker keeps free beside weights and cache for activations,
// buffers of the links, code and stacks. worker/execution/loaded_shard.cc
// refuses a load with less.
inline constexpr uint64_t kPlannedBufferBytes = uint64_t{256} << 20;
// The most hosts that are planned for or searched.
inline constexpr int kMaxPlannedHosts = 64;

struct PlanRequest {
  CostInputs inputs;  // Hosts: 1 to kMaxPlannedHosts.
  // `batch` sequences with `context` cached positions each generate together;
  // a prompt of `context` tokens is evaluated for itself.
  int64_t context = 1;
  int64_t batch = 1;
  int64_t prefill_chunk = 512;  // Prompt tokens of a step.
};

// The contents of a rank's memory.
struct RankMemory {
  cluster::ShardSizes weights;
  uint64_t cache_bytes = 0;
  uint64_t buffer_bytes = 0;
  int64_t free_bytes = 0;  // Negative: so many are missing.
};

struct Candidate {
  Strategy strategy;
  bool fits = false;
  bool runnable = false;
  // Tokens per second, of the whole batch and of one prompt; also predicted
  // for what does not fit.
  double decode_tps = 0;
  double prefill_tps = 0;
  StepCost decode;
  StepCost prompt;  // The first step of the prompt.
  std::vector<RankMemory> ranks;
  std::string why_not;  // Against the plan's choice; empty for that itself.
};

// The smallest fleet of hosts like the least of the request's that would do.
struct HostsNeeded {
  int hosts = 0;
  cluster::MeshShape mesh;
};

struct FleetPlan {
  bool fits = false;  // The choice does.
  // The fastest to decode of what fits and workers can run; else the fastest
  // mesh that fits; else the mesh that lacks least.
  Candidate choice;
  std::vector<Candidate> alternatives;  // Fastest first.
  // Positions of all sequences together that fit beside the weights.
  uint64_t max_positions = 0;
  std::optional<HostsNeeded> hosts_needed;  // Unless it fits.
};
FleetPlan MakeFleetPlan(const PlanRequest& request);

// The best mesh of a fleet of `hosts` hosts like the least of the request's.
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
std::vector<TableCell> PlanTable(const PlanRequest& request,
                                 const std::vector<int>& hosts,
                                 const std::vector<int64_t>& batches,
                                 const std::vector<int64_t>& contexts);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_PLANNING_PLANNER_H_
