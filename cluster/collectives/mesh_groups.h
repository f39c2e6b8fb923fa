// SPDX-License-Identifier: Apache-2.0
// The communicators of a mesh's axes.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_

#include "cluster/collectives/exchange.h"
#include "cluster/model/mesh.h"

namespace ringfleet::cluster {

// Returns the ranks of a rank's data group: all ranks if there is one group.
Group DataGroupOf(const MeshShape& mesh, int rank);

// Returns the ranks that have the rank's coordinate within their data group, by
// data group.
Group DataAxisOf(const MeshShape& mesh, int rank);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_
