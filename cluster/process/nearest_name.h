// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_NEAREST_NAME_H_
#define RINGFLEET_CLUSTER_PROCESS_NEAREST_NAME_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ringfleet::cluster {

// Returns the known name that somebody who wrote `name` most likely meant: the
// one with the fewest edited characters, the first of several. Returns "" if
// none is near, which is 2 edits, or a third of a longer name.
absl::string_view NearestName(absl::string_view name,
                              absl::Span<const absl::string_view> known);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_NEAREST_NAME_H_
