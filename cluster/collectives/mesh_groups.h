// SPDX-License-Identifier: Apache-2.0
// The groups of ranks along a mesh's axes.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_

#include "cluster/collectives/exchange.h"
#include "cluster/model/mesh.h"

namespace ringfleet::cluster {

// Returns the data group of `rank`: all ranks with the same position on the
// data axis. With mesh.data == 1, returns WorldGroup.
Group DataGroupOf(const MeshShape& mesh, int rank);

// Returns one rank of each data group, in the order of the data groups: all
// ranks with the position that `rank` has within its data group.
Group DataAxisOf(const MeshShape& mesh, int rank);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_
