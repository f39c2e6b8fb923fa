// SPDX-License-Identifier: Apache-2.0
// Every rank of a data group computes each of its tokens. That all of them
// report the same is the last check before a token leaves the fleet.
#ifndef RINGFLEET_COORDINATOR_FLEET_STEP_MERGE_H_
#define RINGFLEET_COORDINATOR_FLEET_STEP_MERGE_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// The result of one step, given by `ranks` of the fleet, in their order, of
// which each `group_size` are a data group and know of its slots only;
// probabilities and scores are those of a group's first rank, the bytes read
// are everybody's sum. Entries with neither tokens nor an end carry no decision
// and may be absent on other ranks. Requires at least one result.
//
// Errors: INTERNAL when two ranks differ in epoch or step, or two of a group in
// slots, tokens or ends, or when groups name the same slot; names both ranks,
// the step, the slot and the two values.
absl::StatusOr<v1::StepResult> MergeStepResults(
    absl::Span<const v1::StepResult> results, absl::Span<const int> ranks,
    size_t group_size);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_STEP_MERGE_H_
