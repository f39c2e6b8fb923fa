// SPDX-License-Identifier: Apache-2.0
// Chooses the replicas of a layer's experts and their GPUs by measured loads.
// The results are those of DeepSeek's EPLB (github.com/deepseek-ai/EPLB), bit
// for bit. Rules decide all ties, so every host computes the same placement.
//
//   1. Groups of experts go to nodes. Copies of an expert stay on one node.
//   2. Each node's spare slots go, one by one, to the expert with the largest
//      load per copy.
//   3. A node's copies go to its GPUs, heaviest first, each to the GPU with the
//      least load that has a free slot.
//
// Arithmetic is float32. Sorting is descending and stable. Among equal loads
// the lowest index wins, both where the largest is chosen and where the least
// is chosen. Steps 1 and 3 put items (groups, copies) into packs (nodes, GPUs).
// If every pack holds one item and all speeds are equal, item i goes to pack i.
// The global policy is the hierarchical one with one group and one node.
//
// GPUs may differ. A GPU with more memory holds more slots (`gpu_slots`), and a
// GPU with more bandwidth reads its slots sooner (`gpu_speeds`). A node then
// gets groups in proportion to its slots. Every item goes to the pack whose
// load / speed is least once it holds the item. Ties go to the pack with the
// least load before, then to the lowest index. With equal GPUs this rule is
// step 3: all speeds, relative to the fastest, are 1, and adding one item to
// the load of each pack does not change which load is least.
//
// "GPU" and "node" are EPLB's words. A GPU is a worker here. A node is a group
// of workers that reach each other faster than the rest.
#ifndef RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_H_
#define RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ringfleet::cluster {

// Limits of a request: slots of a layer, and numbers in
// ExpertPlacement::log2phy.
inline constexpr int kMaxReplicas = 1 << 16;
inline constexpr int64_t kMaxPlacementEntries = int64_t{1} << 25;

enum class PlacementPolicy {
  kAuto,          // Hierarchical if num_groups is a multiple of num_nodes.
  kHierarchical,  // Copies of a group's experts stay on one node.
  kGlobal,        // Ignores groups and nodes.
};

struct PlacementRequest {
  int num_replicas = 0;  // Physical slots of a layer, on all GPUs together.
  int num_groups = 1;    // Consecutive experts, equally many each.
  int num_nodes = 1;     // Consecutive GPUs, equally many each.
  int num_gpus = 1;
  PlacementPolicy policy = PlacementPolicy::kAuto;
  // [num_gpus] each, or empty where all are alike.
  std::vector<int> gpu_slots;     // At least 1; num_replicas in all.
  std::vector<float> gpu_speeds;  // In any unit.
};

// Row-major. Slots are numbered GPU by GPU: without gpu_slots, slot p lives on
// GPU p / (num_replicas / num_gpus).
struct ExpertPlacement {
  int num_layers = 0;
  int num_experts = 0;  // Logical ones.
  int num_replicas = 0;
  int max_copies = 0;  // Most copies of one expert in a layer.
  bool hierarchical = false;
  // [num_gpus + 1] first slot of each GPU, then num_replicas
  std::vector<int> first_slots;
  std::vector<int32_t> phy2log;  // [layers, replicas] expert in a slot
  // [layers, experts, max_copies] slots of an expert's copies, in the order in
  // which it got them; then -1
  std::vector<int32_t> log2phy;
  std::vector<int32_t> logcnt;  // [layers, experts] copies, at least 1
};

// Places the experts of every layer, each layer on its own. `loads` [layers,
// num_experts] are the tokens of each expert, in any unit.
//
// Errors: INVALID_ARGUMENT, with value and expectation: a negative or infinite
// load, a NaN, a layer whose sum exceeds float32, or an impossible request.
absl::StatusOr<ExpertPlacement> PlaceExperts(absl::Span<const float> loads,
                                             int num_experts,
                                             const PlacementRequest& request);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PLACEMENT_PLACEMENT_H_
