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

// How weights lie in memory.
//   kF32, kBf16: elements.
//   kInt8: codes -127..127 with a float32 scale for each row (output).
//   kInt4: codes -8..7 with a bfloat16 scale for each kInt4Group of a row.
// Rows of these are packed into panels, see WeightMatrix::Panel.
//   kF32Rows, kBf16Rows: elements, row-major, for tables whose rows are looked
//     up; kF32Rows for the router's product too, which has an order of its own
//     (matmul.h). kBf16Rows has no product.
//   kReference: float32, row-major, multiplied by OpenBLAS: the independent
//     model that `score --reference f32` compares with.
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

// Whether elements lie row by row instead of in panels.
inline bool IsRows(WeightForm form) {
  return form == WeightForm::kF32Rows || form == WeightForm::kBf16Rows ||
         form == WeightForm::kReference;
}

// What a product with such weights reads.
inline Activations::Form ActivationFormFor(WeightForm form) {
  return form == WeightForm::kInt8 || form == WeightForm::kInt4
             ? Activations::Form::kInt8
             : Activations::Form::kF32;
}

// Outputs that are computed together: four vectors of 16 int32 sums. Products
// are cut into panels of so many rows, whatever the form.
inline constexpr size_t kPanelRows = 64;

// Raised whenever bytes of a form come to mean something else: what was packed
// before, and kept in a file, is then packed again.
inline constexpr int kWeightFormat = 2;

// The weights of one product, [rows, columns] = [out, in], in the form the
// kernels read: owned, or bytes of a file that is mapped. How elements are laid
// out is known to this file and the panel kernels only, and does not depend on
// the processor. Immutable after loading; then thread-safe.
class WeightMatrix {
 public:
  // Zeros, until rows are set. Either size may be 0.
  // RESOURCE_EXHAUSTED as AlignedBuffer::Allocate.
  static absl::StatusOr<WeightMatrix> Create(WeightForm form, size_t rows,
                                             size_t columns);
  // The same, with memory of `arena`.
  static absl::StatusOr<WeightMatrix> Create(WeightForm form, size_t rows,
                                             size_t columns,
                                             BufferArena& arena);

  // Weights that lie elsewhere: Bytes(form, rows, columns) bytes at `data`,
  // aligned to 64, which `keeper` keeps there, unchanged. Rows cannot be set.
  static WeightMatrix View(WeightForm form, size_t rows, size_t columns,
                           const char* data,
                           std::shared_ptr<const void> keeper);

  WeightMatrix() = default;
  // The same for sizes known to be small: aborts without memory.
  WeightMatrix(WeightForm form, size_t rows, size_t columns);

  // What bytes() of such a matrix is; saturates instead of overflowing.
  static uint64_t Bytes(WeightForm form, uint64_t rows, uint64_t columns);

  WeightForm form() const { return form_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  // With scales, and with the padding of the last panel.
  size_t bytes() const { return keeper_ ? view_bytes_ : buffer_.size(); }
  const char* data() const { return keeper_ ? view_ : buffer_.data(); }

  // Stores values [columns], finite, rounded to form(). Distinct rows may be
  // set from different threads.
  void SetRow(size_t row, const float* values);
  // Stores `count` rows that have been rounded: elements of kF32 and kBf16, or
  // kInt8's codes and scales (QuantizeInt8), rows `stride` bytes apart, the
  // columns padded with zeros to whole steps, and readable up to the next 16
  // bytes. The rows are of one panel. Distinct rows may be set from different
  // threads.
  void SetRoundedRows(size_t row, size_t count, const char* rows, size_t stride,
                      const float* scales);
  // What row `row` has been rounded to.
  void GetRow(size_t row, float* values) const;

  // Elements; of rows' forms only.
  const void* Row(size_t row) const {
    RF_CHECK(IsRows(form_));
    return data() + row * columns_ * element_bytes();
  }

  size_t num_panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  // Rows [index * kPanelRows, ...), padded to kPanelRows; not of rows' forms.
  // Columns stand in steps, as many as four bytes of a row hold,
  // [steps][kPanelRows][4 bytes], padded to whole steps; a step is what one
  // instruction per 16 rows takes.
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
  // Of a view, which has no buffer; null otherwise.
  std::shared_ptr<const void> keeper_;
  const char* view_ = nullptr;
  size_t view_bytes_ = 0;
};

// Layout of the panels, for the kernels.
inline constexpr size_t kStepLaneBytes = 4;  // Of one row.
inline constexpr size_t kStepBytes = kPanelRows * kStepLaneBytes;
inline constexpr size_t kStepColumns = kStepLaneBytes;  // Of codes.
inline constexpr size_t kInt4ScaleBytes = kPanelRows * sizeof(uint16_t);
inline constexpr size_t kInt4GroupBytes =
    kInt4ScaleBytes + kPanelRows * kInt4Group / 2;

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_WEIGHT_MATRIX_H_
