// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Sizes of vectors of 4-byte elements, "4,28k,1.8m,1GiB": k, m, g (and KiB,
// MiB, GiB) count in powers of 1024, kB, MB, GB in powers of 1000; case does
// not matter. A number with a fraction is rounded down to whole elements.
//
// Errors: INVALID_ARGUMENT names the size: not a number, an unknown unit, more
// than 4 GiB, or a whole number of bytes that is no multiple of 4.
absl::StatusOr<std::vector<uint64_t>> ParseByteSizes(absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_
