// SPDX-License-Identifier: Apache-2.0
#include "worker/matmul_reduce_scatter.h"

#include <algorithm>
#include <array>

#include "cluster/trace_recorder.h"
#include "kernels/panel.h"

namespace ringfleet::worker {
namespace {

using cluster::Half;
using cluster::ShardHalf;
using kernels::Activations;
using kernels::RowRange;

// Elements that a thread quantises in about the time it takes to wake it.
constexpr size_t kQuantiseGrain = size_t{1} << 14;

// Rows of each half that are multiplied before they are handed on, at most: so
// many share each reading of a panel.
constexpr size_t kMostPieceRows = kernels::kMaxPanelBatch;

class ScatterPipeline final : public cluster::HalvesSource {
 public:
  ScatterPipeline(const MatmulReduceScatterArgs& args,
                  cluster::Communicator& communicator,
                  FusedWorkspace& workspace, kernels::ThreadPool& pool,
                  FusedObserver* observer)
      : args_(args),
        communicator_(communicator),
        workspace_(workspace),
        pool_(pool),
        observer_(observer),
        columns_(args.weights.columns()),
        ranks_(communicator.size()),
        rank_(communicator.rank()),
        halves_(args.rows, ranks_) {}

  absl::Status Run(cluster::Deadline deadline) {
    Prepare();
    const auto communicate = [&] {
      absl::Status status = communicator_.ReduceHalves(
          {.rows = args_.rows,
           .row_size = columns_,
           .segment_bytes = args_.tiles.segment_bytes},
          {args_.wire, columns_}, *this, /*check=*/0, deadline);
      if (!status.ok()) workspace_.progress.Fail();
      return status;
    };
    const absl::FunctionRef<absl::Status()> body(communicate);
    workspace_.thread.Start(body);
    size_t piece_rows = std::max<size_t>(args_.tiles.piece_rows / 2, 1);
    for (int step = 0; step < ranks_; ++step) Multiply(step, &piece_rows);
    const absl::Status status = AwaitSums();
    if (status.ok() && observer_ != nullptr) {
      for (const ShardHalf half : HalvesAt(ranks_ - 1)) {
        observer_->Written(ranks_ - 1, half);
      }
    }
    return status;
  }

  void Sends(uint32_t step, ShardHalf which) override {
    if (observer_ != nullptr) observer_->Sent(static_cast<int>(step), which);
  }
  float* Partial(ShardHalf which) override {
    return RowOf(which.shard, halves_.Of(which).begin);
  }
  size_t Ready(ShardHalf which) override {
    return workspace_.progress.Of(which);
  }

 private:
  std::array<ShardHalf, 2> HalvesAt(int step) const {
    return {ShardHalf{(rank_ - 1 - step + 2 * ranks_) % ranks_, Half::kLeft},
            ShardHalf{(rank_ + 1 + step) % ranks_, Half::kRight}};
  }

  absl::Status AwaitSums() {
    const cluster::TraceScope scope(communicator_.trace(), kWaitForSends,
                                    cluster::TraceEvent::Kind::kWait);
    return workspace_.thread.Await();
  }

  // Own rows are added up where they stay.
  float* RowOf(int shard, size_t row) {
    return shard == rank_
               ? args_.out + (row - halves_.Shard(rank_).begin) * columns_
               : workspace_.partial.data() + row * columns_;
  }

  void Prepare() {
    const size_t depth = args_.weights.depth();
    if (args_.weights.form() == Activations::Form::kF32) {
      workspace_.x.Assign(Activations::Form::kF32, args_.x, args_.rows, depth,
                          args_.x_stride, pool_);
    } else {
      workspace_.x.Reshape(Activations::Form::kInt8, args_.rows, depth);
    }
    if (workspace_.partial.size() < args_.rows * columns_) {
      workspace_.partial.resize(args_.rows * columns_);
    }
    workspace_.progress.Reset(ranks_);
  }

  void Quantise(RowRange rows) {
    if (args_.weights.form() == Activations::Form::kF32) return;
    const size_t depth = args_.weights.depth();
    pool_.ParallelFor(
        rows.size(), 1 + kQuantiseGrain / std::max<size_t>(depth, 1),
        [&](size_t begin, size_t end) {
          for (size_t i = begin; i < end; ++i) {
            const size_t row = rows.begin + i;
            workspace_.x.SetRow(row, args_.x + row * args_.x_stride);
          }
        });
  }

  // The first pieces are small, so that sums are under way soon, and the next
  // ones larger: each product reads the weights anew.
  void Multiply(int step, size_t* piece_rows) {
    const std::array<ShardHalf, 2> halves = HalvesAt(step);
    std::array<RowRange, 2> left = {halves_.Of(halves[0]),
                                    halves_.Of(halves[1])};
    for (const ShardHalf half : halves) {
      if (observer_ != nullptr) observer_->Multiplied(step, half);
    }
    const bool last = step == ranks_ - 1;
    while (left[0].size() + left[1].size() > 0) {
      if (workspace_.progress.failed()) return;
      std::array<RowRange, 2> piece = left;
      for (size_t i = 0; i < 2; ++i) {
        if (!last) {
          piece[i].end = std::min(piece[i].end, piece[i].begin + *piece_rows);
        }
        left[i].begin = piece[i].end;
        Quantise(piece[i]);
      }
      MultiplyPiece(halves, piece);
      for (size_t i = 0; i < 2; ++i) {
        workspace_.progress.Add(halves[i], piece[i].size());
      }
      communicator_.Wake();
      *piece_rows = std::min(*piece_rows * 2, kMostPieceRows);
    }
    // Halves without rows are ready too.
    communicator_.Wake();
  }

  void MultiplyPiece(const std::array<ShardHalf, 2>& halves,
                     const std::array<RowRange, 2>& piece) {
    const cluster::TraceScope scope(communicator_.trace(), kMultiplyPiece);
    FusedOutput output = {.weights = args_.weights, .y_stride = columns_};
    // Both halves of a step are the own ones or neither is.
    if (halves[0].shard == rank_) {
      output.y = args_.out;
      output.first_y = halves_.Shard(rank_).begin;
    } else {
      output.y = workspace_.partial.data();
    }
    MultiplyRanges({&output, 1}, workspace_.x, piece, args_.tiles, pool_);
  }

  const MatmulReduceScatterArgs& args_;
  cluster::Communicator& communicator_;
  FusedWorkspace& workspace_;
  kernels::ThreadPool& pool_;
  FusedObserver* const observer_;
  const size_t columns_;
  const int ranks_;
  const int rank_;
  const cluster::RowHalves halves_;
};

}  // namespace

absl::Status MatmulReduceScatter(const MatmulReduceScatterArgs& args,
                                 cluster::Communicator& communicator,
                                 FusedWorkspace& workspace,
                                 kernels::ThreadPool& pool,
                                 cluster::Deadline deadline,
                                 FusedObserver* observer) {
  return ScatterPipeline(args, communicator, workspace, pool, observer)
      .Run(deadline);
}

}  // namespace ringfleet::worker
