// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_METRICS_FLEET_METRICS_H_
#define RINGFLEET_COORDINATOR_METRICS_FLEET_METRICS_H_

#include <string>

#include "coordinator/metrics/metrics_text.h"
#include "protos/cluster.pb.h"
#include "protos/types.pb.h"

namespace ringfleet::coordinator {

// Return the names in labels: "all_reduce", "one_shot". Unknown values are
// "unknown".
std::string LabelOf(v1::CollectiveOperation operation);
std::string LabelOf(v1::CollectiveAlgorithm algorithm);

// Appends the metrics of a fleet and its workers. `model` is the label of
// vLLM's metrics.
void AppendFleetMetrics(const v1::ClusterState& state, const std::string& model,
                        MetricsText* out);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_METRICS_FLEET_METRICS_H_
