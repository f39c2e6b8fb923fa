// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/measure_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "cluster/model/host_spec.h"
#include "cluster/process/status_macros.h"
#include "kernels/aligned_buffer.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/mla_prefill.h"
#include "kernels/products/activations.h"
#include "kernels/products/matmul.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::worker {
namespace {

using kernels::WeightForm;
using kernels::WeightMatrix;

constexpr uint64_t kLeastWeightBytes = uint64_t{512} << 20;

// Shapes of R1: an expert's gate, and attention.
constexpr size_t kOutputs = 2048;
constexpr size_t kInputs = 7168;
constexpr size_t kHeads = static_cast<size_t>(cluster::kManyHeads);
constexpr size_t kFewHeads = static_cast<size_t>(cluster::kFewHeads);
constexpr size_t kNopeDim = 128;
constexpr size_t kValueDim = 128;
constexpr kernels::LatentRowFormat CacheFormat(kernels::Dtype dtype) {
  return {.dtype = dtype, .kv_lora_rank = 512, .rope_dim = 64};
}
constexpr kernels::LatentRowFormat kCacheFormat =
    CacheFormat(kernels::Dtype::kBf16);

constexpr size_t kRows[] = {1, 2, 4, 8, 16, 32, 128, 512};
constexpr size_t kMostRows = 512;
// All numbers of rows are measured equally often, in turns, and the median
// counts. Other programs may slow a machine down for a second at a time.
constexpr size_t kTurns = 5;
// No turn begins after twice the given time. Single passes of a slow host may
// take this many times the given time, but at most kTurnsTime.
constexpr int kMostTimes = 20;
constexpr absl::Duration kTurnsTime = absl::Seconds(2);
constexpr size_t kFormRows = 128;
constexpr WeightForm kOtherForms[] = {WeightForm::kInt4, WeightForm::kBf16,
                                      WeightForm::kF32};

// The absorbed form reads 75 MB of latent cache. Most hosts' CPU caches hold
// less, so it comes from memory, as in a batch. Sequences are so long that
// queries and results, which a plan counts separately, hardly show.
constexpr size_t kDecodeSequences = 8;
constexpr size_t kDecodePositions = 8192;
constexpr size_t kPromptRows = 512;
static_assert(kPromptRows <=
              kernels::kExpandedBlocks * kernels::kCacheBlockPositions);

// Returns how often `body` runs in a second, measured over `time`. The first
// run is a warm-up, unless it takes all of `time`.
double Rate(absl::Duration time, const std::function<void()>& body) {
  const auto run_for = [&body](absl::Duration least) {
    const absl::Time begun = absl::Now();
    int64_t count = 0;
    absl::Duration taken;
    do {
      body();
      ++count;
      taken = absl::Now() - begun;
    } while (taken < least);
    return std::pair(taken, static_cast<double>(count));
  };
  auto [taken, count] = run_for(absl::ZeroDuration());
  if (taken < time) std::tie(taken, count) = run_for(time);
  return count / absl::ToDoubleSeconds(taken);
}

// Counts turns that should take `time` together: kTurns of them, fewer on slow
// hosts, at least one.
class Turns {
 public:
  explicit Turns(absl::Duration time)
      : latest_(absl::Now() +
                std::max(2 * time, std::min(kMostTimes * time, kTurnsTime))) {}

  // Returns whether there is another turn.
  bool Next() {
    if (count_ == kTurns || (count_ > 0 && absl::Now() > latest_)) return false;
    ++count_;
    return true;
  }

 private:
  const absl::Time latest_;
  size_t count_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns the median rate of several turns that take `time` together.
double MedianRate(absl::Duration time, const std::function<void()>& body) {
  std::vector<double> rates;
  for (Turns turns(time); turns.Next();) {
    rates.push_back(Rate(time / kTurns, body));
  }
  return Median(std::move(rates));
}

std::vector<float> Waves(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::sin(static_cast<float>(i));
  }
  return values;
}

// Returns matrices with equal weights that have `bytes` together, at least one.
absl::StatusOr<std::vector<WeightMatrix>> MakeWeights(
    WeightForm form, uint64_t bytes, const std::vector<float>& values,
    kernels::ThreadPool& pool) {
  RF_ASSIGN_OR_RETURN(WeightMatrix first,
                      WeightMatrix::Create(form, kOutputs, kInputs));
  pool.ParallelFor(kOutputs, 1, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      first.SetRow(row, values.data() + row % kFormRows * kInputs);
    }
  });
  const size_t size = first.bytes();
  std::vector<WeightMatrix> weights;
  weights.push_back(std::move(first));
  const size_t copies = std::max<uint64_t>(bytes / size, 1) - 1;
  RF_ASSIGN_OR_RETURN(kernels::AlignedBuffer allocated,
                      kernels::AlignedBuffer::Allocate(copies * size));
  const auto buffer =
      std::make_shared<kernels::AlignedBuffer>(std::move(allocated));
  pool.ParallelFor(copies, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      std::memcpy(buffer->data() + i * size, weights[0].data(), size);
    }
  });
  for (size_t i = 0; i < copies; ++i) {
    weights.push_back(WeightMatrix::View(form, kOutputs, kInputs,
                                         buffer->data() + i * size, buffer));
  }
  return weights;
}

