// SPDX-License-Identifier: Apache-2.0
#include "worker/all_gather_matmul.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cluster/trace_recorder.h"
#include "kernels/check.h"
#include "kernels/matmul.h"

namespace ringfleet::worker {
namespace {

using cluster::Half;
using cluster::ShardHalf;
using kernels::Activations;
using kernels::RowRange;

// Bytes that a thread copies in about the time it takes to wake it.
constexpr size_t kCopyGrain = size_t{1} << 16;

template <typename T>
void GrowTo(size_t size, std::vector<T>* buffer) {
  if (buffer->size() < size) buffer->resize(size);
}

class GatherPipeline final : public cluster::HalvesReceiver {
 public:
  GatherPipeline(const AllGatherMatmulArgs& args,
                 cluster::Communicator& communicator, FusedWorkspace& workspace,
                 kernels::ThreadPool& pool, FusedObserver* observer)
      : args_(args),
        communicator_(communicator),
        workspace_(workspace),
        pool_(pool),
        observer_(observer),
        ranks_(communicator.size()),
        rank_(communicator.rank()),
        halves_(args.rows, ranks_),
        least_rows_(std::max<size_t>(args.tiles.piece_rows, 1)),
        rows_together_(kernels::BestProductRows(args.x->form()).together),
        x_bytes_(args.x->StoredRowBytes()),
        row_bytes_(x_bytes_ + args.attached_bytes) {}

  absl::Status Run(cluster::Deadline deadline) {
    Prepare();
    const RowRange own = halves_.Shard(rank_);
    const auto communicate = [&] {
      absl::Status status = communicator_.GatherHalves(
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
    for (int step = 0; step <= ranks_ + 1; ++step) {
      if (step >= 2) Report(&FusedObserver::Written, step, HalvesAt(step - 2));
      if (step < 1 || step > ranks_) continue;
      if (!Multiply(step)) break;
    }
    const cluster::TraceScope scope(communicator_.trace(), kWaitForSends,
                                    cluster::TraceEvent::Kind::kWait);
    return workspace_.thread.Await();
  }

  void Sends(uint32_t step, ShardHalf which) override {
    if (observer_ != nullptr) observer_->Sent(static_cast<int>(step), which);
  }

  void Arrived(ShardHalf which,
               absl::Span<const absl::Span<const char>> pieces) override {
    const size_t side = static_cast<size_t>(which.half);
    std::vector<char>& partly = workspace_.partly[side];
    if (row_bytes_ == 0) return;
    size_t complete = 0;
    size_t row = halves_.Of(which).begin + workspace_.progress.Of(which);
    for (absl::Span<const char> piece : pieces) {
      while (!piece.empty()) {
        // Whole rows are read where they lie, others once they are together.
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
  std::array<ShardHalf, 2> HalvesAt(int offset) const {
    return {ShardHalf{(rank_ + offset) % ranks_, Half::kLeft},
            ShardHalf{(rank_ - offset + ranks_) % ranks_, Half::kRight}};
  }

  void Report(void (FusedObserver::*what)(int, ShardHalf), int step,
              const std::array<ShardHalf, 2>& halves) {
    if (observer_ == nullptr) return;
    for (const ShardHalf half : halves) (observer_->*what)(step, half);
  }

  void Load(size_t row, const char* bytes) {
    workspace_.x.LoadRow(row, bytes);
    if (args_.attached_bytes > 0) {
      args_.attachment->Load(row, bytes + x_bytes_);
    }
  }

  // Memory for all rows, and the own ones in it as others will get them.
  void Prepare() {
    workspace_.x.Reshape(args_.x->form(), args_.rows, args_.x->columns());
    const RowRange own = halves_.Shard(rank_);
    GrowTo(own.size() * row_bytes_, &workspace_.encoded);
    for (auto& partly : workspace_.partly) GrowTo(row_bytes_, &partly);
    pool_.ParallelFor(own.size(),
                      1 + kCopyGrain / std::max<size_t>(row_bytes_, 1),
                      [&](size_t begin, size_t end) {
                        for (size_t i = begin; i < end; ++i) {
                          StoreOwn(i, own.begin + i);
                        }
                      });
    workspace_.progress.Reset(ranks_);
    for (const ShardHalf half : HalvesAt(0)) {
      workspace_.progress.Add(half, halves_.Of(half).size());
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

  // Leaves what does not fill tiles, which take as long as full ones and may be
  // filled by rows that are on their way, if so many rows remain as a product
  // is worth beginning for. Tiles with rows of both halves take longer.
  void LeaveIncompleteTiles(const std::array<size_t, 2>& done,
                            std::array<size_t, 2>* come) const {
    std::array<size_t, 2> rows;
    for (size_t i = 0; i < 2; ++i) {
      rows[i] = ((*come)[i] - done[i]) / rows_together_ * rows_together_;
    }
    if (rows[0] + rows[1] < least_rows_) return;
    *come = {done[0] + rows[0], done[1] + rows[1]};
  }

  // Rows that a product is worth beginning for, of `left`. A small rest is not
  // left alone.
  size_t LeastRows(size_t left) const {
    return 2 * left < 3 * least_rows_ ? left : least_rows_;
  }

  // False when rows will not come.
  bool Multiply(int step) {
    const std::array<ShardHalf, 2> halves = HalvesAt(step - 1);
    Report(&FusedObserver::Multiplied, step, halves);
    const std::array<RowRange, 2> all = {halves_.Of(halves[0]),
                                         halves_.Of(halves[1])};
    const size_t total = all[0].size() + all[1].size();
    std::array<size_t, 2> done = {0, 0};
    while (done[0] + done[1] < total) {
      const size_t before = done[0] + done[1];
      const size_t least = before + LeastRows(total - before);
      std::array<size_t, 2> come;
      {
        const cluster::TraceScope scope(communicator_.trace(), "wait for rows",
                                        cluster::TraceEvent::Kind::kWait);
        if (!workspace_.progress.Await(halves, least, &come)) return false;
      }
      if (come[0] + come[1] < total) LeaveIncompleteTiles(done, &come);
      const std::array<RowRange, 2> piece = {
          RowRange{all[0].begin + done[0], all[0].begin + come[0]},
          RowRange{all[1].begin + done[1], all[1].begin + come[1]}};
      const cluster::TraceScope scope(communicator_.trace(), kMultiplyPiece);
      MultiplyRanges(args_.products, workspace_.x, piece, args_.tiles, pool_);
      done = come;
    }
    return true;
  }

  const AllGatherMatmulArgs& args_;
  cluster::Communicator& communicator_;
  FusedWorkspace& workspace_;
  kernels::ThreadPool& pool_;
  FusedObserver* const observer_;
  const int ranks_;
  const int rank_;
  const cluster::RowHalves halves_;
  const size_t least_rows_;
  const size_t rows_together_;
  const size_t x_bytes_;    // Of a row, to be multiplied.
  const size_t row_bytes_;  // The same and what is attached.
  std::array<size_t, 2> partly_bytes_ = {0, 0};  // In workspace_.partly.
};

}  // namespace

absl::Status AllGatherMatmul(const AllGatherMatmulArgs& args,
                             cluster::Communicator& communicator,
                             FusedWorkspace& workspace,
                             kernels::ThreadPool& pool,
                             cluster::Deadline deadline,
                             FusedObserver* observer) {
  for (const FusedOutput& product : args.products) {
    RF_CHECK(product.weights.depth() == args.x->columns() &&
             product.weights.form() == args.x->form());
  }
  return GatherPipeline(args, communicator, workspace, pool, observer)
      .Run(deadline);
}

}  // namespace ringfleet::worker
