// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_SERVICE_STATE_FOLDER_H_
#define RINGFLEET_COORDINATOR_SERVICE_STATE_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// Returns the folder of a fleet's state on this host, for this user:
// $XDG_STATE_HOME/ringfleet/FLEET if the variable is set, else
// ~/.local/state/ringfleet/FLEET. Does not make it. INVALID_ARGUMENT: neither
// the variable nor HOME is set.
absl::StatusOr<std::string> StateFolder(absl::string_view fleet);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_STATE_FOLDER_H_
