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

// The shards to be packed, and the workers that pack them.
struct PackingWork {
  std::string model;
  std::string folder;
  cluster::MeshShape mesh;
  v1::Dtype dtype = v1::DTYPE_INT8;
  int workers = 1;
  uint32_t threads = 1;  // Each worker's; 0: as it was started.
  // The fleet on other machines whose workers pack.
  std::optional<cluster::ClusterConfig> fleet;
};

struct PackingResult {
  int packed = 0;
  int kept = 0;        // There before, and sound.
  uint64_t bytes = 0;  // All ranks' weights.
};

// Has idle workers, at HOST:PORT each, make the packed shard of every rank, and
// with `manifest` writes one into the folder on this machine. Shows progress;
// an interrupt ends it.
//
// Errors: those of Worker.Convert, with the rank; NOT_FOUND: nobody has the
// model; DATA_LOSS: hosts have different ones.
absl::StatusOr<PackingResult> Pack(const PackingWork& work,
                                   std::vector<std::string> addresses,
                                   bool manifest);

// Has the workers compare the checkpoint with the manifest in a file, on every
// host that has it. DATA_LOSS names the first tensor that differs.
absl::Status CheckCheckpoint(const PackingWork& work,
                             std::vector<std::string> addresses,
                             const std::string& path);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHECKPOINT_PACKING_H_
