// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_JSON_DEPTH_H_
#define RINGFLEET_CLUSTER_PROCESS_JSON_DEPTH_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// Most levels of nested arrays and objects. No file of a checkpoint or of this
// program needs ten. A level takes a few hundred bytes of the stack.
inline constexpr int kMaxJsonDepth = 64;

// Checks text from outside before it is parsed. The parser takes any depth.
// Copying, comparing and printing a value recurse once a level, so a deep value
// overflows the stack. Text that is not JSON may pass: the parser finds it.
//
// INVALID_ARGUMENT names the limit and the byte.
absl::Status CheckJsonDepth(absl::string_view json);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_JSON_DEPTH_H_
