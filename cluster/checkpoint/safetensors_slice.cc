// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/safetensors_slice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/widen.h"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;

// Values that are converted at a time; they stay in L1.
constexpr int64_t kWidenedValues = 1024;

std::string SliceShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The tensor of a slice, if it is what the slice wants.
absl::StatusOr<const TensorInfo*> FindSlice(const Checkpoint& checkpoint,
                                            const TensorSlice& slice) {
  absl::StatusOr<const TensorInfo*> info = checkpoint.Find(slice.name);
  if (absl::IsNotFound(info.status())) {
    return absl::DataLossError(absl::StrCat("missing tensor ", slice.name));
  }
  if (absl::IsInvalidArgument(info.status())) {
    return absl::DataLossError(info.status().message());  // Another dtype.
  }
  RF_RETURN_IF_ERROR(info.status());
  if ((*info)->shape != slice.shape) {
    return absl::DataLossError(
        absl::StrCat(slice.name, ": shape ", SliceShapeText((*info)->shape),
                     ", want ", SliceShapeText(slice.shape)));
  }
  if ((*info)->dtype == Dtype::kF8E4M3) {
    if (!slice.may_be_fp8) {
      return absl::DataLossError(
          absl::StrCat(slice.name, ": dtype f8_e4m3, want f32, bf16 or f16"));
    }
    if (slice.block_rows == 0) {
      return absl::DataLossError(
          absl::StrCat(slice.name,
                       ": dtype f8_e4m3, but config.json has no "
                       "quantization_config"));
    }
  }
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const OpenSlice>> SafetensorsSlice::Open(
    const Checkpoint& checkpoint, const TensorSlice& slice, float limit) {
  RF_ASSIGN_OR_RETURN(const TensorInfo* info, FindSlice(checkpoint, slice));
  std::unique_ptr<SafetensorsSlice> opened(
      new SafetensorsSlice(checkpoint, slice, *info, limit));
  const bool empty = slice.rows.size() == 0 || slice.columns.size() == 0;
  RF_CHECK(empty ||
           (slice.columns.end <= slice.shape.back() &&
            (slice.shape.size() == 1 ? slice.rows == Range{0, 1}
                                     : slice.rows.end <= slice.shape[0])));
  if (!empty && info->dtype == Dtype::kF8E4M3) {
    RF_RETURN_IF_ERROR(opened->ReadScales());
  }
  return opened;
}

absl::Status SafetensorsSlice::ReadScales() {
  const std::string name = absl::StrCat(slice_.name, "_scale_inv");
  const std::vector<int64_t> want = {
      CeilDivide(info_.shape[0], slice_.block_rows),
      CeilDivide(info_.shape[1], slice_.block_columns)};
  const absl::StatusOr<const TensorInfo*> info = checkpoint_.Find(name);
  if (absl::IsNotFound(info.status())) {
    return absl::DataLossError(absl::StrCat(
        "missing tensor ", name, ", the scales of an f8_e4m3 weight"));
  }
  RF_RETURN_IF_ERROR(info.status());
  if ((*info)->dtype != Dtype::kF32 || (*info)->shape != want) {
    return absl::DataLossError(absl::StrCat(
        name, ": ", kernels::DtypeName((*info)->dtype), " ",
        SliceShapeText((*info)->shape), ", want f32 ", SliceShapeText(want)));
  }
  BlockScales scales;
  scales.first_row = slice_.rows.begin / slice_.block_rows;
  scales.first_column = slice_.columns.begin / slice_.block_columns;
  const int64_t rows =
      CeilDivide(slice_.rows.end, slice_.block_rows) - scales.first_row;
  scales.columns = CeilDivide(slice_.columns.end, slice_.block_columns) -
                   scales.first_column;
  const uint64_t bytes = sizeof(float) * rows * scales.columns;
  if (bytes > kMaxScaleBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", bytes, " bytes of scales, want at most ",
                     kMaxScaleBytes, " (weight_block_size is too small)"));
  }
  scales.values.resize(rows * scales.columns);
  RF_RETURN_IF_ERROR(checkpoint_.ReadRows(
      **info,
      sizeof(float) * (scales.first_row * want[1] + scales.first_column),
      sizeof(float) * scales.columns, sizeof(float) * want[1], rows,
      reinterpret_cast<char*>(scales.values.data())));
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = scales.values.data() + i * scales.columns;
    for (int64_t j = 0; j < scales.columns; ++j) {
      if (row[j] >= 0 && row[j] <= std::numeric_limits<float>::max()) continue;
      return absl::DataLossError(absl::StrCat(
          name, ": ", row[j], " at [", scales.first_row + i, ", ",
          scales.first_column + j, "], want a finite number, not negative (",
          checkpoint_.FileName(**info), ")"));
    }
  }
  scales_ = std::move(scales);
  scaled_ = true;
  return absl::OkStatus();
}

