// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/calibration.h"

#include <cmath>
#include <limits>
#include <map>

namespace ringfleet::coordinator::cli {
namespace {

using cluster::Algorithm;
using cluster::Operation;

// The border between the first `count` of `sizes` and the others.
uint64_t BorderAfter(const std::vector<uint64_t>& sizes, size_t count) {
  if (count == 0) return 0;
  if (count == sizes.size()) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(std::sqrt(static_cast<double>(sizes[count - 1]) *
                                         static_cast<double>(sizes[count])));
}

}  // namespace

std::vector<uint64_t> CalibrationLadder() {
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 1 << 10; bytes <= 16 << 20; bytes *= 2) {
    sizes.push_back(bytes);
  }
  return sizes;
}

std::vector<Operation> CalibratedOperations() {
  std::vector<Operation> operations;
  const auto table = cluster::AlgorithmTable::Default();
  for (const cluster::AlgorithmTable::Row& row : table.rows()) {
    // With a product, bytes do not say how large it is.
    if (cluster::IsFused(row.operation)) continue;
    if (operations.empty() || operations.back() != row.operation) {
      operations.push_back(row.operation);
    }
  }
  return operations;
}

cluster::AlgorithmTable::Row FitRow(
    Operation operation, int size,
    const std::vector<CollectiveTiming>& timings) {
  std::map<uint64_t, std::map<Algorithm, double>> costs;  // Logarithms.
  for (const CollectiveTiming& timing : timings) {
    if (timing.operation != operation) continue;
    costs[timing.wire_bytes][timing.algorithm] = std::log(timing.microseconds);
  }
  std::vector<uint64_t> sizes;
  for (const auto& [bytes, cost] : costs) sizes.push_back(bytes);
  const bool two_shot = cluster::Supports(operation, Algorithm::kTwoShot);

  cluster::AlgorithmTable::Row best{.operation = operation, .size = size};
  double least = std::numeric_limits<double>::infinity();
  // One shot for the first `one` sizes, two shot up to `two`, a ring above.
  // Ties go to the algorithm that needs fewer messages, which comes last here.
  for (size_t one = 0; one <= sizes.size(); ++one) {
    for (size_t two = one; two <= (two_shot ? sizes.size() : one); ++two) {
      double cost = 0;
      for (size_t i = 0; i < sizes.size(); ++i) {
        cost += costs[sizes[i]].at(i < one   ? Algorithm::kOneShot
                                   : i < two ? Algorithm::kTwoShot
                                             : Algorithm::kRing);
      }
      if (cost > least) continue;
      least = cost;
      best.one_shot_max_bytes = BorderAfter(sizes, one);
      best.two_shot_max_bytes = BorderAfter(sizes, two);
    }
  }
  return best;
}

}  // namespace ringfleet::coordinator::cli
