// SPDX-License-Identifier: Apache-2.0
#include "worker/fused/all_gather_matmul.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cluster/recording/trace_recorder.h"
#include "kernels/check.h"
#include "kernels/products/matmul.h"
#include "worker/fused/grow.h"
#include "worker/fused/tile_sweeps.h"

namespace ringfleet::worker {
namespace {

using cluster::ShardPart;
using cluster::Side;
using kernels::Activations;
using kernels::RowRange;

// Bytes that a thread copies in about the time that waking it takes.
constexpr size_t kCopyGrain = size_t{1} << 16;

class GatherPipeline final : public cluster::StreamingReceiver {
 public:
  GatherPipeline(const AllGatherMatmulArgs& args,
                 cluster::Communicator& communicator, FusedWorkspace& workspace,
                 kernels::ThreadPool& pool)
      : args_(args),
        communicator_(communicator),
        workspace_(workspace),
        pool_(pool),
        ranks_(communicator.size()),
        rank_(communicator.rank()),
        split_(args.rows, ranks_),
        x_bytes_(args.x->StoredRowBytes()),
        row_bytes_(x_bytes_ + args.attached_bytes) {}

  absl::Status Run(cluster::Deadline deadline) {
    Prepare();
    const RowRange own = split_.Shard(rank_);
    const auto communicate = [&] {
      absl::Status status = communicator_.StreamingAllGather(
          {.rows = args_.rows,
           .row_size = row_bytes_,
           .segment_bytes = args_.tiles.segment_bytes},
          {workspace_.encoded.data(), own.size() * row_bytes_}, *this,
          /*check=*/0, deadline);
      if (!status.ok()) workspace_.progress.Fail();
      return status;
    };
    const absl::FunctionRef<absl::Status()> body(communicate);
    workspace_.thread.Start(body);
    Multiply();
    const cluster::TraceScope scope(communicator_.trace(), kWaitForSends,
                                    cluster::TraceEvent::Kind::kWait);
    return workspace_.thread.Await();
  }

  void Arrived(ShardPart which,
               absl::Span<const absl::Span<const char>> pieces) override {
    const size_t side = static_cast<size_t>(which.side);
    std::vector<char>& partly = workspace_.partly[side];
    if (row_bytes_ == 0) return;
    size_t complete = 0;
    size_t row = split_.Of(which).begin + workspace_.progress.Of(which);
    for (absl::Span<const char> piece : pieces) {
      while (!piece.empty()) {
        // A whole row is read where it lies. A row in several pieces is put
        // together first.
        const char* bytes = piece.data();
        size_t taken = row_bytes_;
        if (partly_bytes_[side] > 0 || piece.size() < row_bytes_) {
          taken = std::min(piece.size(), row_bytes_ - partly_bytes_[side]);
          std::memcpy(partly.data() + partly_bytes_[side], piece.data(), taken);
          partly_bytes_[side] += taken;
          bytes = partly.data();
        }
        piece.remove_prefix(taken);
        if (partly_bytes_[side] > 0 && partly_bytes_[side] < row_bytes_) {
          continue;
        }
        partly_bytes_[side] = 0;
        Load(row++, bytes);
        ++complete;
      }
    }
    if (complete > 0) workspace_.progress.Add(which, complete);
  }

 private:
  void Load(size_t row, const char* bytes) {
    workspace_.x.LoadRow(row, bytes);
    if (args_.attached_bytes > 0) {
      args_.attachment->Load(row, bytes + x_bytes_);
    }
  }

  // Makes room for all rows, and loads the own rows in the form in which other
  // ranks get them.
  void Prepare() {
    workspace_.x.Reshape(args_.x->form(), args_.rows, args_.x->columns());
    const RowRange own = split_.Shard(rank_);
    Grow(workspace_.encoded, own.size() * row_bytes_);
    for (auto& partly : workspace_.partly) Grow(partly, row_bytes_);
    pool_.ParallelFor(own.size(),
                      1 + kCopyGrain / std::max<size_t>(row_bytes_, 1),
                      [&](size_t begin, size_t end) {
                        for (size_t i = begin; i < end; ++i) {
                          StoreOwn(i, own.begin + i);
                        }
                      });
    workspace_.progress.Reset(ranks_);
    for (const Side side : {Side::kLeft, Side::kRight}) {
      const ShardPart part = {rank_, side};
      workspace_.progress.Add(part, split_.Of(part).size());
    }
  }

  void StoreOwn(size_t index, size_t row) {
    char* const out = workspace_.encoded.data() + index * row_bytes_;
    args_.x->StoreRow(index, out);
    if (args_.attached_bytes > 0) {
      args_.attachment->Store(index, out + x_bytes_);
    }
    Load(row, out);
  }

  // Returns early when rows will not come.
  void Multiply() {
    const OutputTiles tiles(args_.products, workspace_.x, args_.tiles);
    TileSweeps sweeps(tiles, split_, ranks_, args_.tiles.piece_rows,
                      kernels::BestProductRows(args_.x->form()),
                      workspace_.progress, workspace_.multiplied);
    while (const size_t wanted = sweeps.Wanted()) {
      {
        const cluster::TraceScope scope(communicator_.trace(), "wait for rows",
                                        cluster::TraceEvent::Kind::kWait);
        if (!workspace_.progress.Await(wanted)) return;
      }
      const cluster::TraceScope scope(communicator_.trace(), kMultiplyPiece);
      sweeps.Sweep(pool_);
    }
  }

  const AllGatherMatmulArgs& args_;
  cluster::Communicator& communicator_;
  FusedWorkspace& workspace_;
  kernels::ThreadPool& pool_;
  const int ranks_;
  const int rank_;
  const cluster::SplitRows split_;
  const size_t x_bytes_;    // A row's, to be multiplied.
  const size_t row_bytes_;  // x_bytes_ and the attached bytes.
  std::array<size_t, 2> partly_bytes_ = {0, 0};  // In workspace_.partly.
};

}  // namespace

absl::Status AllGatherMatmul(const AllGatherMatmulArgs& args,
                             cluster::Communicator& communicator,
                             FusedWorkspace& workspace,
                             kernels::ThreadPool& pool,
                             cluster::Deadline deadline) {
  for (const FusedOutput& product : args.products) {
    RF_CHECK(product.w->columns() == args.x->columns() &&
             kernels::ActivationFormFor(product.w->form()) == args.x->form());
  }
  return GatherPipeline(args, communicator, workspace, pool).Run(deadline);
}

}  // namespace ringfleet::worker
