// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/safetensors_slice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/widen.h"

namespace ringfleet::cluster {
namespace {

using kernels::CodeForm;
using kernels::CodeRow;
using kernels::Dtype;

}  // namespace

absl::StatusOr<std::unique_ptr<const OpenSlice>> SafetensorsSlice::Open(
    const Checkpoint& checkpoint, const TensorSlice& slice, float limit) {
  std::unique_ptr<SafetensorsSlice> opened(
      new SafetensorsSlice(checkpoint, slice, limit));
  StoredTensor& stored = opened->stored_;
  RF_RETURN_IF_ERROR(FindStored(checkpoint, slice, &stored));
  opened->element_bits_ =
      static_cast<int>(stored.code_form.has_value()
                           ? kernels::CodeBits(*stored.code_form)
                           : 8 * kernels::DtypeBytes(stored.values->dtype));
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < slice.shape.size(); ++i) rows *= slice.shape[i];
  const bool empty = slice.rows.size() == 0 || slice.columns.size() == 0;
  RF_CHECK(empty ||
           (slice.columns.end <= slice.shape.back() && slice.rows.end <= rows));
  if (empty || !stored.code_form.has_value()) return opened;
  if (stored.shape != nullptr) RF_RETURN_IF_ERROR(opened->CheckShapeTensor());
  RF_RETURN_IF_ERROR(opened->ReadScales());
  return opened;
}

absl::Status SafetensorsSlice::CheckShapeTensor() const {
  const TensorInfo& info = *stored_.shape;
  char bytes[2 * sizeof(int64_t)];
  RF_RETURN_IF_ERROR(checkpoint_.Read(info, 0, info.bytes, bytes));
  int64_t sizes[2];
  for (int i = 0; i < 2; ++i) {
    if (info.dtype == Dtype::kInt64) {
      std::memcpy(&sizes[i], bytes + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      int32_t size;
      std::memcpy(&size, bytes + i * sizeof(size), sizeof(size));
      sizes[i] = size;
    }
  }
  if (sizes[0] == slice_.shape[0] && sizes[1] == slice_.shape[1]) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(info.name, ": values [", sizes[0], ", ", sizes[1],
                   "], want [", slice_.shape[0], ", ", slice_.shape[1], "] (",
                   checkpoint_.FileName(info), ")"));
}

absl::Status SafetensorsSlice::ReadScales() {
  const TensorInfo& info = *stored_.scales;
  const int64_t scale_bytes =
      static_cast<int64_t>(kernels::DtypeBytes(info.dtype));
  scales_.first_row = slice_.rows.begin / stored_.block_rows;
  scales_.first_column = slice_.columns.begin / stored_.block_columns;
  const int64_t rows =
      CeilDivide(slice_.rows.end, stored_.block_rows) - scales_.first_row;
  scales_.columns = CeilDivide(slice_.columns.end, stored_.block_columns) -
                    scales_.first_column;
  const uint64_t bytes = scale_bytes * rows * scales_.columns;
  if (bytes > kMaxScaleBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(info.name, ": ", bytes, " bytes of scales, want at most ",
                     kMaxScaleBytes, " (weight_block_size is too small)"));
  }
  scales_.bytes.resize(bytes);
  RF_RETURN_IF_ERROR(checkpoint_.ReadRows(
      info,
      scale_bytes *
          (scales_.first_row * stored_.scale_columns + scales_.first_column),
      scale_bytes * scales_.columns, scale_bytes * stored_.scale_columns, rows,
      scales_.bytes.data()));
  std::vector<float> row(scales_.columns);
  for (int64_t i = 0; i < rows; ++i) {
    kernels::ToFloat(info.dtype,
                     scales_.bytes.data() + i * scales_.columns * scale_bytes,
                     row.size(), row.data());
    for (int64_t j = 0; j < scales_.columns; ++j) {
      if (row[j] >= 0 && row[j] <= std::numeric_limits<float>::max()) continue;
      return absl::DataLossError(absl::StrCat(
          info.name, ": ", row[j], " at [", scales_.first_row + i, ", ",
          scales_.first_column + j, "], want a finite number, not negative (",
          checkpoint_.FileName(info), ")"));
    }
  }
  return absl::OkStatus();
}

int64_t SafetensorsSlice::row_bytes() const {
  return CeilDivide(int64_t{slice_.columns.end} * element_bits_, 8) -
         BytesOf(slice_.columns.begin);
}

