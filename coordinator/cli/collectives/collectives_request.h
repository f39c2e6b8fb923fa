// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

// Options of `collectives`.
struct CollectivesOptions {
  std::string ops;    // Empty: all_reduce, or the calibrated operations.
  std::string bytes;  // Empty: see CollectivesRequest.
  std::string algos = "auto";
  std::string wires = "f32";
  std::string transport = "grpc";
  std::string poll = "auto";
  std::string table;  // File of an AlgorithmTable. Empty: the default table.
  // Options of operations that are fused with a product.
  std::string m;      // List of numbers of rows. Empty: by `bytes`.
  uint64_t n = 0;     // Number of outputs. 0: that of a layer of R1.
  uint64_t k = 0;     // Number of inputs. 0: that of a layer of R1.
  std::string dtype;  // Form of the weights in memory. Empty: int8.
  std::string tiles;  // File of a TileTable.
  int threads = 0;    // A worker's. 0: its part of the host's cores.
  int iterations = 0;
  double seconds = 0;    // For each case. 0: 2, or 0.3 in a calibration.
  double timeout_s = 0;  // For each collective.
  bool no_pin = false;
  bool calibrate = false;
  bool tune = false;
};

// Returns a request with every existing combination of the options' operations,
// wires, sizes and algorithms. Algorithms vary fastest, so cases to compare run
// one after the other. A tuning has a case for each choice of tiles. Tiles of
// one shape are tried one after the other. The caller fills in rank, addresses
// and epoch.
//
// Default sizes are 4 bytes, one row of 7168 elements in bf16 and in float32,
// 64 rows, and 256 rows. The default of a calibration is CalibrationLadder, and
// that of products is 512 rows.
//
// Errors: those of AlgorithmTable::Load and TileTable::Load. INVALID_ARGUMENT:
// a value is wrong, an operation that the user names lacks an algorithm that
// the user names, or an option for products has no operation with a product.
// The message is "usage: ..." and names the value and the choices.
absl::StatusOr<v1::MeasureCollectivesRequest> CollectivesRequest(
    const CollectivesOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_
