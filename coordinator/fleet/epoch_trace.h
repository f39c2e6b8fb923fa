// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_FLEET_EPOCH_TRACE_H_
#define RINGFLEET_COORDINATOR_FLEET_EPOCH_TRACE_H_

#include <functional>

#include "absl/status/status.h"
#include "coordinator/fleet/fleet_epoch.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Records the work of an epoch's workers. Once all workers record, `await_end`
// is called; the recording ends when it returns. `await_end` returns false if
// nobody wants the events any more. One thread at a time calls `on_progress`:
// with `started` before `await_end`, with each rank's description and events
// after it. Times are on this process's clock, from the start of the trace.
//
// Errors: those of a worker, by name.
absl::Status TraceEpoch(
    FleetEpoch& epoch, const v1::TraceRequest& request,
    const std::function<bool()>& await_end,
    const std::function<void(const v1::TraceProgress&)>& on_progress);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_EPOCH_TRACE_H_
