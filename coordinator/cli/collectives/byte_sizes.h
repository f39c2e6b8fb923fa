// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Parses sizes in bytes of vectors of 4-byte elements, such as
// "4,28k,1.8m,1GiB". Units k, m, g, KiB, MiB and GiB are powers of 1024; kB, MB
// and GB are powers of 1000. Letters may be upper or lower case. A size with a
// fraction is rounded down to a multiple of 4.
//
// Errors: INVALID_ARGUMENT: a size is not a number, has an unknown unit,
// exceeds 4 GiB, or has no fraction and is not a multiple of 4. The message
// names the size.
absl::StatusOr<std::vector<uint64_t>> ParseByteSizes(absl::string_view text);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_BYTE_SIZES_H_
