// SPDX-License-Identifier: Apache-2.0
// The tiling of fused products on this host.
#ifndef RINGFLEET_WORKER_FUSED_TUNED_TILES_H_
#define RINGFLEET_WORKER_FUSED_TUNED_TILES_H_

#include <cstddef>
#include <string>
#include <utility>

#include "cluster/collectives/tile_table.h"
#include "worker/fused/fused_product.h"

namespace ringfleet::worker {

// Returns the tiling that was measured for a product on this host's processor,
// or the default for its caches and instructions. Immutable, so thread-safe.
class TunedTiles {
 public:
  TunedTiles() = default;
  // `cpu` is the processor's model name, as in /proc/cpuinfo.
  TunedTiles(cluster::TileTable table, std::string cpu)
      : table_(std::move(table)), cpu_(std::move(cpu)) {}

  // A product [rows, inputs] times [inputs, outputs] over all ranks together.
  struct Product {
    cluster::Operation operation = cluster::Operation::kAllGatherMatmul;
    size_t rows = 0;
    size_t inputs = 0;
    size_t outputs = 0;
    int world = 0;
  };
  // Returns the tiling of `product`. `w` are this rank's weights of it.
  FusedTiles Of(const Product& product, const kernels::WeightMatrix& w) const;

 private:
  cluster::TileTable table_;
  std::string cpu_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_TUNED_TILES_H_
