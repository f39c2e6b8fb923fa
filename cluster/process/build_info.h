// SPDX-License-Identifier: Apache-2.0
// The build of this binary. All processes of a fleet compute the same bits only
// when they are the same build.
#ifndef RINGFLEET_CLUSTER_PROCESS_BUILD_INFO_H_
#define RINGFLEET_CLUSTER_PROCESS_BUILD_INFO_H_

#include "protos/types.pb.h"

namespace ringfleet::cluster {

// Returns the version, and a hash of version, compiler, build flags and the
// commit that was configured.
v1::BuildInfo GetBuildInfo();

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_BUILD_INFO_H_
