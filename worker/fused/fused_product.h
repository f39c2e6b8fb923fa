// SPDX-License-Identifier: Apache-2.0
// Types that all products fused with an exchange of rows share: tiling,
// outputs, progress between the two threads, and memory.
#ifndef RINGFLEET_WORKER_FUSED_FUSED_PRODUCT_H_
#define RINGFLEET_WORKER_FUSED_FUSED_PRODUCT_H_

#include <array>
#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cluster/collectives/split_rows.h"
#include "cluster/collectives/tile_table.h"
#include "kernels/mutex.h"
#include "kernels/products/activations.h"
#include "kernels/products/row_range.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"
#include "worker/fused/communication_thread.h"

namespace ringfleet::worker {

// Names of trace spans: one piece of a product, and the caller's wait for the
// communication thread when nothing is left to multiply.
inline constexpr absl::string_view kMultiplyPiece = "multiply";
inline constexpr absl::string_view kWaitForSends = "wait for sends";

// How a fused product is cut into tiles, frames and pieces. No field changes a
// bit of a result. Fields marked [all ranks] must be equal on all ranks, or the
// call fails.
struct FusedTiles {
  // Outputs in a tile, in whole panels. A tile is multiplied by all rows of a
  // piece before the next tile.
  size_t tile_columns = 0;
  // Approximate bytes that a frame carries [all ranks]. 0: the default of
  // cluster/collectives/split_rows.h.
  size_t segment_bytes = 0;
  // Fewest rows for which the weights are read while other rows are on their
  // way (kernels::BestProductRows). The first piece of a reduction has 1.5
  // times as many rows, both parts of the shard together, or as many as a frame
  // carries.
  size_t piece_rows = 1;

  // Returns tiles of weights with `depth` inputs that fit half of a level-2
  // cache, as the system reports its size, and pieces for the instructions in
  // use.
  static FusedTiles Default(kernels::WeightForm form, size_t depth);
  static FusedTiles Default(const kernels::WeightMatrix& w) {
    return Default(w.form(), w.columns());
  }

  // Takes over the measured fields of `cut`: the positive ones.
  void Take(const cluster::TileTable::Cut& cut);

  bool operator==(const FusedTiles&) const = default;
};

// One rank's weights of a product, [outputs, inputs], and its results. Row i
// goes to y + (i - first_y) * y_stride, f32.
struct FusedOutput {
  const kernels::WeightMatrix* w = nullptr;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t first_y = 0;
};

// Counts the rows of each part of each shard that have arrived, or have been
// computed. The two threads of a fused product meet here. Thread-safe.
class PartProgress {
 public:
  // Sets all counts to 0 and forgets a failure.
  void Reset(int ranks);
  void Add(cluster::ShardPart part, size_t rows);
  size_t Of(cluster::ShardPart part);
  // Ends all waits: no more rows will come.
  void Fail();
  bool failed();

  // Waits until all parts together have at least `least` rows. Returns false
  // after Fail.
  bool Await(size_t least);

  // Copies the count of every part to rows[Index(part)] and returns their sum.
  size_t Get(absl::Span<size_t> rows);

  static size_t Index(cluster::ShardPart part) {
    return static_cast<size_t>(part.shard) * 2 + static_cast<size_t>(part.side);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  size_t sum_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<size_t> rows_ ABSL_GUARDED_BY(mu_);
};

// Memory and the communication thread of fused products, which run one at a
// time. Grows to the largest product, then allocates nothing. Must outlive the
// transport, because a peer may still read its buffers after an error.
struct FusedWorkspace {
  CommunicationThread thread;
  PartProgress progress;
  std::vector<size_t> multiplied;  // Rows by tile of outputs, then by part.
  kernels::Activations x;          // Rows of all ranks.
  std::vector<char> encoded;       // Own rows as they are sent.
  // A row that has not come whole, for the left and the right parts.
  std::array<std::vector<char>, 2> partly;
  std::vector<float> partial;  // [rows, columns], this rank's summands.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_FUSED_PRODUCT_H_
