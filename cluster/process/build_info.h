// SPDX-License-Identifier: Apache-2.0
// What this binary is. All processes of a fleet compute the same bits only
// when they are the same build.
#ifndef RINGFLEET_CLUSTER_PROCESS_BUILD_INFO_H_
#define RINGFLEET_CLUSTER_PROCESS_BUILD_INFO_H_

#include "protos/types.pb.h"

namespace ringfleet::cluster {

// Version, and a hash of version, compiler, build flags and the commit that
// was configured. The environment variable RINGFLEET_BUILD_ID replaces the
// hash, for tests of what a fleet does with another build.
v1::BuildInfo GetBuildInfo();

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_BUILD_INFO_H_
