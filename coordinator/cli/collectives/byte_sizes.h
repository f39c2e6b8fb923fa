// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Parses sizes of vectors of 4-byte elements, "4,28k,1.8m,1GiB". Powers of
// 1024: k, m, g, KiB, MiB, GiB. Powers of 1000: kB, MB, GB. Case does not
// matter. A number with a fraction is rounded down to whole elements.
//
// Errors: INVALID_ARGUMENT names the size: it is not a number, has an unknown
//   unit, is more than 4 GiB, or is a whole number that is no multiple of 4.
absl::StatusOr<std::vector<uint64_t>> ParseByteSizes(absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_
