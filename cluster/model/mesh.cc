// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/mesh.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ringfleet::cluster {

absl::StatusOr<MeshShape> ParseMesh(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
  MeshShape mesh;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &mesh.data) ||
      !absl::SimpleAtoi(parts[1], &mesh.expert) ||
      !absl::SimpleAtoi(parts[2], &mesh.tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "', want DATAxEXPERTxTENSOR as in 1x4x2"));
  }
  // Bounds the product that world_size() forms.
  for (const int axis : {mesh.data, mesh.expert, mesh.tensor}) {
    if (axis < 1 || axis > kMaxWorkers) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", text, "': axis of ", axis, ", want 1 to ", kMaxWorkers));
    }
  }
  return mesh;
}

}  // namespace ringfleet::cluster
