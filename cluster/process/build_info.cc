// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/build_info.h"

#include <cstdlib>

namespace ringfleet::cluster {

v1::BuildInfo GetBuildInfo() {
  v1::BuildInfo info;
  info.set_version(RINGFLEET_VERSION);
  const char* replaced = std::getenv("RINGFLEET_BUILD_ID");
  info.set_build_id(replaced != nullptr ? replaced : RINGFLEET_BUILD_ID);
  return info;
}

}  // namespace ringfleet::cluster
