// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CHECKPOINT_PACKING_H_
#define RINGFLEET_COORDINATOR_CLI_CHECKPOINT_PACKING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/config/config.h"
#include "cluster/model/shard_plan.h"
#include "protos/types.pb.h"

namespace ringfleet::coordinator::cli {

// The shards to pack, and the workers that pack them.
struct PackingWork {
  std::string model;
  std::string folder;  // For packed shards, on every worker's host.
  cluster::MeshShape mesh;
  v1::Dtype dtype = v1::DTYPE_NATIVE;
  int workers = 1;
  uint32_t threads = 1;  // Threads of a worker. 0: as at its start.
  // The fleet whose workers pack. Unset: workers on this machine pack.
  std::optional<cluster::ClusterConfig> fleet;
};

struct PackingResult {
  int packed = 0;        // Number of shards that were written.
  int kept = 0;          // Number of undamaged shards that were there before.
  uint64_t bytes = 0;    // Weights of all ranks.
  std::string manifest;  // Path of the manifest. Empty: none was written.
};

// Asks idle workers to write the packed shard of every rank. `addresses` are
// HOST:PORT of each worker. If `manifest`, also writes a manifest into the
// folder on this machine. Shows progress. An interrupt ends the work.
//
// Errors: those of Worker.Convert, with the rank. NOT_FOUND: no host has the
// model. DATA_LOSS: two hosts have different files of the model.
absl::StatusOr<PackingResult> Pack(const PackingWork& work,
                                   std::vector<std::string> addresses,
                                   bool manifest);

// Asks the workers to compare the checkpoint with the manifest in the file
// `path`, on every host that has the checkpoint.
// Errors: DATA_LOSS names the first tensor that differs.
absl::Status CheckCheckpoint(const PackingWork& work,
                             std::vector<std::string> addresses,
                             const std::string& path);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_PACKING_H_
