// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_FILE_ERROR_H_
#define RINGFLEET_CLUSTER_PROCESS_FILE_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// "WHAT: Permission denied": what the system reports of a file or a folder,
// `error` being its errno.
//
// PERMISSION_DENIED. RESOURCE_EXHAUSTED: no space left, a quota or a limit.
// INVALID_ARGUMENT: a path that cannot lead there. UNAVAILABLE: anything else.
absl::Status FileError(absl::string_view what, int error);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_FILE_ERROR_H_
