// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/tensor_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/widen.h"

namespace ringfleet::worker {
namespace {

using cluster::TensorInfo;
using kernels::Dtype;
using kernels::WeightForm;

// Values that are converted at a time; they stay in L1.
constexpr int64_t kPiece = 1024;
// Source bytes below which splitting a read over threads doesn't pay.
constexpr int64_t kGrainBytes = 64 << 10;

// The largest magnitude that stays finite. For bf16: the last float32 that
// rounds down to the largest bf16.
float Limit(WeightForm form) {
  return form == WeightForm::kBf16 || form == WeightForm::kBf16Rows
             ? std::bit_cast<float>(0x7f7f7fffu)
             : std::numeric_limits<float>::max();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

struct TensorReader::Job {
  const TensorSlice* slice = nullptr;
  const TensorInfo* info = nullptr;
  int64_t tensor_columns = 0;
  float limit = 0;
  bool scaled = false;
  BlockScales scales;
  const RowSink* sink = nullptr;  // One of these two takes rows.
  kernels::WeightMatrix* matrix = nullptr;
};

TensorReader::TensorReader(const cluster::Checkpoint& checkpoint,
                           const cluster::ModelSpec& spec,
                           kernels::ThreadPool& pool, Progress progress)
    : checkpoint_(checkpoint),
      spec_(spec),
      pool_(pool),
      progress_(std::move(progress)) {}

TensorReader::Buffer TensorReader::TakeBuffer() {
  {
    MutexLock lock(&mu_);
    if (!free_buffers_.empty()) {
      Buffer buffer = std::move(free_buffers_.back());
      free_buffers_.pop_back();
      return buffer;
    }
    // What bounds the memory of a load: one buffer for each thread.
    RF_CHECK(++num_buffers_ <= pool_.threads());
  }
  return {.bytes = std::make_unique_for_overwrite<char[]>(kReadBytes)};
}

void TensorReader::GiveBuffer(Buffer buffer) {
  MutexLock lock(&mu_);
  free_buffers_.push_back(std::move(buffer));
}

absl::StatusOr<const TensorInfo*> TensorReader::Resolve(
    const TensorSlice& slice) const {
  absl::StatusOr<const TensorInfo*> info = checkpoint_.Find(slice.name);
  if (absl::IsNotFound(info.status())) {
    return absl::DataLossError(absl::StrCat("missing tensor ", slice.name));
  }
  if (absl::IsInvalidArgument(info.status())) {
    return absl::DataLossError(info.status().message());  // Another dtype.
  }
  RF_RETURN_IF_ERROR(info.status());
  if ((*info)->shape != slice.shape) {
    return absl::DataLossError(absl::StrCat(slice.name, ": shape ",
                                            ShapeText((*info)->shape),
                                            ", want ", ShapeText(slice.shape)));
  }
  if ((*info)->dtype == Dtype::kF8E4M3) {
    if (!slice.may_be_fp8) {
      return absl::DataLossError(
          absl::StrCat(slice.name, ": dtype f8_e4m3, want f32, bf16 or f16"));
    }
    if (spec_.weight_block_rows == 0) {
      return absl::DataLossError(
          absl::StrCat(slice.name,
                       ": dtype f8_e4m3, but config.json has no "
                       "quantization_config"));
    }
  }
  return info;
}

absl::StatusOr<TensorReader::BlockScales> TensorReader::ReadScales(
    const TensorSlice& slice, const TensorInfo& weight) const {
  const std::string name = absl::StrCat(slice.name, "_scale_inv");
  BlockScales scales;
  scales.block_rows = spec_.weight_block_rows;
  scales.block_columns = spec_.weight_block_columns;
  const std::vector<int64_t> want = {
      CeilDivide(weight.shape[0], scales.block_rows),
      CeilDivide(weight.shape[1], scales.block_columns)};
  const absl::StatusOr<const TensorInfo*> info = checkpoint_.Find(name);
  if (absl::IsNotFound(info.status())) {
    return absl::DataLossError(absl::StrCat(
        "missing tensor ", name, ", the scales of an f8_e4m3 weight"));
  }
  RF_RETURN_IF_ERROR(info.status());
  if ((*info)->dtype != Dtype::kF32 || (*info)->shape != want) {
    return absl::DataLossError(absl::StrCat(
        name, ": ", kernels::DtypeName((*info)->dtype), " ",
        ShapeText((*info)->shape), ", want f32 ", ShapeText(want)));
  }
  scales.first_row = slice.rows.begin / scales.block_rows;
  scales.first_column = slice.columns.begin / scales.block_columns;
  const int64_t rows =
      CeilDivide(slice.rows.end, scales.block_rows) - scales.first_row;
  scales.columns =
      CeilDivide(slice.columns.end, scales.block_columns) - scales.first_column;
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
  return scales;
}

absl::Status TensorReader::ConvertPart(const Job& job, const char* source,
                                       int64_t row, int64_t column,
                                       int64_t count, float* values) const {
  const Dtype dtype = job.info->dtype;
  for (int64_t done = 0; done < count; done += kPiece, values += kPiece) {
    const int64_t size = std::min(kPiece, count - done);
    const int64_t first = column + done;  // In the whole tensor.
    const char* bytes = source + done * kernels::DtypeBytes(dtype);
    bool finite = true;
    if (!job.scaled) {
      finite =
          kernels::WidenScaled(dtype, bytes, size, 1.0f, job.limit, values);
    } else {
      const BlockScales& scales = job.scales;
      const float* scale_row =
          scales.values.data() +
          (row / scales.block_rows - scales.first_row) * scales.columns;
      for (int64_t i = 0; i < size;) {
        const int64_t block = (first + i) / scales.block_columns;
        const int64_t end =
            std::min(size, (block + 1) * scales.block_columns - first);
        finite &= kernels::WidenScaled(dtype, bytes + i, end - i,
                                       scale_row[block - scales.first_column],
                                       job.limit, values + i);
        i = end;
      }
    }
    if (!finite) {
      int64_t i = 0;
      while (std::abs(values[i]) <= job.limit) ++i;
      const auto code = static_cast<uint8_t>(bytes[i]);
      const bool nan_code = dtype == Dtype::kF8E4M3 && (code & 0x7f) == 0x7f;
      return absl::DataLossError(absl::StrCat(
          job.slice->name, ": ",
          nan_code ? absl::StrCat("NaN code 0x", absl::Hex(code))
                   : absl::StrCat(values[i]),
          " at ",
          job.slice->shape.size() == 1 ? "[" : absl::StrCat("[", row, ", "),
          first + i, "], want a finite number (",
          checkpoint_.FileName(*job.info), ")"));
    }
  }
  return absl::OkStatus();
}

bool TensorReader::PackF8(const Job& job, const char* source, int64_t row,
                          kernels::RowPacker* packer) {
  if (job.matrix == nullptr || !job.scaled ||
      job.matrix->form() != WeightForm::kInt8) {
    return false;
  }
  const BlockScales& scales = job.scales;
  const cluster::Range columns = job.slice->columns;
  return packer->Set(
      row - job.slice->rows.begin,
      {.codes = reinterpret_cast<const uint8_t*>(source),
       .count = static_cast<size_t>(columns.size()),
       .scales = scales.values.data() +
                 (row / scales.block_rows - scales.first_row) * scales.columns,
       .block = static_cast<size_t>(scales.block_columns),
       .offset = static_cast<size_t>(columns.begin % scales.block_columns)});
}

absl::Status TensorReader::ReadRange(const Job& job, int64_t begin,
                                     int64_t end) {
  const cluster::Range columns = job.slice->columns;
  const int64_t element = kernels::DtypeBytes(job.info->dtype);
  const int64_t columns_per_read =
      std::min<int64_t>(columns.size(), kReadBytes / element);
  const bool whole_rows = columns_per_read == columns.size();
  // Of a part of each row only that part is read: what lies between belongs to
  // other ranks.
  const int64_t rows_per_read =
      whole_rows
          ? std::max<int64_t>(1, kReadBytes / (columns_per_read * element))
          : 1;
  Buffer buffer = TakeBuffer();
  buffer.row.resize(std::max<size_t>(buffer.row.size(), columns.size()));
  if (job.matrix != nullptr) buffer.packer.Begin(job.matrix);
  absl::Status status;
  for (int64_t row = begin; row < end && status.ok(); row += rows_per_read) {
    const int64_t rows = std::min(rows_per_read, end - row);
    for (int64_t column = columns.begin; column < columns.end && status.ok();
         column += columns_per_read) {
      const int64_t count =
          std::min<int64_t>(columns_per_read, columns.end - column);
      status = checkpoint_.ReadRows(
          *job.info, (row * job.tensor_columns + column) * element,
          count * element, job.tensor_columns * element, rows,
          buffer.bytes.get());
      for (int64_t i = 0; i < rows && status.ok(); ++i) {
        const char* source = buffer.bytes.get() + i * count * element;
        if (whole_rows && PackF8(job, source, row + i, &buffer.packer)) {
          continue;
        }
        status = ConvertPart(job, source, row + i, column, count,
                             buffer.row.data() + column - columns.begin);
        if (!status.ok() || column + count < columns.end) continue;
        const int64_t result_row = row + i - job.slice->rows.begin;
        if (job.matrix != nullptr) {
          buffer.packer.Set(result_row, buffer.row.data());
        } else {
          (*job.sink)(result_row, buffer.row.data());
        }
      }
    }
  }
  buffer.packer.Flush();
  GiveBuffer(std::move(buffer));
  return status;
}

absl::Status TensorReader::Run(const Job& job, uint64_t stored_bytes_per_row) {
  const cluster::Range rows = job.slice->rows;
  const int64_t row_bytes =
      job.slice->columns.size() * kernels::DtypeBytes(job.info->dtype);
  // What is packed together stays on one thread.
  constexpr int64_t kGroup = kernels::RowPacker::kRows;
  const int64_t grain =
      std::max<int64_t>(1, kGrainBytes / (kGroup * row_bytes));
  // A batch gives every thread some reads, and progress is told in between.
  const int64_t batch =
      kGroup * std::max<int64_t>(
                   pool_.threads(),
                   pool_.threads() * 4 * kReadBytes / (kGroup * row_bytes));
  for (int64_t first = rows.begin; first < rows.end; first += batch) {
    const int64_t count = std::min<int64_t>(batch, rows.end - first);
    Mutex mu;
    size_t failed_at = 0;
    absl::Status failure;
    const int64_t groups = CeilDivide(count, kGroup);
    pool_.ParallelFor(groups, grain, [&](size_t begin, size_t end) {
      const absl::Status status =
          ReadRange(job, first + begin * kGroup,
                    first + std::min<int64_t>(count, end * kGroup));
      if (status.ok()) return;
      // The first in the tensor, so that every load names the same.
      MutexLock lock(&mu);
      if (failure.ok() || begin < failed_at) {
        failed_at = begin;
        failure = status;
      }
    });
    RF_RETURN_IF_ERROR(failure);
    RF_RETURN_IF_ERROR(progress_(stored_bytes_per_row * count));
  }
  return absl::OkStatus();
}

absl::Status TensorReader::ReadRows(const TensorSlice& slice, WeightForm form,
                                    uint64_t stored_bytes_per_row,
                                    RowSink sink) {
  return ReadSlice(slice, form, stored_bytes_per_row, &sink,
                   /*matrix=*/nullptr);
}

absl::Status TensorReader::ReadSlice(const TensorSlice& slice, WeightForm form,
                                     uint64_t stored_bytes_per_row,
                                     const RowSink* sink,
                                     kernels::WeightMatrix* matrix) {
  RF_ASSIGN_OR_RETURN(const TensorInfo* info, Resolve(slice));
  if (slice.rows.size() == 0 || slice.columns.size() == 0) {
    return absl::OkStatus();
  }
  RF_CHECK(slice.columns.end <= slice.shape.back() &&
           (slice.shape.size() == 1 ? slice.rows == cluster::Range{0, 1}
                                    : slice.rows.end <= slice.shape[0]));
  Job job{.slice = &slice,
          .info = info,
          .tensor_columns = slice.shape.back(),
          .limit = Limit(form),
          .sink = sink,
          .matrix = matrix};
  if (info->dtype == Dtype::kF8E4M3) {
    job.scaled = true;
    RF_ASSIGN_OR_RETURN(job.scales, ReadScales(slice, *info));
  }
  return Run(job, stored_bytes_per_row);
}

absl::StatusOr<kernels::WeightMatrix> TensorReader::ReadMatrix(
    const TensorSlice& slice, WeightForm form, kernels::BufferArena& arena) {
  absl::StatusOr<kernels::WeightMatrix> created = kernels::WeightMatrix::Create(
      form, slice.rows.size(), slice.columns.size(), arena);
  if (!created.ok()) return Annotate(created.status(), slice.name);
  kernels::WeightMatrix matrix = *std::move(created);
  const uint64_t row_bytes =
      matrix.rows() == 0 ? 0 : matrix.bytes() / matrix.rows();
  RF_RETURN_IF_ERROR(
      ReadSlice(slice, form, row_bytes, /*sink=*/nullptr, &matrix));
  // Of the last panel's padding.
  RF_RETURN_IF_ERROR(progress_(matrix.bytes() - row_bytes * matrix.rows()));
  return matrix;
}

absl::StatusOr<std::vector<float>> TensorReader::ReadFloats(
    const TensorSlice& slice) {
  RF_CHECK(!slice.may_be_fp8);
  const size_t columns = slice.columns.size();
  std::vector<float> floats(slice.rows.size() * columns);
  RF_RETURN_IF_ERROR(
      ReadRows(slice, WeightForm::kF32Rows, sizeof(float) * columns,
               [&](int64_t row, const float* values) {
                 std::copy_n(values, columns, floats.data() + row * columns);
               }));
  return floats;
}

}  // namespace ringfleet::worker
