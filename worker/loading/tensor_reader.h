// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_LOADING_TENSOR_READER_H_
#define RINGFLEET_WORKER_LOADING_TENSOR_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/shard_plan.h"
#include "kernels/buffer_arena.h"
#include "kernels/mutex.h"
#include "kernels/products/row_packer.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"

namespace ringfleet::worker {

// A rectangle of a tensor of the checkpoint.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;  // Wanted: [columns], or [rows, columns].
  cluster::Range rows;         // {0, 1} of a vector.
  cluster::Range columns;
  // Whether fp8 with block scales is allowed (arXiv:2412.19437, section 3.3).
  bool may_be_fp8 = false;
};

// Reads slices of tensors and widens them to float32, or stores them as a
// WeightMatrix. Reads the bytes of the slice and, for fp8, the scales of its
// blocks; nothing else. An fp8 element's scale is chosen by its row and column
// in the whole tensor, so a slice may begin anywhere inside a block.
//
// Uses one buffer of kReadBytes, one row of floats and 16 of codes per thread
// of the pool, and for fp8 at most kMaxScaleBytes for the scales of one tensor.
//
// Errors, of every method:
//   DATA_LOSS: the tensor is missing, or of another shape or dtype than the
//     configuration asks for; a value is NaN or infinite, or would be in the
//     wanted dtype; fp8 without scales, or scales that are not finite and
//     positive or zero, or of another shape.
//   INVALID_ARGUMENT: the configuration's blocks are too small.
//   RESOURCE_EXHAUSTED: the system has no memory for the matrix.
//   What `progress` returned.
class TensorReader {
 public:
  static constexpr size_t kReadBytes = size_t{1} << 20;
  static constexpr uint64_t kMaxScaleBytes = uint64_t{16} << 20;

  // Told, on the calling thread, how many bytes of the result were stored
  // since the last call. A non-OK status ends the read.
  using Progress = std::function<absl::Status(uint64_t bytes)>;

  // All but `progress` must outlive the reader. One thread at a time may use
  // it.
  TensorReader(const cluster::Checkpoint& checkpoint,
               const cluster::ModelSpec& spec, kernels::ThreadPool& pool,
               Progress progress);

  // Each value is rounded at most once. The matrix is in memory of `arena`.
  absl::StatusOr<kernels::WeightMatrix> ReadMatrix(const TensorSlice& slice,
                                                   kernels::WeightForm form,
                                                   kernels::BufferArena& arena);

  // Takes values [slice.columns.size()] of a row; rows count from the slice's
  // first. Called from any thread, never for the same row twice.
  using RowSink = absl::FunctionRef<void(int64_t row, const float* values)>;
  // The slice row by row; a value that is not finite in `form` is an error.
  // `stored_bytes_per_row` are what progress counts.
  absl::Status ReadRows(const TensorSlice& slice, kernels::WeightForm form,
                        uint64_t stored_bytes_per_row, RowSink sink);
  // The slice in row-major order.
  absl::StatusOr<std::vector<float>> ReadFloats(const TensorSlice& slice);

 private:
  struct BlockScales {
    // [rows, columns] of the blocks that the slice touches, row-major.
    std::vector<float> values;
    int64_t first_row = 0;  // Of blocks, in the whole tensor.
    int64_t first_column = 0;
    int64_t columns = 0;
    int64_t block_rows = 0;
    int64_t block_columns = 0;
  };
  // One slice on its way.
  struct Job;

  absl::StatusOr<const cluster::TensorInfo*> Resolve(
      const TensorSlice& slice) const;
  absl::StatusOr<BlockScales> ReadScales(const TensorSlice& slice,
                                         const cluster::TensorInfo& info) const;
  absl::Status ReadSlice(const TensorSlice& slice, kernels::WeightForm form,
                         uint64_t stored_bytes_per_row, const RowSink* sink,
                         kernels::WeightMatrix* matrix);
  absl::Status Run(const Job& job, uint64_t stored_bytes_per_row);
  absl::Status ReadRange(const Job& job, int64_t begin, int64_t end);
  // Stores a row of the slice, where it goes from fp8 to int8 and all values
  // are finite; else ConvertPart does, or says what is not. Whether it did.
  static bool PackF8(const Job& job, const char* source, int64_t row,
                     kernels::RowPacker* packer);
  // Widens columns [column, column + count) of a row.
  absl::Status ConvertPart(const Job& job, const char* source, int64_t row,
                           int64_t column, int64_t count, float* values) const;

  // What a thread reads into, and widens to.
  struct Buffer {
    std::unique_ptr<char[]> bytes;
    std::vector<float> row;
    kernels::RowPacker packer;
  };
  Buffer TakeBuffer();
  void GiveBuffer(Buffer buffer);

  const cluster::Checkpoint& checkpoint_;
  const cluster::ModelSpec& spec_;
  kernels::ThreadPool& pool_;
  const Progress progress_;
  Mutex mu_;
  int num_buffers_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Buffer> free_buffers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_TENSOR_READER_H_
