// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_FILE_ERROR_H_
#define RINGFLEET_CLUSTER_PROCESS_FILE_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// Returns "WHAT: Permission denied" for the errno `error` of a call on a file
// or a folder.
//
// Codes:
//   PERMISSION_DENIED.
//   RESOURCE_EXHAUSTED: no space is left, or a quota or a limit is reached.
//   INVALID_ARGUMENT: the path cannot lead to a file.
//   UNAVAILABLE: anything else.
absl::Status FileError(absl::string_view what, int error);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_FILE_ERROR_H_
