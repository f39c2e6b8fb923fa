// SPDX-License-Identifier: Apache-2.0
// The interface through which the loader and others read a checkpoint's
// tensors, whatever the format of its files.
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
#include "kernels/products/code_row.h"

namespace ringfleet::cluster {

// A tensor of a checkpoint: its encoding, its shape and the position of its
// bytes.
struct TensorInfo {
  std::string name;
  kernels::Dtype dtype;
  std::vector<int64_t> shape;
  int file = 0;         // Index into the checkpoint's files, from 0.
  uint64_t offset = 0;  // From the start of the file.
  uint64_t bytes = 0;
};

// A rectangle of a tensor, and the shape and encoding that the tensor must
// have.
struct TensorSlice {
  std::string name;
  // The tensor's: [columns], [rows, columns], or [experts, rows, columns].
  std::vector<int64_t> shape;
  Range rows;  // {0, 1} for a vector. Rows of all experts are counted through.
  Range columns;
  // The encoding that the tensor may have instead of f32, bf16 and f16. kInt4:
  // must have.
  QuantMethod method = QuantMethod::kNone;
  // Rows and columns of the blocks of fp8 and int8, from config.json. 0:
  // config.json has none.
  int block_rows = 0;
  int block_columns = 0;
};

// Takes the rows of a slice. Row 0 is the first row of the slice.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Takes a row as codes and returns true. Returns false and takes nothing if
  // the sink wants floats. The caller then calls TakeFloats with the row.
  virtual bool TakeCodes(int64_t row, const kernels::CodeRow& codes) = 0;
  // Takes a row as float32. `values` has one value for each column of the
  // slice.
  virtual void TakeFloats(int64_t row, const float* values) = 0;
};

// Working memory of a thread that calls OpenSlice::Read.
struct RowBuffer {
  static constexpr size_t kBytes = size_t{1} << 20;
  std::unique_ptr<char[]> bytes =
      std::make_unique_for_overwrite<char[]>(kBytes);
  std::vector<float> row;
  std::vector<float> scales;
};

// A slice whose tensor has been found and checked. Immutable and thread-safe.
class OpenSlice {
 public:
  virtual ~OpenSlice() = default;

  // Returns the bytes of one row of the slice in the checkpoint.
  virtual int64_t row_bytes() const = 0;

  // Reads rows [rows.begin, rows.end) of the tensor, in order, and gives them
  // to `sink`. The rows must lie in the slice. Only bytes of the slice are
  // read.
  //
  // Errors: those of reading files. DATA_LOSS: a value is NaN or exceeds the
  // limit of Open; names the tensor, the value and its row and column.
  virtual absl::Status Read(Range rows, RowBuffer* buffer,
                            RowSink* sink) const = 0;
};

// The tensors of one checkpoint. Immutable and thread-safe.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Returns a tensor by its name. NOT_FOUND: no such tensor. INVALID_ARGUMENT:
  // a tensor whose encoding cannot be read.
  virtual absl::StatusOr<const TensorInfo*> Find(
      absl::string_view name) const = 0;
  // Returns the names of all tensors, sorted.
  virtual std::vector<std::string> Names() const = 0;
  // Returns the name of the file that has `tensor`, a tensor of this source.
  virtual const std::string& FileName(const TensorInfo& tensor) const = 0;

  // Opens a slice. The magnitude of its values must not exceed `limit`.
  //
  // Errors: those of FindStored (stored_tensor.h). DATA_LOSS: the tensor's
  // scales include a negative or infinite value or NaN, or the shape that an
  // int4 tensor names is not the slice's. INVALID_ARGUMENT: the blocks are so
  // small that their scales take too much memory.
  virtual absl::StatusOr<std::unique_ptr<const OpenSlice>> Open(
      const TensorSlice& slice, float limit) const = 0;

  // Returns true if the tensor exists, even if its encoding cannot be read.
  bool Contains(absl::string_view name) const {
    return !absl::IsNotFound(Find(name).status());
  }
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_TENSOR_SOURCE_H_
