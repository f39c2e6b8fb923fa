// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_CONNECTION_TERMS_H_
#define RINGFLEET_WORKER_SERVICE_CONNECTION_TERMS_H_

#include "absl/status/statusor.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/wire/op_descriptor.h"
#include "protos/worker.pb.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {

// The parts of a ConnectRequest that have to be parsed.
struct ConnectionTerms {
  cluster::Wire wire = {};
  cluster::AlgorithmTable table = cluster::AlgorithmTable::Default();
  cluster::TileTable tiles;
  int cache_blocks = 0;  // In the data group's cache.
};

// Checks whether a loaded shard can take part in the epoch that the request
// describes.
// Errors: INVALID_ARGUMENT: a value that the shard does not allow, or that
// contradicts another. The message names the value and the expected ones.
absl::StatusOr<ConnectionTerms> CheckTerms(const v1::ConnectRequest& request,
                                           const LoadedShard& shard);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_CONNECTION_TERMS_H_
