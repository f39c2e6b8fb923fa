// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

// What to measure, as the command line says it.
struct CollectivesOptions {
  std::string ops;    // Empty: all_reduce, or what is calibrated.
  std::string bytes;  // Empty: see CollectivesRequest.
  std::string algos = "auto";
  std::string wires = "f32";
  std::string transport = "grpc";
  std::string poll = "auto";
  std::string table;  // File of an AlgorithmTable; empty: the default one.
  // Of the operations that are fused with a product: rows, a list (empty: from
  // `bytes`), outputs and inputs (0: those of a layer of R1), weights in memory
  // (empty: int8) and a file of a TileTable.
  std::string m;
  uint64_t n = 0;
  uint64_t k = 0;
  std::string dtype;
  std::string tiles;
  int threads = 0;  // For products, of each worker; 0: its share of the cores.
  int iterations = 0;
  double seconds = 0;    // Of each case; 0: 2, or 0.3 of a calibration.
  double timeout_s = 0;  // Of each collective.
  bool no_pin = false;
  bool calibrate = false;
  bool tune = false;
};

// Every combination that exists of the operations, wires, sizes and algorithms
// of a command line; algorithms vary fastest, so that those compared run next
// to each other. Without sizes: 4 bytes, a row of 7168 elements in bf16 and
// float32, 64 and 256 such rows; of a calibration, its ladder; 512 rows of a
// product. A tuning has a case for each cut that it tries, those of a shape
// next to each other. Rank, addresses and epoch are not filled in.
//
// Errors: INVALID_ARGUMENT: "usage: ...", with what was given and what there
// is; an operation that is listed by name must have every algorithm listed, and
// what is given for products needs an operation with one. Those of
// AlgorithmTable::Load and TileTable::Load.
absl::StatusOr<v1::MeasureCollectivesRequest> CollectivesRequest(
    const CollectivesOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REQUEST_H_
