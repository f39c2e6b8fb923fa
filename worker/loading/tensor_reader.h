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
// into a WeightMatrix. Each thread uses the memory of one RowBuffer and one
// RowPacker.
//
// Every method may return the errors of TensorSource::Open and OpenSlice::Read,
// and a status from `progress`. A value that is not finite in the wanted form
// is an error of OpenSlice::Read. RESOURCE_EXHAUSTED: the system has no memory
// for the matrix.
class TensorReader {
 public:
  // Called on the calling thread with the number of bytes of the result that
  // were stored since the last call. A non-OK status ends the read.
  using Progress = std::function<absl::Status(uint64_t bytes)>;

  // `source` and `pool` must outlive the reader. One thread at a time may use
  // the reader.
  TensorReader(const cluster::TensorSource& source, kernels::ThreadPool& pool,
               Progress progress);

  // Reads a slice into a matrix of `form`. Rounds each value at most once. The
  // matrix lies in memory of `arena`.
  absl::StatusOr<kernels::WeightMatrix> ReadMatrix(
      const cluster::TensorSlice& slice, kernels::WeightForm form,
      kernels::BufferArena& arena);

  // Receives the values [slice.columns.size()] of one row. Row 0 is the first
  // row of the slice. Called from any thread, once for each row.
  using TakeRow = absl::FunctionRef<void(int64_t row, const float* values)>;
  // Reads a slice and passes each row to `take` as float32. A value that is not
  // finite in `form` is an error. Progress counts `stored_bytes_per_row` bytes
  // for each row.
  absl::Status ReadRows(const cluster::TensorSlice& slice,
                        kernels::WeightForm form, uint64_t stored_bytes_per_row,
                        TakeRow take);
  // Reads a slice into the rows of `matrix` from `first_row` on, and passes
  // each row to `take` as float32. Progress counts nothing.
  absl::Status ReadIntoMatrix(const cluster::TensorSlice& slice,
                              kernels::WeightMatrix* matrix, int64_t first_row,
                              TakeRow take);
  // Returns the values of a slice in row-major order. Requires a slice without
  // codes.
  absl::StatusOr<std::vector<float>> ReadFloats(
      const cluster::TensorSlice& slice);

 private:
  // Memory of one thread for reading and packing.
  struct Buffer {
    cluster::RowBuffer rows;
    kernels::RowPacker packer;
    std::vector<float> widened;
  };

  // Where rows go: one or both are set.
  struct Target {
    kernels::WeightMatrix* matrix = nullptr;
    int64_t first_row = 0;  // In the matrix.
    const TakeRow* take = nullptr;
  };
  class Sink;

  absl::Status ReadSlice(const cluster::TensorSlice& slice,
                         kernels::WeightForm form,
                         uint64_t stored_bytes_per_row, const Target& target);
  absl::Status ReadRange(const cluster::OpenSlice& slice, cluster::Range rows,
                         const Target& target);
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
