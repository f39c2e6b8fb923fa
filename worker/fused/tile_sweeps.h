// SPDX-License-Identifier: Apache-2.0
// Products whose rows come while they are made, so that their weights are read
// as few times as that allows.
//
// A product by the rows of one shard after the other would read all weights
// once for each, and where a shard has few rows, reading is what it waits for.
// Instead, sweeps go over the tiles of the outputs; a tile is multiplied by all
// rows that have come until its turn and that it has not had yet. Where
// products take longer than the exchange, rows that come during the first sweep
// cost no second one to the tiles behind, and two sweeps do.
#ifndef RINGFLEET_WORKER_FUSED_TILE_SWEEPS_H_
#define RINGFLEET_WORKER_FUSED_TILE_SWEEPS_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "cluster/collectives/split_rows.h"
#include "kernels/products/matmul.h"
#include "kernels/products/row_range.h"
#include "kernels/thread_pool.h"
#include "worker/fused/output_tiles.h"

namespace ringfleet::worker {

class TileSweeps {
 public:
  // `progress` says which rows there are; at `multiplied` is memory for what
  // each tile has had. `least_rows` more are worth a visit of a tile; fewer
  // than `best.together` take as long.
  TileSweeps(const OutputTiles& tiles, const cluster::SplitRows& parts,
             int ranks, size_t least_rows, kernels::ProductRows best,
             PartProgress& progress, std::vector<size_t>& multiplied);

  // How many rows, of all, must have come for a next sweep to be worth it;
  // 0: every tile has had all of them.
  size_t Wanted() const;

  // Visits every tile once.
  void Sweep(kernels::ThreadPool& pool);

  // Multiplies a tile by the rows that have come and that it has not had, if
  // there are enough of them. Thread-safe for different tiles.
  void Visit(size_t tile);

 private:
  kernels::RowRange RowsOf(size_t part) const;
  // How many rows of each half a tile has had.
  absl::Span<size_t> DoneBy(size_t tile) const;
  // How many rows of all must have come for a visit.
  size_t WantedBy(size_t tile) const;
  void LeaveIncompleteTiles(absl::Span<const size_t> done,
                            absl::Span<size_t> come) const;

  const OutputTiles& tiles_;
  const cluster::SplitRows& split_;
  const size_t num_parts_;
  const size_t least_rows_;
  const kernels::ProductRows best_;
  PartProgress& progress_;
  std::vector<size_t>& multiplied_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_TILE_SWEEPS_H_
