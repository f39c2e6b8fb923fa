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
#include "cluster/model/tensor_source.h"

namespace ringfleet::cluster {

// A slice of a tensor in safetensors files: values of f32, bf16 or f16, or fp8
// codes with the scales of their blocks in the tensor NAME_scale_inv. The row
// and column of an fp8 element in the whole tensor choose its scale, so that a
// slice may begin anywhere inside a block.
class SafetensorsSlice final : public OpenSlice {
 public:
  // Most scales that a slice holds.
  static constexpr uint64_t kMaxScaleBytes = uint64_t{16} << 20;

  // `checkpoint` must outlive the slice. Errors: those of TensorSource::Open.
  static absl::StatusOr<std::unique_ptr<const OpenSlice>> Open(
      const Checkpoint& checkpoint, const TensorSlice& slice, float limit);

  int64_t row_bytes() const override;
  absl::Status Read(Range rows, RowBuffer* buffer,
                    RowSink* sink) const override;

 private:
  // Scales of the blocks that the slice touches.
  struct BlockScales {
    std::vector<float> values;  // [rows, columns] of blocks, row-major.
    int64_t first_row = 0;      // In blocks, of the whole tensor.
    int64_t first_column = 0;
    int64_t columns = 0;
  };

  SafetensorsSlice(const Checkpoint& checkpoint, const TensorSlice& slice,
                   const TensorInfo& info, float limit)
      : checkpoint_(checkpoint), slice_(slice), info_(info), limit_(limit) {}

  absl::Status ReadScales();
  // Gives the sink one row as fp8 codes. False: the tensor is not fp8 or the
  // sink wants floats, and nothing was taken.
  bool GiveCodes(const char* source, int64_t row, RowSink* sink) const;
  // Widens columns [column, column + count) of a row.
  absl::Status Widen(const char* source, int64_t row, int64_t column,
                     int64_t count, float* values) const;
  // The error of a value beyond the limit. `values` are what Widen made of
  // `bytes`, from `column` on.
  absl::Status NotFinite(const char* bytes, const float* values, int64_t row,
                         int64_t column) const;

  const Checkpoint& checkpoint_;
  const TensorSlice slice_;
  const TensorInfo& info_;
  const float limit_;
  bool scaled_ = false;
  BlockScales scales_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_SAFETENSORS_SLICE_H_
