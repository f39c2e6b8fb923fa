// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_TENSOR_READER_H_
#define RINGFLEET_WORKER_LOADING_TENSOR_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/model/tensor_source.h"
#include "kernels/buffer_arena.h"
#include "kernels/mutex.h"
#include "kernels/products/row_packer.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"

namespace ringfleet::worker {

// Reads slices of a source's tensors with all threads of a pool, as float32 or
// into a WeightMatrix. Each thread uses one RowBuffer and 16 rows of codes.
//
// Errors, of every method: those of TensorSource::Open and OpenSlice::Read. A
// value must be finite in the wanted form, too. RESOURCE_EXHAUSTED: the system
// has no memory for the matrix. A status that `progress` returned.
class TensorReader {
 public:
  // Told, on the calling thread, how many bytes of the result were stored
  // since the last call. A non-OK status ends the read.
  using Progress = std::function<absl::Status(uint64_t bytes)>;

  // `source` and `pool` must outlive the reader. One thread at a time may use
  // it.
  TensorReader(const cluster::TensorSource& source, kernels::ThreadPool& pool,
               Progress progress);

  // Each value is rounded at most once. The matrix is in memory of `arena`.
  absl::StatusOr<kernels::WeightMatrix> ReadMatrix(
      const cluster::TensorSlice& slice, kernels::WeightForm form,
      kernels::BufferArena& arena);

  // Takes values [slice.columns.size()] of a row; rows count from the slice's
  // first. Called from any thread, never for one row twice.
  using TakeRow = absl::FunctionRef<void(int64_t row, const float* values)>;
  // The slice row by row; a value that is not finite in `form` is an error.
  // `stored_bytes_per_row` are what progress counts.
  absl::Status ReadRows(const cluster::TensorSlice& slice,
                        kernels::WeightForm form, uint64_t stored_bytes_per_row,
                        TakeRow take);
  // The slice in row-major order.
  absl::StatusOr<std::vector<float>> ReadFloats(
      const cluster::TensorSlice& slice);

 private:
  // Memory that a thread reads into and packs with.
  struct Buffer {
    cluster::RowBuffer rows;
    kernels::RowPacker packer;
  };

  // Into `matrix`, or if it is null to `take`.
  absl::Status ReadSlice(const cluster::TensorSlice& slice,
                         kernels::WeightForm form,
                         uint64_t stored_bytes_per_row, const TakeRow* take,
                         kernels::WeightMatrix* matrix);
  absl::Status ReadRange(const cluster::OpenSlice& slice, cluster::Range rows,
                         const TakeRow* take, kernels::WeightMatrix* matrix);
  std::unique_ptr<Buffer> TakeBuffer();
  void GiveBuffer(std::unique_ptr<Buffer> buffer);

  const cluster::TensorSource& source_;
  kernels::ThreadPool& pool_;
  const Progress progress_;
  Mutex mu_;
  int num_buffers_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Buffer>> free_buffers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_TENSOR_READER_H_
