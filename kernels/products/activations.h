// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_PRODUCTS_ACTIVATIONS_H_
#define RINGFLEET_KERNELS_PRODUCTS_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/products/quantize.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {

// Rows of activations in the form that products read. The object keeps its
// memory: a step no larger than the largest one before allocates nothing.
// Distinct rows and groups may be set from different threads.
class Activations {
 public:
  enum class Form {
    kF32,   // For float weights.
    kInt8,  // For integer weights: codes, with a scale for every
            // kActivationGroup elements of a row.
  };

  // Sets the shape. Rows are undefined until they are set.
  void Reshape(Form form, size_t rows, size_t columns);

  // Takes x [rows, columns] f32, rows x_stride apart. Form kF32 keeps a pointer
  // to x; kInt8 quantises x.
  void Assign(Form form, const float* x, size_t rows, size_t columns,
              size_t x_stride, ThreadPool& pool);

  // Set a whole row, or one group of its elements, after a Reshape.
  void SetRow(size_t row, const float* values);
  void SetGroup(size_t row, size_t group, const float* values);
  // kInt8: sets a row to the codes [columns] and scales [groups] f32, of any
  // alignment, that another Activations has quantised.
  void SetCodes(size_t row, const char* codes, const char* scales);

  // A stored row is bytes that another process can load: the values of kF32, or
  // the codes and then the scales of kInt8.
  size_t StoredRowBytes() const;
  void StoreRow(size_t row, char* destination) const;
  // Requires a Reshape to the form and the columns of the stored row.
  void LoadRow(size_t row, const char* stored);

  Form form() const { return form_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  size_t groups() const { return groups_; }

  // kF32: [columns].
  const float* Values(size_t row) const { return values_ + row * stride_; }
  // kInt8: [columns], then zeros up to a multiple of 4.
  const int8_t* Codes(size_t row) const {
    return codes_.data() + row * code_stride_;
  }
  // kInt8: [groups].
  const float* Scales(size_t row) const {
    return scales_.data() + row * groups_;
  }
  // kInt8: sums of kInt4Group consecutive codes,
  // [groups * kActivationGroup / kInt4Group].
  const int32_t* Sums(size_t row) const {
    return sums_.data() + row * groups_ * kSumsPerGroup;
  }
  static constexpr size_t kSumsPerGroup = kActivationGroup / kInt4Group;
  // kInt8: 128 times the sum of a group's codes, [groups]. A product with
  // weights' codes + 128 is too large by this bias.
  const int32_t* Biases(size_t row) const {
    return biases_.data() + row * groups_;
  }

 private:
  // Sets `count` elements from the start of `group` on.
  void Set(size_t row, size_t group, const float* values, size_t count);
  // Computes the bias of group `at`, counted over all rows, from its sums.
  void SetBias(size_t at);

  Form form_ = Form::kF32;
  size_t rows_ = 0;
  size_t columns_ = 0;
  size_t groups_ = 0;
  const float* values_ = nullptr;
  size_t stride_ = 0;       // From row to row in values_.
  size_t code_stride_ = 0;  // From row to row in codes_.
  std::vector<float> own_values_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
  std::vector<int32_t> sums_;
  std::vector<int32_t> biases_;
};

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_ACTIVATIONS_H_
