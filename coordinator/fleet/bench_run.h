// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_FLEET_BENCH_RUN_H_
#define RINGFLEET_COORDINATOR_FLEET_BENCH_RUN_H_

#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "coordinator/fleet/fleet.h"
#include "coordinator/fleet/served_model.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator {

// Serves Coordinator.Bench on a fleet that is ready. `report` returns false
// when the caller has gone. `cancelled` is asked 20 times a second. Errors:
// those of the service. CANCELLED: the caller has gone, and the slots are being
// freed.
absl::Status RunBench(const v1::BenchRequest& request, const ServedModel& model,
                      Fleet& fleet, const std::function<bool()>& cancelled,
                      absl::FunctionRef<bool(const v1::BenchProgress&)> report);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_BENCH_RUN_H_
