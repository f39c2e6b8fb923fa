// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_FUSED_TIMED_COMMUNICATOR_H_
#define RINGFLEET_WORKER_FUSED_TIMED_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "cluster/collectives/communicator.h"
#include "worker/fused/all_gather_matmul.h"
#include "worker/fused/matmul_reduce_scatter.h"
#include "worker/fused/reduce_scatter_while.h"

namespace ringfleet::worker {

// A communicator whose every operation gets the time `timeout`. A peer that
// computes for longer between two operations counts as lost. Belongs to one
// thread, as the communicator does. Errors are those of the communicator's
// operations.
class TimedCommunicator {
 public:
  // The operations that the owner uses. Fused products need a thread and
  // memory; kPlainExchanges has neither.
  enum class Use { kAll, kPlainExchanges };

  TimedCommunicator(cluster::Communicator* communicator, absl::Duration timeout,
                    Use use = Use::kAll)
      : communicator_(communicator),
        timeout_(timeout),
        fused_(use == Use::kAll && communicator->size() > 1
                   ? std::make_unique<FusedWorkspace>()
                   : nullptr) {}

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  cluster::TraceRecorder* trace() const { return communicator_->trace(); }

  // Adds up over ranks in place.
  absl::Status AllReduce(absl::Span<float> data, cluster::Encoding encoding,
                         uint64_t check) {
    return communicator_->AllReduce(data, data, encoding, check,
                                    cluster::Deadline::After(timeout_));
  }
  // Gathers in place. `offsets` [size() + 1] are the bounds of the ranks'
  // shares of `data`, in bytes; this rank's share is its input.
  absl::Status AllGather(absl::Span<char> data,
                         absl::Span<const uint64_t> offsets) {
    const uint64_t begin = offsets[rank()];
    return communicator_->AllGather(
        data.subspan(begin, offsets[rank() + 1] - begin), data, offsets,
        cluster::Deadline::After(timeout_));
  }
  // Exchange bytes, or float32 values that travel in `encoding`. See
  // Communicator::AllToAll.
  absl::Status AllToAll(absl::Span<const char> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<char> output,
                        absl::Span<const uint64_t> output_offsets) {
    return communicator_->AllToAll(input, input_offsets, output, output_offsets,
                                   cluster::Deadline::After(timeout_));
  }
  absl::Status AllToAll(absl::Span<const float> input,
                        absl::Span<const uint64_t> input_offsets,
                        absl::Span<float> output,
                        absl::Span<const uint64_t> output_offsets,
                        cluster::Encoding encoding) {
    return communicator_->AllToAll(input, input_offsets, output, output_offsets,
                                   encoding,
                                   cluster::Deadline::After(timeout_));
  }
  // Sets `share` to this rank's share of the sum over ranks of `input`. `input`
  // is unspecified afterwards.
  absl::Status ReduceScatter(absl::Span<float> input, absl::Span<float> share,
                             absl::Span<const uint64_t> offsets,
                             cluster::Encoding encoding, uint64_t check) {
    return communicator_->ReduceScatter(input, share, offsets, encoding, check,
                                        cluster::Deadline::After(timeout_));
  }
  // Products fused with an exchange. Rows are split over ranks by SplitRows.
  // Require Use::kAll and at least two ranks.
  absl::Status AllGatherMatmul(const AllGatherMatmulArgs& args,
                               kernels::ThreadPool& pool) {
    return worker::AllGatherMatmul(args, *communicator_, *fused_, pool,
                                   cluster::Deadline::After(timeout_));
  }
  absl::Status MatmulReduceScatter(const MatmulReduceScatterArgs& args,
                                   kernels::ThreadPool& pool) {
    return worker::MatmulReduceScatter(args, *communicator_, *fused_, pool,
                                       cluster::Deadline::After(timeout_));
  }
  absl::Status ReduceScatterWhile(const ReduceScatterWhileArgs& args,
                                  ComputeRows compute) {
    return worker::ReduceScatterWhile(args, compute, *communicator_, *fused_,
                                      cluster::Deadline::After(timeout_));
  }

  // The rows of all ranks that the last AllGatherMatmul has gathered.
  const kernels::Activations& gathered_x() const { return fused_->x; }

  // Memory for gathered bytes. It outlives a failed operation, whose frames a
  // slow peer may still be reading.
  std::vector<char>& gather_buffer() { return gather_buffer_; }
  // Memory for the bounds of the ranks' shares in gather_buffer().
  std::vector<uint64_t>& gather_offsets() { return gather_offsets_; }

 private:
  cluster::Communicator* const communicator_;
  const absl::Duration timeout_;
  std::vector<char> gather_buffer_;
  std::vector<uint64_t> gather_offsets_;
  // Null for one rank and for kPlainExchanges. Its thread inherits the CPUs of
  // the thread that constructs this object, not the single CPU that the
  // executor's thread may be pinned to.
  const std::unique_ptr<FusedWorkspace> fused_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_TIMED_COMMUNICATOR_H_