int64_t SafetensorsSlice::row_bytes() const {
  return slice_.columns.size() * kernels::DtypeBytes(info_.dtype);
}

absl::Status SafetensorsSlice::NotFinite(const char* bytes, const float* values,
                                         int64_t row, int64_t column) const {
  int64_t i = 0;
  while (std::abs(values[i]) <= limit_) ++i;
  const auto code = static_cast<uint8_t>(bytes[i]);
  const bool nan_code = info_.dtype == Dtype::kF8E4M3 && (code & 0x7f) == 0x7f;
  return absl::DataLossError(absl::StrCat(
      slice_.name, ": ",
      nan_code ? absl::StrCat("NaN code 0x", absl::Hex(code))
               : absl::StrCat(values[i]),
      " at ", slice_.shape.size() == 1 ? "[" : absl::StrCat("[", row, ", "),
      column + i, "], want a finite number (", checkpoint_.FileName(info_),
      ")"));
}

absl::Status SafetensorsSlice::Widen(const char* source, int64_t row,
                                     int64_t column, int64_t count,
                                     float* values) const {
  const Dtype dtype = info_.dtype;
  for (int64_t done = 0; done < count;
       done += kWidenedValues, values += kWidenedValues) {
    const int64_t size = std::min(kWidenedValues, count - done);
    const int64_t first = column + done;  // In the whole tensor.
    const char* bytes = source + done * kernels::DtypeBytes(dtype);
    bool finite = true;
    if (!scaled_) {
      finite = kernels::WidenScaled(dtype, bytes, size, 1.0f, limit_, values);
    } else {
      const float* scale_row =
          scales_.values.data() +
          (row / slice_.block_rows - scales_.first_row) * scales_.columns;
      for (int64_t i = 0; i < size;) {
        const int64_t block = (first + i) / slice_.block_columns;
        const int64_t end =
            std::min(size, (block + 1) * slice_.block_columns - first);
        finite &= kernels::WidenScaled(dtype, bytes + i, end - i,
                                       scale_row[block - scales_.first_column],
                                       limit_, values + i);
        i = end;
      }
    }
    if (!finite) return NotFinite(bytes, values, row, first);
  }
  return absl::OkStatus();
}

bool SafetensorsSlice::GiveCodes(const char* source, int64_t row,
                                 RowSink* sink) const {
  if (!scaled_) return false;
  return sink->TakeCodes(
      row - slice_.rows.begin,
      {.codes = reinterpret_cast<const uint8_t*>(source),
       .count = static_cast<size_t>(slice_.columns.size()),
       .scales =
           scales_.values.data() +
           (row / slice_.block_rows - scales_.first_row) * scales_.columns,
       .block = static_cast<size_t>(slice_.block_columns),
       .offset =
           static_cast<size_t>(slice_.columns.begin % slice_.block_columns)});
}

absl::Status SafetensorsSlice::Read(Range rows, RowBuffer* buffer,
                                    RowSink* sink) const {
  const Range columns = slice_.columns;
  const int64_t element = kernels::DtypeBytes(info_.dtype);
  const int64_t tensor_columns = slice_.shape.back();
  const int64_t columns_per_read =
      std::min<int64_t>(columns.size(), RowBuffer::kBytes / element);
  const bool whole_rows = columns_per_read == columns.size();
  // Only a part of each row is read: what lies between belongs to other ranks.
  const int64_t rows_per_read =
      whole_rows ? std::max<int64_t>(
                       1, RowBuffer::kBytes / (columns_per_read * element))
                 : 1;
  buffer->row.resize(std::max<size_t>(buffer->row.size(), columns.size()));
  for (int64_t row = rows.begin; row < rows.end; row += rows_per_read) {
    const int64_t num_rows = std::min<int64_t>(rows_per_read, rows.end - row);
    for (int64_t column = columns.begin; column < columns.end;
         column += columns_per_read) {
      const int64_t count =
          std::min<int64_t>(columns_per_read, columns.end - column);
      RF_RETURN_IF_ERROR(checkpoint_.ReadRows(
          info_, (row * tensor_columns + column) * element, count * element,
          tensor_columns * element, num_rows, buffer->bytes.get()));
      for (int64_t i = 0; i < num_rows; ++i) {
        const char* source = buffer->bytes.get() + i * count * element;
        if (whole_rows && GiveCodes(source, row + i, sink)) continue;
        RF_RETURN_IF_ERROR(Widen(source, row + i, column, count,
                                 buffer->row.data() + column - columns.begin));
        if (column + count < columns.end) continue;
        sink->TakeFloats(row + i - slice_.rows.begin, buffer->row.data());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
