// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/build_info.h"

#include <string>

namespace ringfleet::cluster {
namespace {

// Tests of version skew change the id behind the text in a copy of a binary.
// It is volatile so that the compiler does not spread it over the code.
const volatile char kMarkedBuildId[] = "ringfleet build " RINGFLEET_BUILD_ID;
constexpr size_t kMarkBytes = sizeof("ringfleet build ") - 1;

}  // namespace

v1::BuildInfo GetBuildInfo() {
  std::string id;
  for (size_t i = kMarkBytes; i + 1 < sizeof(kMarkedBuildId); ++i) {
    id.push_back(kMarkedBuildId[i]);
  }
  v1::BuildInfo info;
  info.set_version(RINGFLEET_VERSION);
  info.set_build_id(id);
  return info;
}

}  // namespace ringfleet::cluster
