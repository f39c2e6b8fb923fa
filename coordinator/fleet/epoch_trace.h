// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_FLEET_EPOCH_TRACE_H_
#define RINGFLEET_COORDINATOR_FLEET_EPOCH_TRACE_H_

#include <functional>

#include "absl/status/status.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Records what the workers of an epoch do until `await_end` returns, which is
// called once all workers record. Calls `on_progress` by one thread at a time:
// with `started` before `await_end`, with each rank's description and events
// after it. Times are on this process's clock, from the start of the trace.
// False from `await_end`: nobody wants the events any more.
//
// Errors: those of a worker, by name.
absl::Status TraceEpoch(
    FleetEpoch& epoch, const v1::TraceRequest& request,
    const std::function<bool()>& await_end,
    const std::function<void(const v1::TraceProgress&)>& on_progress);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_EPOCH_TRACE_H_
