// SPDX-License-Identifier: Apache-2.0
// From measured times of the algorithms to the borders between them.
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_

#include <cstdint>
#include <vector>

#include "cluster/collectives/algorithm_table.h"

namespace ringfleet::coordinator::cli {

struct CollectiveTiming {
  cluster::Operation operation = cluster::Operation::kAllReduce;
  cluster::Algorithm algorithm = cluster::Algorithm::kOneShot;
  uint64_t wire_bytes = 0;  // Of the whole vector as it travels.
  double microseconds = 0;
};

// Powers of two from 1 KiB, where only latency counts, to 16 MiB, where only
// bandwidth does.
std::vector<uint64_t> CalibrationLadder();

// Operations whose algorithm is chosen by size.
std::vector<cluster::Operation> CalibratedOperations();

// The row for `operation` between `size` ranks whose choices lose least: among
// all pairs of borders the one with the smallest product of times, which single
// outliers move little. A border lies at the geometric mean of the two sizes
// that it parts; beyond the last size the winner there keeps everything.
// Requires a timing of every algorithm that there is for every size measured.
cluster::AlgorithmTable::Row FitRow(
    cluster::Operation operation, int size,
    const std::vector<CollectiveTiming>& timings);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_CALIBRATION_H_