absl::Status SafetensorsSlice::NotFinite(const char* bytes, const float* values,
                                         int64_t row, int64_t column) const {
  int64_t i = 0;
  while (std::abs(values[i]) <= limit_) ++i;
  const auto code = static_cast<uint8_t>(bytes[BytesOf(i)]);
  const bool nan_code =
      stored_.code_form == CodeForm::kF8E4M3 && (code & 0x7f) == 0x7f;
  return absl::DataLossError(absl::StrCat(
      slice_.name, ": ",
      nan_code ? absl::StrCat("NaN code 0x", absl::Hex(code))
               : absl::StrCat(values[i]),
      " at ", slice_.shape.size() == 1 ? "[" : absl::StrCat("[", row, ", "),
      column + i, "], want a finite number (",
      checkpoint_.FileName(*stored_.values), ")"));
}

CodeRow SafetensorsSlice::CodesOf(const char* source, int64_t row,
                                  int64_t column, int64_t count,
                                  std::vector<float>* scales) const {
  const int64_t first = column / stored_.block_columns;
  const int64_t num_scales =
      CeilDivide(column + count, stored_.block_columns) - first;
  scales->resize(std::max<size_t>(scales->size(), num_scales));
  const Dtype dtype = stored_.scales->dtype;
  const int64_t index =
      (row / stored_.block_rows - scales_.first_row) * scales_.columns + first -
      scales_.first_column;
  kernels::ToFloat(dtype,
                   scales_.bytes.data() + index * kernels::DtypeBytes(dtype),
                   num_scales, scales->data());
  return {.form = *stored_.code_form,
          .codes = reinterpret_cast<const uint8_t*>(source),
          .skipped = static_cast<size_t>(
              stored_.code_form == CodeForm::kInt4 ? column % 2 : 0),
          .count = static_cast<size_t>(count),
          .scales = scales->data(),
          .block = static_cast<size_t>(stored_.block_columns),
          .offset = static_cast<size_t>(column % stored_.block_columns)};
}

absl::Status SafetensorsSlice::Read(Range rows, RowBuffer* buffer,
                                    RowSink* sink) const {
  const Range columns = slice_.columns;
  const int64_t tensor_row_bytes = BytesOf(slice_.shape.back());
  // A byte more if the columns begin within one.
  const int64_t columns_per_read = std::min<int64_t>(
      columns.size(), (RowBuffer::kBytes - 1) * 8 / element_bits_);
  const bool whole_rows = columns_per_read == columns.size();
  // Only a part of each row is read: what lies between belongs to other ranks.
  const int64_t rows_per_read =
      whole_rows ? std::max<int64_t>(1, RowBuffer::kBytes / row_bytes()) : 1;
  buffer->row.resize(std::max<size_t>(buffer->row.size(), columns.size()));
  for (int64_t row = rows.begin; row < rows.end; row += rows_per_read) {
    const int64_t num_rows = std::min<int64_t>(rows_per_read, rows.end - row);
    for (int64_t column = columns.begin; column < columns.end;
         column += columns_per_read) {
      const int64_t count =
          std::min<int64_t>(columns_per_read, columns.end - column);
      const int64_t begin = BytesOf(column);
      const int64_t bytes =
          CeilDivide((column + count) * element_bits_, 8) - begin;
      RF_RETURN_IF_ERROR(checkpoint_.ReadRows(
          *stored_.values, row * tensor_row_bytes + begin, bytes,
          tensor_row_bytes, num_rows, buffer->bytes.get()));
      for (int64_t i = 0; i < num_rows; ++i) {
        const char* source = buffer->bytes.get() + i * bytes;
        float* values = buffer->row.data() + column - columns.begin;
        bool finite = true;
        if (stored_.code_form.has_value()) {
          const CodeRow codes =
              CodesOf(source, row + i, column, count, &buffer->scales);
          if (whole_rows && sink->TakeCodes(row + i - slice_.rows.begin, codes))
            continue;
          finite = kernels::WidenCodes(codes, limit_, values);
        } else {
          finite = kernels::WidenScaled(stored_.values->dtype, source, count,
                                        1.0f, limit_, values);
        }
        if (!finite) return NotFinite(source, values, row + i, column);
        if (column + count < columns.end) continue;
        sink->TakeFloats(row + i - slice_.rows.begin, buffer->row.data());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
