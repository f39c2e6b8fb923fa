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

// A slice of a tensor NAME in safetensors files. Values are f32, bf16, f16 or
// fp8 codes. The scales of fp8 blocks are in the tensor NAME_scale_inv. An
// element's row and column in the whole tensor choose its scale, so a slice may
// begin inside a block.
class SafetensorsSlice final : public OpenSlice {
 public:
  // Largest number of bytes of scales that a slice holds.
  static constexpr uint64_t kMaxScaleBytes = uint64_t{16} << 20;

  // `checkpoint` must outlive the slice. Errors: those of TensorSource::Open.
  static absl::StatusOr<std::unique_ptr<const OpenSlice>> Open(
      const Checkpoint& checkpoint, const TensorSlice& slice, float limit);

  int64_t row_bytes() const override;
  absl::Status Read(Range rows, RowBuffer* buffer,
                    RowSink* sink) const override;

 private:
  // Scales of the blocks that overlap the slice.
  struct BlockScales {
    std::vector<float> values;  // [block rows, columns], row-major.
    int64_t first_row = 0;      // In blocks, from the tensor's start.
    int64_t first_column = 0;
    int64_t columns = 0;
  };

  SafetensorsSlice(const Checkpoint& checkpoint, const TensorSlice& slice,
                   const TensorInfo& info, float limit)
      : checkpoint_(checkpoint), slice_(slice), info_(info), limit_(limit) {}

  absl::Status ReadScales();
  // Gives the sink one row as fp8 codes and returns true. Returns false and
  // gives nothing if the tensor is not fp8 or the sink wants floats.
  bool GiveCodes(const char* source, int64_t row, RowSink* sink) const;
  // Converts columns [column, column + count) of a row to float32.
  absl::Status Widen(const char* source, int64_t row, int64_t column,
                     int64_t count, float* values) const;
  // Returns the error for the first value that is NaN or beyond the limit.
  // `values` are the values that Widen made from `bytes`. values[0] belongs to
  // `column`.
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
