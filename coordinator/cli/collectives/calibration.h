// SPDX-License-Identifier: Apache-2.0
// Turns measured times of algorithms into borders: the sizes at which the best
// algorithm changes.
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_

#include <cstdint>
#include <vector>

#include "cluster/collectives/algorithm_table.h"

namespace ringfleet::coordinator::cli {

// The time of one algorithm at one size.
struct CollectiveTiming {
  cluster::Operation operation = cluster::Operation::kAllReduce;
  cluster::Algorithm algorithm = cluster::Algorithm::kOneShot;
  uint64_t wire_bytes = 0;  // Size of the whole vector on the wire.
  double microseconds = 0;
};

// Returns the sizes to measure: powers of two from 1 KiB to 16 MiB. Latency
// decides the time at 1 KiB, and bandwidth at 16 MiB.
std::vector<uint64_t> CalibrationLadder();

// Returns the operations whose algorithm depends on the size.
std::vector<cluster::Operation> CalibratedOperations();

// Returns the table's row for `operation` between `size` ranks. Chooses the
// pair of borders for which the product of the times at all sizes is smallest.
// A single outlier changes a product less than a sum. A border lies at the
// geometric mean of the sizes below and above it. The algorithm of the largest
// measured size also serves larger sizes. Requires a timing of every algorithm
// of the operation at every size.
cluster::AlgorithmTable::Row FitRow(
    cluster::Operation operation, int size,
    const std::vector<CollectiveTiming>& timings);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_
