// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/mesh_groups.h"

#include <numeric>

namespace ringfleet::cluster {

Group DataGroupOf(const MeshShape& mesh, int rank) {
  if (mesh.data == 1) return WorldGroup(mesh.world_size());
  const int size = mesh.group_size();
  const int data_group = rank / size;
  Group group;
  group.id = static_cast<uint32_t>(1 + data_group);
  group.ranks.resize(size);
  std::iota(group.ranks.begin(), group.ranks.end(), data_group * size);
  return group;
}

Group DataAxisOf(const MeshShape& mesh, int rank) {
  const int size = mesh.group_size();
  Group group;
  group.id = static_cast<uint32_t>(1 + mesh.data + rank % size);
  for (int r = rank % size; r < mesh.world_size(); r += size) {
    group.ranks.push_back(r);
  }
  return group;
}

}  // namespace ringfleet::cluster