// Measures products with one matrix after the other.
class Products {
 public:
  Products(const std::vector<WeightMatrix>& weights,
           const std::vector<float>& values, kernels::ThreadPool& pool)
      : weights_(weights),
        values_(values),
        pool_(pool),
        y_(kMostRows * kOutputs) {}

  // Operations a second.
  double Measure(size_t rows, absl::Duration time) {
    return 2.0 * static_cast<double>(rows * kOutputs * kInputs) *
           Rate(time, [&] { Multiply(rows); });
  }

 private:
  void Multiply(size_t rows) {
    const WeightMatrix& weights = weights_[next_];
    next_ = (next_ + 1) % weights_.size();
    x_.Assign(kernels::ActivationFormFor(weights.form()), values_.data(), rows,
              kInputs, kInputs, pool_);
    kernels::MatMul(weights, x_, y_.data(), pool_);
  }

  const std::vector<WeightMatrix>& weights_;
  const std::vector<float>& values_;
  kernels::ThreadPool& pool_;
  kernels::Activations x_;
  std::vector<float> y_;
  size_t next_ = 0;
};

absl::StatusOr<double> MeasureAbsorbed(size_t heads, kernels::Dtype dtype,
                                       kernels::ThreadPool& pool,
                                       absl::Duration time) {
  const kernels::LatentRowFormat format = CacheFormat(dtype);
  // As many bytes in each type.
  const size_t positions =
      kDecodePositions * kCacheFormat.bytes() / format.bytes();
  const size_t sequence_blocks = positions / kernels::kCacheBlockPositions;
  const size_t num_blocks = kDecodeSequences * sequence_blocks;
  const size_t block_bytes = kernels::kCacheBlockPositions * format.bytes();
  RF_ASSIGN_OR_RETURN(
      kernels::AlignedBuffer cache,
      kernels::AlignedBuffer::Allocate(num_blocks * block_bytes));
  std::vector<const char*> blocks(num_blocks);
  pool.ParallelFor(num_blocks, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      blocks[i] = cache.data() + i * block_bytes;
      std::memset(cache.data() + i * block_bytes, 0, block_bytes);  // Present.
    }
  });
  std::vector<kernels::MlaSpan> spans(kDecodeSequences);
  for (size_t i = 0; i < kDecodeSequences; ++i) {
    spans[i] = {.blocks = absl::MakeConstSpan(blocks).subspan(
                    i * sequence_blocks, sequence_blocks),
                .first_position = static_cast<int64_t>(positions) - 1,
                .num_queries = 1,
                .first_row = i};
  }
  const std::vector<float> q =
      Waves(kDecodeSequences * heads * kCacheFormat.numbers());
  std::vector<float> out(kDecodeSequences * heads * kCacheFormat.kv_lora_rank);
  kernels::MlaWorkspace workspace;
  const auto attend = [&] {
    kernels::MlaDecode({.format = format,
                        .spans = spans,
                        .heads = heads,
                        .softmax_scale = 0.1f,
                        .q = q.data(),
                        .out = out.data()},
                       workspace, pool);
  };
  return 2.0 *
         static_cast<double>(
             heads * kDecodeSequences * positions *
             (kCacheFormat.numbers() + kCacheFormat.kv_lora_rank)) *
         MedianRate(time, attend);
}

