// SPDX-License-Identifier: Apache-2.0
// What the products that are fused with an exchange of rows have in common:
// their weights, how they are cut, who may watch, and memory.
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

// In a trace: a piece that is multiplied, and the caller's wait for the other
// thread when nothing is left to multiply.
inline constexpr absl::string_view kMultiplyPiece = "multiply";
inline constexpr absl::string_view kWaitForSends = "wait for sends";

// How a fused product is cut. No setting changes a bit of a result; those
// marked [all ranks] must be equal on all of them, or the call fails.
struct FusedTiles {
  // Outputs, whole panels, that go through all rows of a piece before the next
  // ones.
  size_t tile_columns = 0;
  // About what a frame carries [all ranks]; 0: by
  // cluster/collectives/split_rows.h.
  size_t segment_bytes = 0;
  // Rows that weights are worth reading for while others are on their way:
  // kernels::BestProductRows. The first sums that are sent on are of half as
  // many again, of both halves together, or of what a frame carries.
  size_t piece_rows = 1;

  // Tiles of weights with `depth` inputs that take at most half of a level-2
  // cache, as the system reports it; pieces for the instructions in use.
  static FusedTiles Default(kernels::WeightForm form, size_t depth);
  static FusedTiles Default(const kernels::WeightMatrix& w) {
    return Default(w.form(), w.columns());
  }

  // Replaces what was measured.
  void Take(const cluster::TileTable::Cut& cut);

  bool operator==(const FusedTiles&) const = default;
};

// One rank's weights of a product, [outputs, inputs], and where its outputs go:
// row i to y + (i - first_y) * y_stride, f32.
struct FusedOutput {
  const kernels::WeightMatrix* w = nullptr;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t first_y = 0;
};

// Rows of each half that have come, or have been computed: what the two threads
// of a fused product tell each other. Thread-safe.
class PartProgress {
 public:
  void Reset(int ranks);
  void Add(cluster::ShardPart part, size_t rows);
  size_t Of(cluster::ShardPart part);
  // Ends all waits: no more rows will come, or are wanted.
  void Fail();
  bool failed();

  // Waits until there are at least `least` rows in all halves together; false
  // after Fail.
  bool Await(size_t least);

  // The rows of every half, by Index, and returns their sum.
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

// Memory and the communication thread of fused products, one at a time. Grows
// to the largest one, then allocates nothing. Must outlive the transport: after
// an error a peer may still be reading its buffers.
struct FusedWorkspace {
  CommunicationThread thread;
  PartProgress progress;
  std::vector<size_t> multiplied;  // Of each half, for each tile of outputs.
  kernels::Activations x;
  std::vector<char> encoded;  // Rows that are sent.
  std::array<std::vector<char>, 2>
      partly;                  // A row of each half that has not come whole.
  std::vector<float> partial;  // [rows, columns], summands.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_FUSED_PRODUCT_H_
