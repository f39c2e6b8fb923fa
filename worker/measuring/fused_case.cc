// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/fused_case.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "cluster/process/status_macros.h"
#include "cluster/wire/wire_format.h"
#include "kernels/products/matmul.h"
#include "worker/fused/output_tiles.h"
#include "worker/measuring/collective_case.h"

namespace ringfleet::worker {
namespace {

using cluster::Side;
using kernels::Activations;
using kernels::RowRange;
using kernels::WeightMatrix;

// The number of a "rank" whose generated elements are weights.
constexpr int kWeightSource = 1 << 20;
constexpr float kSpoilt = std::numeric_limits<float>::quiet_NaN();

// Returns the elements of `count` that `rank` has when they are split evenly.
RowRange ShareOf(size_t count, int rank, int ranks) {
  return cluster::SplitRows(count, ranks).Shard(rank);
}

uint64_t Product(std::initializer_list<uint64_t> factors) {
  uint64_t product = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return ~uint64_t{0};
  }
  return product;
}

// Returns the format in which summands travel.
cluster::WireFormat SumFormat(const FusedCase::Spec& spec) {
  const bool ring = spec.algorithm == cluster::Algorithm::kRing;
  return {ring ? cluster::Wire::kF32 : spec.wire, spec.outputs};
}

uint64_t DifferentBits(absl::Span<const float> found,
                       absl::Span<const float> expected) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    wrong += std::bit_cast<uint32_t>(found[i]) !=
             std::bit_cast<uint32_t>(expected[i]);
  }
  return wrong;
}

}  // namespace

FusedCase::FusedCase(cluster::Communicator* communicator,
                     kernels::ThreadPool* pool, const Spec& spec)
    : communicator_(communicator),
      pool_(pool),
      spec_(spec),
      rank_(communicator->rank()),
      size_(communicator->size()),
      split_(spec.rows, communicator->size()),
      weights_(Weights(InputsOf(communicator->rank()))),
      nothing_(spec.form, spec.outputs, 0),
      tiles_(spec.tiles.value_or(FusedTiles::Default(weights_))) {
  const size_t own = split_.Shard(rank_).size();
  x_.resize((gathers() ? own : spec.rows) * InputsOf(rank_));
  result_.resize(gathers() ? spec.rows * weights_.rows() : own * spec.outputs);
  if (!gathers()) partial_.resize(spec.rows * spec.outputs);
  for (int r = 0; r < size_; ++r) {
    offsets_.push_back(split_.Shard(r).begin * spec.outputs);
  }
  offsets_.push_back(spec.rows * spec.outputs);
}

size_t FusedCase::InputsOf(int rank) const {
  return gathers() ? spec_.inputs : ShareOf(spec_.inputs, rank, size_).size();
}

// Generates this rank's part of weights that all ranks generate alike.
WeightMatrix FusedCase::Weights(size_t inputs) const {
  const RowRange outputs = gathers() ? ShareOf(spec_.outputs, rank_, size_)
                                     : RowRange{0, spec_.outputs};
  WeightMatrix w(spec_.form, outputs.size(), inputs);
  pool_->ParallelFor(outputs.size(), 1, [&](size_t begin, size_t end) {
    std::vector<float> row(inputs);
    for (size_t o = begin; o < end; ++o) {
      const size_t first = (outputs.begin + o) * spec_.inputs;
      for (size_t k = 0; k < inputs; ++k) {
        row[k] = GeneratedElement(kWeightSource, first + k);
      }
      w.SetRow(o, row.data());
    }
  });
  return w;
}

uint64_t FusedCase::MatrixBytes(const Spec& spec) {
  return Product({sizeof(float), spec.rows,
                  spec.operation == cluster::Operation::kAllGatherMatmul
                      ? spec.inputs
                      : spec.outputs});
}

uint64_t FusedCase::WireBytes(const Spec& spec) {
  if (spec.operation == cluster::Operation::kAllGatherMatmul) {
    Activations row;
    row.Reshape(kernels::ActivationFormFor(spec.form), 0, spec.inputs);
    return Product({spec.rows, row.StoredRowBytes()});
  }
  return SumFormat(spec).EncodedBytes(0, spec.rows * spec.outputs);
}

uint64_t FusedCase::MemoryBytes(const Spec& spec, int ranks) {
  const auto parts = static_cast<uint64_t>(ranks);
  const uint64_t weights =
      spec.operation == cluster::Operation::kAllGatherMatmul
          ? WeightMatrix::Bytes(spec.form, spec.outputs / parts + 1,
                                spec.inputs)
          : WeightMatrix::Bytes(spec.form, spec.outputs,
                                spec.inputs / parts + 1);
  // x, its codes and its frames; the result and its expected values, or partial
  // sums and their frames.
  const uint64_t matrices =
      Product({6 * sizeof(float), spec.rows,
               std::max<uint64_t>(spec.inputs, spec.outputs)});
  uint64_t sum = 0;
  return __builtin_add_overflow(weights, matrices, &sum) ? ~uint64_t{0} : sum;
}

void FusedCase::GenerateRows(int rank, RowRange rows, float* out) const {
  const size_t inputs = InputsOf(rank);
  pool_->ParallelFor(rows.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t first = (rows.begin + i) * inputs;
      for (size_t k = 0; k < inputs; ++k) {
        out[i * inputs + k] = GeneratedElement(gathers() ? 0 : rank, first + k);
      }
    }
  });
}

