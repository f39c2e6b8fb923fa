// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/tensor_reader.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::worker {
namespace {

using cluster::CeilDivide;
using cluster::OpenSlice;
using cluster::Range;
using cluster::RowBuffer;
using cluster::TensorSlice;
using kernels::WeightForm;

// Source bytes below which splitting a read over threads doesn't pay.
constexpr int64_t kGrainBytes = 64 << 10;

// The largest magnitude that stays finite. For bf16: the last float32 that
// rounds down to the largest bf16.
float LargestFinite(WeightForm form) {
  return form == WeightForm::kBf16 || form == WeightForm::kBf16Rows
             ? std::bit_cast<float>(0x7f7f7fffu)
             : std::numeric_limits<float>::max();
}

}  // namespace

// Packs rows into a matrix, if there is one, and passes them on. A matrix that
// can hold the codes of the source gets them without float32 in between.
class TensorReader::Sink final : public cluster::RowSink {
 public:
  Sink(const Target& target, Buffer* buffer)
      : target_(target), buffer_(*buffer) {
    if (target_.matrix != nullptr) buffer_.packer.Begin(target_.matrix);
  }
  ~Sink() override { buffer_.packer.Flush(); }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  bool TakeCodes(int64_t row, const kernels::CodeRow& codes) override {
    if (target_.matrix == nullptr ||
        !buffer_.packer.Set(target_.first_row + row, codes)) {
      return false;
    }
    if (target_.take == nullptr) return true;
    buffer_.widened.resize(codes.count);
    // Set has found every value finite.
    RF_CHECK(kernels::WidenCodes(codes, std::numeric_limits<float>::max(),
                                 buffer_.widened.data()));
    (*target_.take)(row, buffer_.widened.data());
    return true;
  }
  void TakeFloats(int64_t row, const float* values) override {
    if (target_.matrix != nullptr) {
      buffer_.packer.Set(target_.first_row + row, values);
    }
    if (target_.take != nullptr) (*target_.take)(row, values);
  }

 private:
  const Target target_;
  Buffer& buffer_;
};

TensorReader::TensorReader(const cluster::TensorSource& source,
                           kernels::ThreadPool& pool, Progress progress)
    : source_(source), pool_(pool), progress_(std::move(progress)) {}

std::unique_ptr<TensorReader::Buffer> TensorReader::TakeBuffer() {
  {
    MutexLock lock(&mu_);
    if (!free_buffers_.empty()) {
      std::unique_ptr<Buffer> buffer = std::move(free_buffers_.back());
      free_buffers_.pop_back();
      return buffer;
    }
    // One buffer for each thread bounds the memory of a load.
    RF_CHECK(++num_buffers_ <= pool_.threads());
  }
  return std::make_unique<Buffer>();
}

void TensorReader::GiveBuffer(std::unique_ptr<Buffer> buffer) {
  MutexLock lock(&mu_);
  free_buffers_.push_back(std::move(buffer));
}

absl::Status TensorReader::ReadRange(const OpenSlice& slice, Range rows,
                                     const Target& target) {
  std::unique_ptr<Buffer> buffer = TakeBuffer();
  absl::Status status;
  {
    Sink sink(target, buffer.get());
    status = slice.Read(rows, &buffer->rows, &sink);
  }
  GiveBuffer(std::move(buffer));
  return status;
}

absl::Status TensorReader::ReadSlice(const TensorSlice& slice, WeightForm form,
                                     uint64_t stored_bytes_per_row,
                                     const Target& target) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<const OpenSlice> opened,
                      source_.Open(slice, LargestFinite(form)));
  const Range rows = slice.rows;
  if (rows.size() == 0 || slice.columns.size() == 0) return absl::OkStatus();
  // Rows that are packed together stay on one thread.
  constexpr int64_t kGroup = kernels::RowPacker::kRows;
  const int64_t group_bytes = kGroup * opened->row_bytes();
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / group_bytes);
  // A batch gives every thread some reads, and progress is told in between.
  const int64_t batch =
      kGroup * std::max<int64_t>(pool_.threads(),
                                 pool_.threads() * 4 *
                                     static_cast<int64_t>(RowBuffer::kBytes) /
                                     group_bytes);
  for (int64_t first = rows.begin; first < rows.end; first += batch) {
    const int64_t count = std::min<int64_t>(batch, rows.end - first);
    Mutex mu;
    size_t failed_at = 0;
    absl::Status failure;
    pool_.ParallelFor(
        CeilDivide(count, kGroup), grain, [&](size_t begin, size_t end) {
          const Range part = {
              static_cast<int>(first + begin * kGroup),
              static_cast<int>(first + std::min<int64_t>(count, end * kGroup))};
          const absl::Status status = ReadRange(*opened, part, target);
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
                                    TakeRow take) {
  return ReadSlice(slice, form, stored_bytes_per_row, {.take = &take});
}

absl::Status TensorReader::ReadIntoMatrix(const TensorSlice& slice,
                                          kernels::WeightMatrix* matrix,
                                          int64_t first_row, TakeRow take) {
  return ReadSlice(slice, matrix->form(), /*stored_bytes_per_row=*/0,
                   {.matrix = matrix, .first_row = first_row, .take = &take});
}

absl::StatusOr<kernels::WeightMatrix> TensorReader::ReadMatrix(
    const TensorSlice& slice, WeightForm form, kernels::BufferArena& arena) {
  absl::StatusOr<kernels::WeightMatrix> created = kernels::WeightMatrix::Create(
      form, slice.rows.size(), slice.columns.size(), arena);
  if (!created.ok()) return Annotate(created.status(), slice.name);
  kernels::WeightMatrix matrix = *std::move(created);
  const uint64_t row_bytes =
      matrix.rows() == 0 ? 0 : matrix.bytes() / matrix.rows();
  RF_RETURN_IF_ERROR(ReadSlice(slice, form, row_bytes, {.matrix = &matrix}));
  // Counts the padding of the last panel.
  RF_RETURN_IF_ERROR(progress_(matrix.bytes() - row_bytes * matrix.rows()));
  return matrix;
}

absl::StatusOr<std::vector<float>> TensorReader::ReadFloats(
    const TensorSlice& slice) {
  RF_CHECK(slice.method == cluster::QuantMethod::kNone);
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
