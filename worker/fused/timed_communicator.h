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

// A communicator with the time that each operation of a step is given: a peer
// that computes longer than that between two of them counts as lost.
class TimedCommunicator {
 public:
  // For which operations: products that are fused with an exchange take a
  // thread.
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

  // In place.
  absl::Status AllReduce(absl::Span<float> data, cluster::Encoding encoding,
                         uint64_t check) {
    return communicator_->AllReduce(data, data, encoding, check,
                                    cluster::Deadline::After(timeout_));
  }
  // In place.
  absl::Status AllGather(absl::Span<char> data,
                         absl::Span<const uint64_t> offsets) {
    const uint64_t begin = offsets[rank()];
    return communicator_->AllGather(
        data.subspan(begin, offsets[rank() + 1] - begin), data, offsets,
        cluster::Deadline::After(timeout_));
  }
  // As the communicator's, of bytes and of values.
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
  // `share` becomes this rank's part of the sum over ranks of `input`, which
  // is left unspecified.
  absl::Status ReduceScatter(absl::Span<float> input, absl::Span<float> share,
                             absl::Span<const uint64_t> offsets,
                             cluster::Encoding encoding, uint64_t check) {
    return communicator_->ReduceScatter(input, share, offsets, encoding, check,
                                        cluster::Deadline::After(timeout_));
  }
  // Products that are fused with an exchange; the results' rows are those of
  // SplitRows. Require Use::kAll and two ranks.
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

  // All rows of the last AllGatherMatmul.
  const kernels::Activations& gathered_x() const { return fused_->x; }

  // Memory for what is being gathered: it outlives a failed operation, whose
  // frames a slow peer may still be reading.
  std::vector<char>& gather_buffer() { return gather_buffer_; }
  // Borders of the ranks' parts in it.
  std::vector<uint64_t>& gather_offsets() { return gather_offsets_; }

 private:
  cluster::Communicator* const communicator_;
  const absl::Duration timeout_;
  std::vector<char> gather_buffer_;
  std::vector<uint64_t> gather_offsets_;
  // Null for one rank, and where it is of no use. Its thread may run on the
  // CPUs that the one has which makes this, not only on the one that the
  // executor's may be kept to.
  const std::unique_ptr<FusedWorkspace> fused_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_TIMED_COMMUNICATOR_H_
