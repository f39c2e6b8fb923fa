// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/survivors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// Returns the values of `ranks` out of all ranks' values; nothing stays
// nothing.
std::vector<double> Select(const std::vector<double>& values,
                           const std::vector<int>& ranks) {
  std::vector<double> selected;
  if (values.empty()) return selected;
  for (const int rank : ranks) {
    const size_t index = rank;
    selected.push_back(index < values.size() ? values[index] : 0);
  }
  return selected;
}

}  // namespace

absl::StatusOr<Survivors> FindSurvivors(const FleetOptions& options,
                                        const std::vector<int>& missing) {
  const cluster::MeshShape& mesh = options.mesh;
  std::vector<char> whole(mesh.data, 1);
  for (const int rank : missing) whole[rank / mesh.group_size()] = 0;
  Survivors survivors = {.options = options};
  std::vector<int> coordinates;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (whole[rank / mesh.group_size()] == 0) continue;
    survivors.ranks.push_back(rank);
    if (rank % mesh.tensor == 0) coordinates.push_back(rank / mesh.tensor);
  }
  if (coordinates.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("none of ", mesh.data, " data groups is whole"));
  }
  FleetOptions& narrowed = survivors.options;
  narrowed.mesh.data =
      static_cast<int>(std::count(whole.begin(), whole.end(), 1));
  narrowed.settings.set_parallel(options.GroupSlots() *
                                 static_cast<uint32_t>(narrowed.mesh.data));
  narrowed.memory_gib = Select(options.memory_gib, survivors.ranks);
  narrowed.read_gbps = Select(options.read_gbps, survivors.ranks);
  if (options.layout.num_layers() == 0) return survivors;  // No experts.
  std::vector<int> layers = options.experts.layers;
  if (options.experts.mtp) layers.push_back(options.experts.num_layers - 1);
  RF_ASSIGN_OR_RETURN(narrowed.layout, options.layout.Of(coordinates, layers));
  return survivors;
}

}  // namespace ringfleet::coordinator
