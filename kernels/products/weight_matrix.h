// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_PRODUCTS_WEIGHT_MATRIX_H_
#define RINGFLEET_KERNELS_PRODUCTS_WEIGHT_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/aligned_buffer.h"
#include "kernels/buffer_arena.h"
#include "kernels/check.h"
#include "kernels/products/activations.h"

namespace ringfleet::kernels {

// Forms of weights in memory. Rows of the first four are packed into panels
// (WeightMatrix::Panel); the others are row-major.
//   kF32, kBf16: elements.
//   kInt8: codes -128..127 with a float32 scale for each row (output).
//   kInt4: codes -8..7 with a bfloat16 scale for each kInt4Group of a row.
//   kF32Rows, kBf16Rows: elements of tables whose rows are looked up. kF32Rows
//     is also the router's form; its product has an order of its own
//     (matmul.h). kBf16Rows has no product.
//   kReference: float32, multiplied by OpenBLAS: the independent model that
//     `score --reference f32` compares with.
enum class WeightForm : uint8_t {
  kF32,
  kBf16,
  kInt8,
  kInt4,
  kF32Rows,
  kBf16Rows,
  kReference
};

// "f32", "bf16", "int8", "int4", "f32 rows", "bf16 rows", "reference".
absl::string_view WeightFormName(WeightForm form);

// Returns true if elements lie row by row instead of in panels.
inline bool IsRows(WeightForm form) {
  return form == WeightForm::kF32Rows || form == WeightForm::kBf16Rows ||
         form == WeightForm::kReference;
}

// Returns the form of activations that a product with such weights reads.
inline Activations::Form ActivationFormFor(WeightForm form) {
  return form == WeightForm::kInt8 || form == WeightForm::kInt4
             ? Activations::Form::kInt8
             : Activations::Form::kF32;
}

// Outputs that are computed together: four vectors of 16 int32 sums. Products
// of every form are cut into panels of so many rows.
inline constexpr size_t kPanelRows = 64;

// The version of the bytes of all forms. Weights that a file keeps in another
// version are packed again.
inline constexpr int kWeightFormat = 2;

// The weights of one product, [rows, columns] = [out, in], in the form that
// kernels read: owned, or bytes of a mapped file. Only this file and the panel
// kernels know the layout, which does not depend on the processor. Immutable
// after loading, and then thread-safe.
class WeightMatrix {
 public:
  // Makes a matrix of zeros. Either size may be 0.
  //
  // Errors: those of AlignedBuffer::Allocate.
  static absl::StatusOr<WeightMatrix> Create(WeightForm form, size_t rows,
                                             size_t columns);
  // Create with memory of `arena`.
  static absl::StatusOr<WeightMatrix> Create(WeightForm form, size_t rows,
                                             size_t columns,
                                             BufferArena& arena);

  // Makes a matrix of the Bytes(form, rows, columns) bytes at `data`, aligned
  // to 64, which `keeper` keeps in place and unchanged. Rows cannot be set.
  static WeightMatrix View(WeightForm form, size_t rows, size_t columns,
                           const char* data,
                           std::shared_ptr<const void> keeper);

  WeightMatrix() = default;
  // Create for sizes that are known to be small. Aborts without memory.
  WeightMatrix(WeightForm form, size_t rows, size_t columns);

  // Returns bytes() of such a matrix. Saturates instead of overflowing.
  static uint64_t Bytes(WeightForm form, uint64_t rows, uint64_t columns);

  WeightForm form() const { return form_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  // Includes scales and the padding of the last panel.
  size_t bytes() const { return keeper_ ? view_bytes_ : buffer_.size(); }
  const char* data() const { return keeper_ ? view_ : buffer_.data(); }

  // Stores values [columns], finite, rounded to form(). Distinct rows may be
  // set from different threads.
  void SetRow(size_t row, const float* values);
  // Stores `count` rounded rows of one panel: elements of kF32 and kBf16, or
  // kInt8's codes and scales (QuantizeInt8). Rows are `stride` bytes apart,
  // padded with zeros to whole steps, and readable up to the next 16 bytes.
  // Distinct rows may be set from different threads.
  void SetRoundedRows(size_t row, size_t count, const char* rows, size_t stride,
                      const float* scales);
  // Stores a row of kInt4, unchanged: codes of columns() inputs as
  // CodeForm::kInt4 has them, a scale for each kInt4Group, a bfloat16 widened.
  // Distinct rows may be set from different threads.
  void SetInt4Row(size_t row, const uint8_t* codes, const float* scales);
  // Widens the rounded values of row `row`.
  void GetRow(size_t row, float* values) const;

  // Returns a row's elements. Requires IsRows(form()).
  const void* Row(size_t row) const {
    RF_CHECK(IsRows(form_));
    return data() + row * columns_ * element_bytes();
  }

  size_t num_panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  // Returns rows [index * kPanelRows, ...), padded to kPanelRows. Requires
  // !IsRows(form()). Columns stand in steps, [steps][kPanelRows][4 bytes],
  // padded to whole steps. A step has as many columns as four bytes of a row
  // hold. It is the operand of one instruction per 16 rows.
  //   kF32, kBf16: the steps, of one column and of two.
  //   kInt8: the steps, of four columns, codes as bytes + 128; then f32 scales
  //     [kPanelRows].
  //   kInt4: for each kInt4Group: bf16 scales [kPanelRows]; then pairs of
  //     steps, the first in the low and the second in the high four bits,
  //     codes + 8. Columns are padded to a whole group.
  const uint8_t* Panel(size_t index) const {
    return reinterpret_cast<const uint8_t*>(data()) + index * panel_bytes_;
  }
  size_t panel_bytes() const { return panel_bytes_; }

 private:
  WeightMatrix(WeightForm form, size_t rows, size_t columns,
               AlignedBuffer buffer);

  size_t element_bytes() const {
    return form_ == WeightForm::kBf16Rows ? sizeof(uint16_t) : sizeof(float);
  }
  uint8_t* MutablePanel(size_t index) {
    return reinterpret_cast<uint8_t*>(buffer_.data()) + index * panel_bytes_;
  }

  WeightForm form_ = WeightForm::kF32;
  size_t rows_ = 0;
  size_t columns_ = 0;
  size_t panel_bytes_ = 0;
  AlignedBuffer buffer_;
  // Set for a view, which has no buffer; null otherwise.
  std::shared_ptr<const void> keeper_;
  const char* view_ = nullptr;
  size_t view_bytes_ = 0;
};

// Layout of the panels, for the kernels.
inline constexpr size_t kStepLaneBytes = 4;  // One row's in a step.
inline constexpr size_t kStepBytes = kPanelRows * kStepLaneBytes;
inline constexpr size_t kStepColumns = kStepLaneBytes;  // Codes of a row.
inline constexpr size_t kInt4ScaleBytes = kPanelRows * sizeof(uint16_t);
inline constexpr size_t kInt4GroupBytes =
    kInt4ScaleBytes + kPanelRows * kInt4Group / 2;

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_WEIGHT_MATRIX_H_
