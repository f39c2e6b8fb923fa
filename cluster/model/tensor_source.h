// SPDX-License-Identifier: Apache-2.0
// The seam between the format of a checkpoint's files and those who read its
// tensors.
#ifndef RINGFLEET_CLUSTER_MODEL_TENSOR_SOURCE_H_
#define RINGFLEET_CLUSTER_MODEL_TENSOR_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/model/shard_plan.h"
#include "kernels/dtype.h"
#include "kernels/products/quantize_f8.h"

namespace ringfleet::cluster {

// A tensor of a checkpoint: how its values are encoded, its shape, and where
// its bytes lie.
struct TensorInfo {
  std::string name;
  kernels::Dtype dtype;
  std::vector<int64_t> shape;
  int file = 0;         // Index into the checkpoint's files.
  uint64_t offset = 0;  // From the start of the file.
  uint64_t bytes = 0;
};

// A rectangle of a tensor, and what the tensor must be.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;  // Wanted: [columns], or [rows, columns].
  Range rows;                  // {0, 1} of a vector.
  Range columns;
  // True if fp8 with block scales is allowed (arXiv:2412.19437, section 3.3).
  bool may_be_fp8 = false;
  // Rows and columns of a block, as config.json has them; 0: it has none.
  int block_rows = 0;
  int block_columns = 0;
};

// Takes the rows of a slice; rows count from the slice's first.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Takes a row as codes. False, with nothing taken, when the sink wants
  // floats; TakeFloats comes next then.
  virtual bool TakeCodes(int64_t row, const kernels::F8Row& codes) = 0;
  // Takes a row as float32 [columns of the slice].
  virtual void TakeFloats(int64_t row, const float* values) = 0;
};

// Memory of one thread that reads rows.
struct RowBuffer {
  static constexpr size_t kBytes = size_t{1} << 20;
  std::unique_ptr<char[]> bytes =
      std::make_unique_for_overwrite<char[]>(kBytes);
  std::vector<float> row;
};

// A slice that is found and checked. Immutable, thread-safe.
class OpenSlice {
 public:
  virtual ~OpenSlice() = default;

  // Bytes that one row of the slice has in the source.
  virtual int64_t row_bytes() const = 0;

  // Reads rows [rows.begin, rows.end) of the tensor, which lie in the slice, in
  // order. Nothing but the bytes of the slice is read.
  //
  // Errors: DATA_LOSS names tensor, place and value if a value is NaN or
  // exceeds the slice's limit; those of the files.
  virtual absl::Status Read(Range rows, RowBuffer* buffer,
                            RowSink* sink) const = 0;
};

// The tensors of one checkpoint. Immutable, thread-safe.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Errors: NOT_FOUND; INVALID_ARGUMENT for an encoding that cannot be read.
  virtual absl::StatusOr<const TensorInfo*> Find(
      absl::string_view name) const = 0;
  // All names, sorted.
  virtual std::vector<std::string> Names() const = 0;
  // The file that a tensor of this source is in.
  virtual const std::string& FileName(const TensorInfo& tensor) const = 0;

  // Opens a slice whose values must not exceed `limit` in magnitude.
  //
  // Errors: DATA_LOSS: the tensor is missing, or has another shape or encoding
  // than the slice wants; its scales are missing, have another shape, or are
  // not finite and positive or zero. INVALID_ARGUMENT: the blocks are too
  // small.
  virtual absl::StatusOr<std::unique_ptr<const OpenSlice>> Open(
      const TensorSlice& slice, float limit) const = 0;

  // True also for a tensor that Find cannot read.
  bool Contains(absl::string_view name) const {
    return !absl::IsNotFound(Find(name).status());
  }
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_TENSOR_SOURCE_H_
