// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

// The cases of a command line.
struct CollectivesOptions {
  std::string ops;    // Empty: all_reduce, or the calibrated operations.
  std::string bytes;  // Empty: see CollectivesRequest.
  std::string algos = "auto";
  std::string wires = "f32";
  std::string transport = "grpc";
  std::string poll = "auto";
  std::string table;  // File of an AlgorithmTable; empty: the default one.
  // For operations that are fused with a product.
  std::string m;      // Rows, a list; empty: from `bytes`.
  uint64_t n = 0;     // Outputs; 0: those of a layer of R1.
  uint64_t k = 0;     // Inputs; 0: those of a layer of R1.
  std::string dtype;  // Weights in memory; empty: int8.
  std::string tiles;  // File of a TileTable.
  int threads = 0;    // Per worker; 0: its part of the cores.
  int iterations = 0;
  double seconds = 0;    // For each case; 0: 2, or 0.3 in a calibration.
  double timeout_s = 0;  // For each collective.
  bool no_pin = false;
  bool calibrate = false;
  bool tune = false;
};

// Returns every combination that exists of the operations, wires, sizes and
// algorithms of a command line. Algorithms vary fastest, so that compared ones
// run next to each other. Default sizes: 4 bytes, a row of 7168 elements in
// bf16 and float32, and 64 and 256 such rows; in a calibration its ladder; for
// products 512 rows. A tuning has a case for each cut that it tries, and cuts
// of one shape are neighbours. The caller fills in rank, addresses and epoch.
//
// Errors: INVALID_ARGUMENT: "usage: ..." names the value and the choices. An
//   operation that is listed by name must have every algorithm listed. An
//   option for products needs an operation with a product. Errors of
//   AlgorithmTable::Load and TileTable::Load.
absl::StatusOr<v1::MeasureCollectivesRequest> CollectivesRequest(
    const CollectivesOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_
