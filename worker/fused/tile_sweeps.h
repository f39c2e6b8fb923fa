// SPDX-License-Identifier: Apache-2.0
// Multiplies rows as they arrive, and reads the weights as rarely as possible.
//
// A product for one shard after the other would read all weights once a shard.
// Where shards have few rows, the reading takes most of the time. Instead,
// sweeps go over the tiles of the outputs. Each tile is multiplied by all rows
// that have come before its turn and that it has not had yet. Where products
// take longer than the exchange, two sweeps suffice: rows that come during the
// first sweep already reach its later tiles.
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
  // `progress` counts the rows that have come. `multiplied` is memory; it holds
  // the rows that each tile has had, by tile and PartProgress::Index. A visit
  // of a tile is worth its time from `least_rows` new rows on. Rows beyond
  // whole groups of `best.together` take as long as a group. Refers to its
  // arguments.
  TileSweeps(const OutputTiles& tiles, const cluster::SplitRows& parts,
             int ranks, size_t least_rows, kernels::ProductRows best,
             PartProgress& progress, std::vector<size_t>& multiplied);

  // Returns how many rows, over all ranks, must have come before the next sweep
  // is worth its time. 0: every tile has had all rows.
  size_t Wanted() const;

  // Visits every tile once, on the threads of `pool`.
  void Sweep(kernels::ThreadPool& pool);

  // Multiplies a tile by the rows that have come and that it has not had yet,
  // if they are worth a visit. Thread-safe for different tiles.
  void Visit(size_t tile);

 private:
  kernels::RowRange RowsOf(size_t part) const;
  // The counts of rows that a tile has had, by PartProgress::Index.
  absl::Span<size_t> DoneBy(size_t tile) const;
  // Returns how many rows, over all ranks, must have come for a visit of the
  // tile.
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