// Measures some heads, whose rows are as far apart as if all heads were there.
double MeasureMaterialized(kernels::Dtype dtype, kernels::ThreadPool& pool,
                           absl::Duration time) {
  constexpr size_t kQueryDim = kNopeDim + kCacheFormat.rope_dim;
  constexpr size_t kPartHeads = kHeads / kernels::kExpandedBlocks;
  const std::vector<float> latents(kPromptRows * kCacheFormat.numbers());
  const std::vector<float> expanded(kPromptRows * kPartHeads *
                                    (kNopeDim + kValueDim));
  const std::vector<float> q(kPromptRows * kHeads * kQueryDim);
  std::vector<float> out(kPromptRows * kHeads * kValueDim);
  const kernels::MlaArgs args = {.format = CacheFormat(dtype),
                                 .heads = kHeads,
                                 .nope_dim = kNopeDim,
                                 .v_dim = kValueDim,
                                 .softmax_scale = 0.1f,
                                 .q = q.data(),
                                 .out = out.data()};
  const kernels::MlaSpan span = {.num_queries = kPromptRows};
  kernels::MlaWorkspace workspace;
  const auto attend = [&] {
    kernels::MlaAttendExpanded({.args = &args,
                                .span = &span,
                                .positions = kPromptRows,
                                .heads = kPartHeads,
                                .latents = latents.data(),
                                .expanded = expanded.data()},
                               workspace, pool);
  };
  return 2.0 * kPartHeads * kPromptRows * (kPromptRows + 1) / 2 *
         (kQueryDim + kValueDim) * MedianRate(time, attend);
}

}  // namespace

uint64_t ProductTestBytes(uint64_t cache_bytes) {
  return std::max(kLeastWeightBytes, cache_bytes);
}

absl::Status MeasureKernels(kernels::ThreadPool& pool, uint64_t weight_bytes,
                            absl::Duration time,
                            absl::FunctionRef<bool()> cancelled,
                            v1::HostReport* report) {
  const auto go_on = [cancelled]() -> absl::Status {
    return cancelled() ? absl::CancelledError("host: the caller has gone")
                       : absl::OkStatus();
  };
  const std::vector<float> values = Waves(kMostRows * kInputs);
  {
    RF_ASSIGN_OR_RETURN(
        const std::vector<WeightMatrix> weights,
        MakeWeights(WeightForm::kInt8, weight_bytes, values, pool));
    Products products(weights, values, pool);
    std::array<std::vector<double>, std::size(kRows)> rates;
    for (Turns turns(time); turns.Next();) {
      for (size_t i = 0; i < std::size(kRows); ++i) {
        RF_RETURN_IF_ERROR(go_on());
        rates[i].push_back(
            products.Measure(kRows[i], time / (kTurns * std::size(kRows))));
      }
    }
    for (size_t i = 0; i < std::size(kRows); ++i) {
      v1::ProductRate* rate = report->add_products();
      rate->set_rows(static_cast<uint32_t>(kRows[i]));
      rate->set_ops_per_second(Median(std::move(rates[i])));
    }
  }
  for (const WeightForm form : kOtherForms) {
    RF_RETURN_IF_ERROR(go_on());
    RF_ASSIGN_OR_RETURN(const std::vector<WeightMatrix> weights,
                        MakeWeights(form, weight_bytes, values, pool));
    Products products(weights, values, pool);
    v1::FormRate* rate = report->add_forms();
    rate->set_form(std::string(kernels::WeightFormName(form)));
    rate->set_ops_per_second(
        products.Measure(kFormRows, time / std::size(kOtherForms)));
  }
  v1::AttentionRates* attention = report->mutable_attention();
  constexpr int kAttentionRates = 5;
  const auto absorbed = [&](size_t heads,
                            kernels::Dtype dtype) -> absl::StatusOr<double> {
    RF_RETURN_IF_ERROR(go_on());
    return MeasureAbsorbed(heads, dtype, pool, time / kAttentionRates);
  };
  RF_ASSIGN_OR_RETURN(const double many,
                      absorbed(kHeads, kernels::Dtype::kBf16));
  attention->set_absorbed_ops_per_second(many);
  RF_ASSIGN_OR_RETURN(const double few,
                      absorbed(kFewHeads, kernels::Dtype::kBf16));
  attention->set_absorbed_16_heads_ops_per_second(few);
  RF_ASSIGN_OR_RETURN(const double f32, absorbed(kHeads, kernels::Dtype::kF32));
  attention->set_absorbed_f32_cache_ops_per_second(f32);
  RF_RETURN_IF_ERROR(go_on());
  attention->set_materialized_ops_per_second(
      MeasureMaterialized(kernels::Dtype::kBf16, pool, time / kAttentionRates));
  RF_RETURN_IF_ERROR(go_on());
  attention->set_materialized_f32_cache_ops_per_second(
      MeasureMaterialized(kernels::Dtype::kF32, pool, time / kAttentionRates));
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
