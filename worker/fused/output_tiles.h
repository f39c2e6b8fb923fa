// SPDX-License-Identifier: Apache-2.0
// Outputs of several products of the same rows, cut into tiles of columns that
// fit a cache. A tile is the unit that one thread multiplies.
#ifndef RINGFLEET_WORKER_FUSED_OUTPUT_TILES_H_
#define RINGFLEET_WORKER_FUSED_OUTPUT_TILES_H_

#include <cstddef>

#include "absl/types/span.h"
#include "kernels/products/activations.h"
#include "kernels/products/row_range.h"
#include "kernels/thread_pool.h"
#include "worker/fused/fused_product.h"

namespace ringfleet::worker {

// The tiles of all products. Refers to its arguments. Thread-safe for different
// tiles.
class OutputTiles {
 public:
  OutputTiles(absl::Span<const FusedOutput> outputs,
              const kernels::Activations& x, const FusedTiles& tiles);

  // Number of tiles. Tiles of the first output come first.
  size_t size() const { return size_; }

  // Returns how many tiles a thread should take at a time for `rows` rows.
  size_t Grain(size_t rows) const;

  // Multiplies rows `ranges` of x by a tile. Reads its weights once.
  void Multiply(size_t tile, absl::Span<const kernels::RowRange> ranges) const;

 private:
  absl::Span<const FusedOutput> outputs_;
  const kernels::Activations& x_;
  const FusedTiles& tiles_;
  size_t size_ = 0;
};

// Multiplies rows `ranges` of x by the weights of every output.
void MultiplyRanges(absl::Span<const FusedOutput> outputs,
                    const kernels::Activations& x,
                    absl::Span<const kernels::RowRange> ranges,
                    const FusedTiles& tiles, kernels::ThreadPool& pool);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_OUTPUT_TILES_H_
