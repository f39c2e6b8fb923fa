// SPDX-License-Identifier: Apache-2.0
// Every rank of a data group computes each of the group's tokens. Their
// agreement is the last check before a token leaves the fleet.
#ifndef RINGFLEET_COORDINATOR_FLEET_STEP_MERGE_H_
#define RINGFLEET_COORDINATOR_FLEET_STEP_MERGE_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Merges the results of one step. `ranks`: the fleet's rank of each result.
// Each `group_size` consecutive ranks are a data group and report its slots
// only. The probabilities and scores are those of a group's first rank. The
// bytes read and sent are the sums over all ranks. Entries with neither tokens
// nor an end carry no decision and may be absent on other ranks. Requires at
// least one result.
//
// Errors: INTERNAL: two ranks differ in epoch or step, two ranks of a group
// differ in slots, tokens or ends, or two groups name one slot. The message
// names both ranks, the step, the slot and the two values.
absl::StatusOr<v1::StepResult> MergeStepResults(
    absl::Span<const v1::StepResult> results, absl::Span<const int> ranks,
    size_t group_size);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_STEP_MERGE_H_
