// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/state_folder.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {

absl::StatusOr<std::string> StateFolder(absl::string_view fleet) {
  const char* const state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') {
    return absl::StrCat(state, "/ringfleet/", fleet);
  }
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') {
    return absl::StrCat(home, "/.local/state/ringfleet/", fleet);
  }
  return absl::InvalidArgumentError(
      "state folder: neither XDG_STATE_HOME nor HOME is set, want one");
}

}  // namespace ringfleet::coordinator
