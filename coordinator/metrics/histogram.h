// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_METRICS_HISTOGRAM_H_
#define RINGFLEET_COORDINATOR_METRICS_HISTOGRAM_H_

#include <cstdint>

#include "absl/types/span.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

// Returns an empty histogram. `bounds` must rise.
v1::Histogram MakeHistogram(absl::Span<const double> bounds);

// Counts one value. A value that equals a bound belongs to the bound's class.
void Count(double value, v1::Histogram* histogram);

// Returns how many values were counted.
uint64_t CountOf(const v1::Histogram& histogram);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_METRICS_HISTOGRAM_H_
