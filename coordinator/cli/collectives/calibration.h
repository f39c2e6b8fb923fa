// SPDX-License-Identifier: Apache-2.0
// Turns measured times of the algorithms into the size borders between them.
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_

#include <cstdint>
#include <vector>

#include "cluster/collectives/algorithm_table.h"

namespace ringfleet::coordinator::cli {

struct CollectiveTiming {
  cluster::Operation operation = cluster::Operation::kAllReduce;
  cluster::Algorithm algorithm = cluster::Algorithm::kOneShot;
  uint64_t wire_bytes = 0;  // The whole vector as it travels.
  double microseconds = 0;
};

// Returns powers of two from 1 KiB, where only latency counts, to 16 MiB, where
// only bandwidth counts.
std::vector<uint64_t> CalibrationLadder();

// Returns the operations whose algorithm is chosen by size.
std::vector<cluster::Operation> CalibratedOperations();

// Returns the row for `operation` between `size` ranks: the pair of borders
// with the smallest product of times. A product is moved little by single
// outliers. A border lies at the geometric mean of the two sizes that it parts.
// The winner at the last size keeps all larger ones. Requires a timing of every
// algorithm of the operation at every size.
cluster::AlgorithmTable::Row FitRow(
    cluster::Operation operation, int size,
    const std::vector<CollectiveTiming>& timings);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_
