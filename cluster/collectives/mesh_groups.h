// SPDX-License-Identifier: Apache-2.0
// The communicators of a mesh's axes.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_

#include "cluster/collectives/exchange.h"
#include "cluster/model/mesh.h"

namespace ringfleet::cluster {

// The ranks of a rank's data group: all of them where there is one group.
Group DataGroupOf(const MeshShape& mesh, int rank);

// The ranks that have its place in each data group, by group.
Group DataAxisOf(const MeshShape& mesh, int rank);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_MESH_GROUPS_H_
