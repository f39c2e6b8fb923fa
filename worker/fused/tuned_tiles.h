// SPDX-License-Identifier: Apache-2.0
// How this host cuts the products that are fused with an exchange.
#ifndef RINGFLEET_WORKER_FUSED_TUNED_TILES_H_
#define RINGFLEET_WORKER_FUSED_TUNED_TILES_H_

#include <cstddef>
#include <string>
#include <utility>

#include "cluster/collectives/tile_table.h"
#include "worker/fused/fused_product.h"

namespace ringfleet::worker {

// What was measured for a product and this host's processor, and what follows
// from its caches and instructions where nothing was. Thread-safe.
class TunedTiles {
 public:
  TunedTiles() = default;
  // `cpu` as /proc/cpuinfo names the model.
  TunedTiles(cluster::TileTable table, std::string cpu)
      : table_(std::move(table)), cpu_(std::move(cpu)) {}

  // Over all ranks [rows, inputs] times [inputs, outputs], of which this one
  // has `w`.
  struct Product {
    cluster::Operation operation = cluster::Operation::kAllGatherMatmul;
    size_t rows = 0;
    size_t inputs = 0;
    size_t outputs = 0;
    int world = 0;
  };
  FusedTiles Of(const Product& product, const kernels::WeightMatrix& w) const;

 private:
  cluster::TileTable table_;
  std::string cpu_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_TUNED_TILES_H_
