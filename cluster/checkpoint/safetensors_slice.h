// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_SLICE_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_SLICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/stored_tensor.h"
#include "cluster/model/tensor_source.h"
#include "kernels/products/code_row.h"

namespace ringfleet::cluster {

// A slice of a tensor in safetensors files: floats, or codes with scales
// (StoredTensor). An element's row and column in the whole tensor choose its
// scale, so a slice may begin inside a block.
class SafetensorsSlice final : public OpenSlice {
 public:
  // Largest number of bytes of scales that a slice holds. Scales of int4 take a
  // sixteenth of the bytes of bf16.
  static constexpr uint64_t kMaxScaleBytes = uint64_t{16} << 20;

  // `checkpoint` must outlive the slice. Errors: those of TensorSource::Open.
  static absl::StatusOr<std::unique_ptr<const OpenSlice>> Open(
      const Checkpoint& checkpoint, const TensorSlice& slice, float limit);

  int64_t row_bytes() const override;
  absl::Status Read(Range rows, RowBuffer* buffer,
                    RowSink* sink) const override;

 private:
  // Scales of the blocks that overlap the slice, as the file has them.
  struct BlockScales {
    std::vector<char> bytes;  // [block rows, columns], row-major.
    int64_t first_row = 0;    // In blocks, from the tensor's start.
    int64_t first_column = 0;
    int64_t columns = 0;
  };

  SafetensorsSlice(const Checkpoint& checkpoint, const TensorSlice& slice,
                   float limit)
      : checkpoint_(checkpoint), slice_(slice), limit_(limit) {}

  // Checks the numbers of an int4 tensor's shape.
  absl::Status CheckShapeTensor() const;
  absl::Status ReadScales();
  // Returns the bytes of `count` elements of the tensor.
  int64_t BytesOf(int64_t count) const { return count * element_bits_ / 8; }
  // Returns `count` codes of a row from `column` on, which lie in `source`.
  // Widens their scales into `scales`.
  kernels::CodeRow CodesOf(const char* source, int64_t row, int64_t column,
                           int64_t count, std::vector<float>* scales) const;
  // Returns the error for the first value that is NaN or beyond the limit.
  // `values` are the widened values of `bytes`. values[0] belongs to `column`.
  absl::Status NotFinite(const char* bytes, const float* values, int64_t row,
                         int64_t column) const;

  const Checkpoint& checkpoint_;
  const TensorSlice slice_;
  const float limit_;
  StoredTensor stored_;
  int element_bits_ = 0;
  BlockScales scales_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_SLICE_H_
