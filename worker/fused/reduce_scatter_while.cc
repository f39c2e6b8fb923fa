// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/reduce_scatter_while.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cluster/recording/trace_recorder.h"
#include "worker/fused/grow.h"

namespace ringfleet::worker {
namespace {

using cluster::ShardPart;
using cluster::Side;
using kernels::RowRange;

// Growth of each piece over the one before it.
constexpr size_t kPieceGrowth = 2;

class ScatterPipeline final : public cluster::StreamingSource {
 public:
  ScatterPipeline(const ReduceScatterWhileArgs& args, ComputeRows compute,
                  cluster::Communicator& communicator,
                  FusedWorkspace& workspace)
      : args_(args),
        compute_(compute),
        communicator_(communicator),
        workspace_(workspace),
        ranks_(communicator.size()),
        rank_(communicator.rank()),
        split_(args.rows, ranks_) {}

  absl::Status Run(cluster::Deadline deadline) {
    Grow(workspace_.partial, args_.rows * args_.columns);
    workspace_.progress.Reset(ranks_);
    const auto communicate = [&] {
      absl::Status status = communicator_.StreamingReduceScatter(
          {.rows = args_.rows,
           .row_size = args_.columns,
           .segment_bytes = args_.segment_bytes},
          {args_.wire, args_.columns}, *this, args_.check, deadline);
      if (!status.ok()) workspace_.progress.Fail();
      return status;
    };
    const absl::FunctionRef<absl::Status()> body(communicate);
    workspace_.thread.Start(body);
    size_t piece_rows = std::max<size_t>(args_.piece_rows, 1);
    for (int step = 0; step < ranks_; ++step) Compute(step, &piece_rows);
    const cluster::TraceScope scope(communicator_.trace(), kWaitForSends,
                                    cluster::TraceEvent::Kind::kWait);
    return workspace_.thread.Await();
  }

  float* Partial(ShardPart which) override {
    return RowOf(which.shard, split_.Of(which).begin);
  }
  size_t Ready(ShardPart which) override {
    return workspace_.progress.Of(which);
  }

 private:
  std::array<ShardPart, 2> PartsAt(int step) const {
    return {ShardPart{(rank_ - 1 - step + 2 * ranks_) % ranks_, Side::kLeft},
            ShardPart{(rank_ + 1 + step) % ranks_, Side::kRight}};
  }

  // Own rows are added up where they stay.
  float* RowOf(int shard, size_t row) {
    return shard == rank_
               ? args_.out + (row - split_.Shard(rank_).begin) * args_.columns
               : workspace_.partial.data() + row * args_.columns;
  }

  void Compute(int step, size_t* piece_rows) {
    const std::array<ShardPart, 2> parts = PartsAt(step);
    std::array<RowRange, 2> left = {split_.Of(parts[0]), split_.Of(parts[1])};
    const bool last = step == ranks_ - 1;
    while (left[0].size() + left[1].size() > 0) {
      if (workspace_.progress.failed()) return;
      std::array<RowRange, 2> piece = left;
      for (size_t i = 0; i < 2; ++i) {
        // A small rest joins the piece before it.
        if (!last && 2 * left[i].size() >= 3 * *piece_rows) {
          piece[i].end = piece[i].begin + *piece_rows;
        }
        left[i].begin = piece[i].end;
      }
      ComputePiece(parts[0].shard, piece);
      for (size_t i = 0; i < 2; ++i) {
        workspace_.progress.Add(parts[i], piece[i].size());
      }
      communicator_.Wake();
      *piece_rows = std::min(*piece_rows * kPieceGrowth,
                             std::max(*piece_rows, args_.most_piece_rows));
    }
    // Parts without rows are ready too.
    communicator_.Wake();
  }

  // In a step, both parts are of the own shard or neither is.
  void ComputePiece(int shard, std::array<RowRange, 2> piece) {
    const cluster::TraceScope scope(communicator_.trace(), kMultiplyPiece);
    if (piece[1].begin < piece[0].begin) std::swap(piece[0], piece[1]);
    if (shard == rank_) {
      compute_(piece, args_.out, split_.Shard(rank_).begin);
    } else {
      compute_(piece, workspace_.partial.data(), 0);
    }
  }

  const ReduceScatterWhileArgs& args_;
  const ComputeRows compute_;
  cluster::Communicator& communicator_;
  FusedWorkspace& workspace_;
  const int ranks_;
  const int rank_;
  const cluster::SplitRows split_;
};

}  // namespace

absl::Status ReduceScatterWhile(const ReduceScatterWhileArgs& args,
                                ComputeRows compute,
                                cluster::Communicator& communicator,
                                FusedWorkspace& workspace,
                                cluster::Deadline deadline) {
  return ScatterPipeline(args, compute, communicator, workspace).Run(deadline);
}

}  // namespace ringfleet::worker
