// SPDX-License-Identifier: Apache-2.0
// The arrangement of a fleet's ranks on three axes.
#ifndef RINGFLEET_CLUSTER_MODEL_MESH_H_
#define RINGFLEET_CLUSTER_MODEL_MESH_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// Largest number of ranks. More ranks are not tested, and a ring over them is
// slow.
inline constexpr int kMaxWorkers = 16;

// The sizes of the three axes. The rank at (d, e, t) is
// (d * expert + e) * tensor + t.
struct MeshShape {
  int data = 1;
  int expert = 1;
  int tensor = 1;
  int world_size() const { return data * expert * tensor; }
  // Returns the number of ranks in a data group.
  int group_size() const { return expert * tensor; }
  // Returns the number of coordinates on data x expert. The `tensor` ranks of
  // one coordinate divide the columns of its experts.
  int num_coordinates() const { return data * expert; }
};

// Parses "1x4x2": DATAxEXPERTxTENSOR. INVALID_ARGUMENT: another text, or an
// axis that is not 1 to kMaxWorkers.
absl::StatusOr<MeshShape> ParseMesh(absl::string_view text);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_MESH_H_