void FusedCase::Reset() {
  GenerateRows(rank_, gathers() ? split_.Shard(rank_) : RowRange{0, spec_.rows},
               x_.data());
  std::fill(result_.begin(), result_.end(), kSpoilt);
}

absl::Status FusedCase::Gather(bool multiply, cluster::Deadline deadline) {
  const FusedOutput output = {
      .w = &weights_, .y = result_.data(), .y_stride = weights_.rows()};
  own_x_.Assign(kernels::ActivationFormFor(spec_.form), x_.data(),
                split_.Shard(rank_).size(), spec_.inputs, spec_.inputs, *pool_);
  return AllGatherMatmul(
      {.rows = spec_.rows,
       .tiles = tiles_,
       .x = &own_x_,
       .products = {&output, multiply ? size_t{1} : size_t{0}}},
      *communicator_, workspace_, *pool_, deadline);
}

absl::Status FusedCase::Scatter(const kernels::WeightMatrix& w,
                                cluster::Deadline deadline) {
  return MatmulReduceScatter({.rows = spec_.rows,
                              .wire = spec_.wire,
                              .tiles = tiles_,
                              .x = x_.data(),
                              .x_stride = InputsOf(rank_),
                              .w = &w,
                              .out = result_.data()},
                             *communicator_, workspace_, *pool_, deadline);
}

// Multiplies all rows, which lie in x_ or, gathered, in the workspace.
void FusedCase::MultiplyAll(float* y) {
  if (!gathers()) {
    workspace_.x.Assign(kernels::ActivationFormFor(spec_.form), x_.data(),
                        spec_.rows, weights_.columns(), weights_.columns(),
                        *pool_);
  }
  const FusedOutput output = {
      .w = &weights_, .y = y, .y_stride = weights_.rows()};
  const RowRange all = {0, spec_.rows};
  MultiplyRanges({&output, 1}, workspace_.x, {&all, 1}, tiles_, *pool_);
}

absl::Status FusedCase::Run(int way, cluster::Deadline deadline) {
  if (gathers()) {
    if (way == kCompute) {
      MultiplyAll(result_.data());
      return absl::OkStatus();
    }
    RF_RETURN_IF_ERROR(Gather(/*multiply=*/way == kFused, deadline));
    if (way == kUnfused) MultiplyAll(result_.data());
    return absl::OkStatus();
  }
  switch (way) {
    case kFused:
      return Scatter(weights_, deadline);
    case kCommunicate:
      return Scatter(nothing_, deadline);
    default:
      MultiplyAll(partial_.data());
      if (way == kCompute) return absl::OkStatus();
      return communicator_->ReduceScatter(
          absl::MakeSpan(partial_), absl::MakeSpan(result_), offsets_,
          {.wire = spec_.wire, .row_elements = spec_.outputs}, /*check=*/0,
          deadline);
  }
}

uint64_t FusedCase::CountWrong() {
  if (!gathers()) return DifferentBits(result_, ExpectedSums());
  std::vector<float> x(spec_.rows * spec_.inputs);
  GenerateRows(0, {0, spec_.rows}, x.data());
  const auto form = kernels::ActivationFormFor(spec_.form);
  Activations activations;
  activations.Assign(form, x.data(), spec_.rows, spec_.inputs, spec_.inputs,
                     *pool_);
  std::vector<float> expected(result_.size());
  kernels::MatMul(weights_, activations, expected.data(), *pool_);
  return DifferentBits(result_, expected);
}

// Adds as the algorithm does. A ring adds each part of a shard in its own
// order. Other algorithms add in the order of ranks, each summand rounded.
std::vector<float> FusedCase::ExpectedSums() const {
  std::vector<float> sums(result_.size());
  const cluster::WireFormat format = SumFormat(spec_);
  const bool ring = spec_.algorithm == cluster::Algorithm::kRing;
  const size_t first = split_.Shard(rank_).begin;
  for (const Side side : {Side::kLeft, Side::kRight}) {
    const RowRange rows = split_.Of({rank_, side});
    if (rows.size() == 0) continue;
    const size_t count = rows.size() * spec_.outputs;
    float* const sum = sums.data() + (rows.begin - first) * spec_.outputs;
    const int sign = side == Side::kLeft ? 1 : -1;
    for (int hop = 1; hop <= size_; ++hop) {
      const int rank =
          ring ? ((rank_ + sign * hop) % size_ + size_) % size_ : hop - 1;
      const size_t inputs = InputsOf(rank);
      std::vector<float> x(rows.size() * inputs);
      GenerateRows(rank, rows, x.data());
      Activations activations;
      activations.Assign(kernels::ActivationFormFor(spec_.form), x.data(),
                         rows.size(), inputs, inputs, *pool_);
      std::vector<float> partial(count);
      std::optional<WeightMatrix> others;
      if (inputs != weights_.columns()) others.emplace(Weights(inputs));
      kernels::MatMul(others.has_value() ? *others : weights_, activations,
                      partial.data(), *pool_);
      if (size_ > 1) format.Round(0, count, partial.data());
      for (size_t i = 0; i < count; ++i) {
        sum[i] = hop == 1 ? partial[i] : sum[i] + partial[i];
      }
    }
  }
  return sums;
}

uint64_t FusedCase::ResultHash() const {
  return XXH64(result_.data(), result_.size() * sizeof(float), /*seed=*/0);
}

}  // namespace ringfleet::worker
