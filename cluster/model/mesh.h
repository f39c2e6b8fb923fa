// SPDX-License-Identifier: Apache-2.0
// The arrangement of a fleet's ranks on three axes.
#ifndef RINGFLEET_CLUSTER_MODEL_MESH_H_
#define RINGFLEET_CLUSTER_MODEL_MESH_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// More ranks than this are not tested, and a ring over them is slow.
inline constexpr int kMaxWorkers = 16;

// Ranks are arranged as data x expert x tensor, tensor fastest.
struct MeshShape {
  int data = 1;
  int expert = 1;
  int tensor = 1;
  int world_size() const { return data * expert * tensor; }
  // Ranks of a data group.
  int group_size() const { return expert * tensor; }
  // Coordinates on data x expert. The `tensor` ranks of one coordinate share
  // the columns of its experts.
  int num_coordinates() const { return data * expert; }
};

// Parses "1x4x2": DATAxEXPERTxTENSOR.
// Errors: INVALID_ARGUMENT: not that, or an axis that is not 1 to kMaxWorkers.
absl::StatusOr<MeshShape> ParseMesh(absl::string_view text);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_MESH_H_
