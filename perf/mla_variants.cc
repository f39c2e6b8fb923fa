// SPDX-License-Identifier: Apache-2.0
#include "perf/mla_variants.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/attention/mla_block.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/mla_task.h"
#include "kernels/check.h"
#include "kernels/products/matmul.h"

namespace ringfleet::perf {
namespace {

using kernels::Dtype;
using kernels::kCacheBlockPositions;
using kernels::WeightForm;
using kernels::WeightMatrix;

// Blocks of positions repeat with this period, so that the cache of long
// contexts is made by copying.
constexpr size_t kDistinctBlocks = 2;

// Uniform in [-bound, bound], a function of its arguments.
float Random(uint64_t tensor, uint64_t index, float bound) {
  uint64_t bits = (tensor << 48) + index + 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bound * (static_cast<float>((bits >> 40) & 0xffffff) * 0x1p-23f - 1);
}

enum Tensor : uint64_t { kQB, kKvB, kO, kLatent };

// Of unit variance times columns^-1/2, so that products keep their magnitude.
std::vector<float> RandomMatrix(Tensor tensor, size_t rows, size_t columns) {
  std::vector<float> values(rows * columns);
  const float bound = std::sqrt(3.0f / static_cast<float>(columns));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Random(tensor, i, bound);
  }
  return values;
}

WeightForm FormOf(Dtype dtype) {
  return dtype == Dtype::kF32 ? WeightForm::kF32 : WeightForm::kBf16;
}

void SetRows(const std::vector<float>& values, WeightMatrix* w) {
  for (size_t row = 0; row < w->rows(); ++row) {
    w->SetRow(row, values.data() + row * w->columns());
  }
}

// [columns, rows] of a part of values [.., stride] that begins at `first`.
WeightMatrix Transposed(const float* first, size_t stride, size_t rows,
                        size_t columns) {
  WeightMatrix w(WeightForm::kF32Rows, columns, rows);
  std::vector<float> row(rows);
  for (size_t c = 0; c < columns; ++c) {
    for (size_t r = 0; r < rows; ++r) row[r] = first[r * stride + c];
    w.SetRow(c, row.data());
  }
  return w;
}

}  // namespace

absl::string_view MlaVariantName(MlaVariant variant) {
  constexpr absl::string_view kNames[] = {"CD", "CC", "A_CC", "A_CC_ME",
                                          "AM_CC_ME"};
  return kNames[static_cast<size_t>(variant)];
}

MlaCost CostOf(MlaVariant variant, const MlaShape& shape, size_t batch,
               size_t context, Dtype cache, Dtype weights) {
  const double h = static_cast<double>(shape.heads);
  const double r = static_cast<double>(shape.rank);
  const double dr = static_cast<double>(shape.rope);
  const double dq = static_cast<double>(shape.key());
  const double dv = static_cast<double>(shape.v);
  const double expand = r * h * static_cast<double>(shape.expanded());
  const double in = h * dq * static_cast<double>(shape.q_rank);
  const double out = h * dv * static_cast<double>(shape.hidden);
  const double queries = static_cast<double>(batch);
  const double cached = queries * static_cast<double>(context);
  const double e = static_cast<double>(kernels::DtypeBytes(cache));
  const double block =
      static_cast<double>(std::min(context, kCacheBlockPositions));

  MlaCost cost;
  cost.cache_bytes = cached * (r + dr) * e;
  double weight_numbers = in + expand + out;
  double per_position = h * (2 * r + dr);
  switch (variant) {
    case MlaVariant::kCd:
      cost.cache_bytes = cached * h * (dq + dv) * e;
      per_position = h * (dq + dv);
      break;
    case MlaVariant::kCc:
      cost.temporary_bytes =
          block * h * static_cast<double>(shape.expanded()) * sizeof(float);
      per_position = h * (dq + dv) + expand;
      break;
    case MlaVariant::kACc:
      cost.temporary_bytes = static_cast<double>(context) * h * (r + dr) * e;
      break;
    case MlaVariant::kACcMe:
      break;
    case MlaVariant::kAmCcMe:
      weight_numbers = h * (r + dr) * static_cast<double>(shape.q_rank) +
                       h * r * static_cast<double>(shape.hidden);
      break;
  }
  cost.weight_bytes =
      weight_numbers * static_cast<double>(kernels::DtypeBytes(weights));
  // CC multiplies kv_b with every position instead of the query.
  const double per_query =
      weight_numbers - (variant == MlaVariant::kCc ? expand : 0);
  cost.flops = 2 * (queries * per_query + cached * per_position);
  return cost;
}

MlaModule::MlaModule(MlaVariant variant, const MlaShape& shape, size_t batch,
                     size_t context, Dtype cache, Dtype weights,
                     kernels::ThreadPool& pool)
    : variant_(variant),
      shape_(shape),
      batch_(batch),
      context_(context),
      format_{
          .dtype = cache, .kv_lora_rank = shape.rank, .rope_dim = shape.rope},
      pool_(pool),
      q_(batch * shape.heads * shape.key()),
      latent_q_(batch * shape.heads * shape.cached()),
      sums_(batch * shape.heads * shape.rank),
      attended_(batch * shape.heads * shape.v),
      rope_(batch * shape.heads * shape.rope) {
  RF_CHECK(context > 0 && shape.key() % 2 == 0 && shape.cached() % 2 == 0);
  MakeCaches();
  MakeWeights(weights);
}

void MlaModule::Multiply(const WeightMatrix& w, const float* x, float* y) {
  x_.Assign(kernels::ActivationFormFor(w.form()), x, batch_, w.columns(),
            w.columns(), pool_);
  kernels::MatMul(w, x_, y, pool_);
}

void MlaModule::MakeWeights(Dtype weights) {
  const MlaShape& s = shape_;
  const WeightForm form = FormOf(weights);
  const std::vector<float> q_b = RandomMatrix(kQB, s.heads * s.key(), s.q_rank);
  const std::vector<float> kv_b =
      RandomMatrix(kKvB, s.heads * s.expanded(), s.rank);
  const std::vector<float> o = RandomMatrix(kO, s.hidden, s.heads * s.v);
  kv_b_ = WeightMatrix(form, s.heads * s.expanded(), s.rank);
  SetRows(kv_b, &kv_b_);

  if (variant_ == MlaVariant::kCd) ExpandCache();
  if (variant_ != MlaVariant::kAmCcMe) {
    q_b_ = WeightMatrix(form, s.heads * s.key(), s.q_rank);
    SetRows(q_b, &q_b_);
    o_ = WeightMatrix(form, s.hidden, s.heads * s.v);
    SetRows(o, &o_);
    uk_transposed_ = WeightMatrix(form, s.heads * s.rank, s.nope);
    for (size_t h = 0; h < s.heads; ++h) {
      const WeightMatrix uk = Transposed(
          kv_b.data() + h * s.expanded() * s.rank, s.rank, s.nope, s.rank);
      std::vector<float> row(s.nope);
      for (size_t c = 0; c < s.rank; ++c) {
        uk.GetRow(c, row.data());
        uk_transposed_.SetRow(h * s.rank + c, row.data());
      }
    }
    return;
  }

  // W_UK^T W_QB and W_O W_UV, head by head.
  q_absorbed_ = WeightMatrix(form, s.heads * s.rank, s.q_rank);
  q_rope_ = WeightMatrix(form, s.heads * s.rope, s.q_rank);
  o_absorbed_ = WeightMatrix(form, s.hidden, s.heads * s.rank);
  std::vector<float> rows(s.rank * s.q_rank);
  std::vector<WeightMatrix> uv;
  for (size_t h = 0; h < s.heads; ++h) {
    const float* expand = kv_b.data() + h * s.expanded() * s.rank;
    const float* query = q_b.data() + h * s.key() * s.q_rank;
    const WeightMatrix uk = Transposed(expand, s.rank, s.nope, s.rank);
    const WeightMatrix qb = Transposed(query, s.q_rank, s.nope, s.q_rank);
    x_.Assign(kernels::Activations::Form::kF32,
              static_cast<const float*>(uk.Row(0)), s.rank, s.nope, s.nope,
              pool_);
    kernels::MatMul(qb, x_, rows.data(), pool_);
    for (size_t c = 0; c < s.rank; ++c) {
      q_absorbed_.SetRow(h * s.rank + c, rows.data() + c * s.q_rank);
    }
    for (size_t j = 0; j < s.rope; ++j) {
      q_rope_.SetRow(h * s.rope + j, query + (s.nope + j) * s.q_rank);
    }
    uv.push_back(Transposed(expand + s.nope * s.rank, s.rank, s.v, s.rank));
  }
  constexpr size_t kRows = 64;
  rows.assign(kRows * s.heads * s.rank, 0);
  for (size_t d = 0; d < s.hidden; d += kRows) {
    const size_t count = std::min(kRows, s.hidden - d);
    for (size_t h = 0; h < s.heads; ++h) {
      x_.Assign(kernels::Activations::Form::kF32,
                o.data() + (d * s.heads + h) * s.v, count, s.v, s.heads * s.v,
                pool_);
      const kernels::MatMulArgs product = {.w = &uv[h],
                                           .num_rows = s.rank,
                                           .x = &x_,
                                           .batch = count,
                                           .y = rows.data() + h * s.rank,
                                           .y_stride = s.heads * s.rank};
      kernels::MatMul({&product, 1}, pool_);
    }
    for (size_t i = 0; i < count; ++i) {
      o_absorbed_.SetRow(d + i, rows.data() + i * s.heads * s.rank);
    }
  }
}

void MlaModule::WriteHeads(size_t sequence, size_t position,
                           const float* expanded, const float* rope) {
  const MlaShape& s = shape_;
  const kernels::LatentRowFormat nope = {format_.dtype, s.nope, 0};
  const kernels::LatentRowFormat rotated = {format_.dtype, s.rope, 0};
  const kernels::LatentRowFormat value = {format_.dtype, s.v, 0};
  const size_t e = kernels::DtypeBytes(format_.dtype);
  for (size_t h = 0; h < s.heads; ++h) {
    const float* head = expanded + h * s.expanded();
    const size_t at = (sequence * s.heads + h) * context_ + position;
    char* key = keys_.data() + at * s.key() * e;
    kernels::StoreLatentRow(nope, head, key);
    kernels::StoreLatentRow(rotated, rope, key + s.nope * e);
    kernels::StoreLatentRow(value, head + s.nope,
                            values_.data() + at * s.v * e);
  }
}

// What earlier steps would have written. The first sequence's first blocks are
// expanded; the others repeat them.
void MlaModule::ExpandCache() {
  const MlaShape& s = shape_;
  const size_t e = kernels::DtypeBytes(format_.dtype);
  const size_t numbers = batch_ * s.heads * context_;
  keys_ = kernels::AlignedBuffer(numbers * s.key() * e);
  // Values are read a group of lanes at a time.
  values_ = kernels::AlignedBuffer((numbers * s.v + kernels::kLaneGroup) * e);
  std::vector<float> expanded(kCacheBlockPositions * kv_b_.rows());
  for (size_t b = 0; b < block_pointers_[0].size(); ++b) {
    const float* latents = Latents(b);
    x_.Assign(kernels::ActivationFormFor(kv_b_.form()), latents,
              kCacheBlockPositions, s.rank, s.cached(), pool_);
    kernels::MatMul(kv_b_, x_, expanded.data(), pool_);
    for (size_t t = 0; t < kCacheBlockPositions; ++t) {
      const size_t position = b * kCacheBlockPositions + t;
      if (position >= context_) break;
      WriteHeads(0, position, expanded.data() + t * kv_b_.rows(),
                 latents + t * s.cached() + s.rank);
    }
  }
  const size_t period = kDistinctBlocks * kCacheBlockPositions;
  const auto repeat = [&](kernels::AlignedBuffer& buffer, size_t dim) {
    for (size_t row = 0; row < batch_ * s.heads; ++row) {
      const char* from = buffer.data() + row % s.heads * context_ * dim * e;
      for (size_t t = 0; t < context_; t += period) {
        char* to = buffer.data() + (row * context_ + t) * dim * e;
        const size_t count = std::min(period, context_ - t);
        if (to != from) std::memcpy(to, from, count * dim * e);
      }
    }
  };
  repeat(keys_, s.key());
  repeat(values_, s.v);
}

// The newest position of every sequence, which is part of a step.
void MlaModule::ExpandNewest() {
  const MlaShape& s = shape_;
  const size_t newest = context_ - 1;
  const float* latent =
      Latents(newest / kCacheBlockPositions % kDistinctBlocks) +
      newest % kCacheBlockPositions * s.cached();
  newest_.resize(batch_ * s.rank);
  expanded_.resize(batch_ * kv_b_.rows());
  for (size_t i = 0; i < batch_; ++i) {
    std::copy_n(latent, s.rank, newest_.data() + i * s.rank);
  }
  Multiply(kv_b_, newest_.data(), expanded_.data());
  for (size_t i = 0; i < batch_; ++i) {
    WriteHeads(i, newest, expanded_.data() + i * kv_b_.rows(), latent + s.rank);
  }
}

void MlaModule::MakeCaches() {
  const size_t num_blocks =
      (context_ + kCacheBlockPositions - 1) / kCacheBlockPositions;
  const size_t bytes = kCacheBlockPositions * format_.bytes();
  std::vector<float> row(shape_.cached());
  // CD keeps no latents; they are what its cache is made of.
  const size_t sequences = variant_ == MlaVariant::kCd ? 1 : batch_;
  for (size_t s = 0; s < sequences; ++s) {
    std::vector<const char*>& pointers = block_pointers_.emplace_back();
    const size_t kept = variant_ == MlaVariant::kCd
                            ? std::min(num_blocks, kDistinctBlocks)
                            : num_blocks;
    for (size_t b = 0; b < kept; ++b) {
      kernels::AlignedBuffer& block = blocks_.emplace_back(bytes);
      pointers.push_back(block.data());
      if (s > 0 || b >= kDistinctBlocks) {
        std::memcpy(block.data(), block_pointers_[0][b % kDistinctBlocks],
                    bytes);
        continue;
      }
      for (size_t t = 0; t < kCacheBlockPositions; ++t) {
        for (size_t c = 0; c < row.size(); ++c) {
          row[c] = Random(
              kLatent, (b * kCacheBlockPositions + t) * row.size() + c, 1.7f);
        }
        kernels::StoreLatentRow(format_, row.data(),
                                block.data() + t * format_.bytes());
      }
    }
  }
  for (size_t s = 0; s < sequences; ++s) {
    spans_.push_back({.blocks = block_pointers_[s],
                      .first_position = static_cast<int64_t>(context_) - 1,
                      .num_queries = 1,
                      .first_row = s});
  }
}

const float* MlaModule::Latents(size_t block) {
  latents_.resize(kCacheBlockPositions * format_.numbers());
  kernels::LoadLatentRows(format_, block_pointers_[0][block],
                          kCacheBlockPositions, latents_.data(),
                          format_.numbers());
  return latents_.data();
}

void MlaModule::AttendHeads(const char* keys, const char* values,
                            size_t key_dim, size_t value_dim,
                            size_t value_stride, size_t rows, const float* q,
                            float* out) {
  const kernels::MlaKernels& kernels = kernels::MlaKernelsFor(format_.dtype);
  const size_t e = kernels::DtypeBytes(format_.dtype);
  // Keys and values that the kernels do not read as they are go to two blocks
  // of the scratch.
  kernels::ForEachMlaTask(
      kernels, {.key_dim = key_dim, .value_dim = value_dim, .blocks = 2}, rows,
      workspace_, pool_, [&](size_t row, const kernels::MlaScratch& scratch) {
        const auto readable = [&](const char* cached, size_t numbers,
                                  size_t count, size_t block, size_t* stride) {
          const kernels::LatentRowFormat format = {format_.dtype, numbers, 0};
          *stride = format.bytes();
          if (kernels.reads_cache(format)) {
            return static_cast<const void*>(cached);
          }
          *stride = scratch.stride_bytes;
          void* const loaded = scratch.Rows(block);
          kernels.load_rows(format, cached, count, loaded, *stride);
          return static_cast<const void*>(loaded);
        };
        float max[kernels::kMaxLanes];
        float sum[kernels::kMaxLanes];
        kernels.pack_queries(q + row * key_dim, key_dim, 1, key_dim,
                             scratch.queries);
        const float scale = 1 / std::sqrt(static_cast<float>(shape_.key()));
        for (size_t t = 0; t < context_; t += kCacheBlockPositions) {
          const size_t at = row * context_ + t;
          const size_t count = std::min(kCacheBlockPositions, context_ - t);
          kernels::MlaBlock block = {
              .lanes = 1,
              .positions = count,
              .key_dim = key_dim,
              .value_dim = value_dim,
              .queries = scratch.queries,
              .packed_positions = count,
              .score_scale = scale * std::numbers::log2e_v<float>,
              .first = t == 0,
              .last = t + count == context_,
              .max = max,
              .sum = sum,
              .out = out + row * value_dim,
              .out_stride = value_dim,
              .scores = scratch.scores,
              .probabilities = scratch.probabilities};
          block.keys = readable(keys + at * key_dim * e, key_dim, count, 0,
                                &block.key_stride_bytes);
          block.values = readable(values + at * value_stride * e, value_stride,
                                  count, 1, &block.value_stride_bytes);
          if (kernels.pack_values != nullptr) {
            kernels.pack_values(block.values, block.value_stride_bytes, count,
                                value_dim, scratch.values);
            block.values = scratch.values;
          }
          kernels.attend(block);
        }
      });
}

void MlaModule::AttendCopies() {
  const size_t e = kernels::DtypeBytes(format_.dtype);
  const size_t row_bytes = format_.bytes();
  const size_t bytes = shape_.heads * context_ * row_bytes;
  char* copies =
      kernels::GrowTo<char>(copies_, bytes + kernels::kLaneGroup * e);
  for (size_t s = 0; s < batch_; ++s) {
    pool_.ParallelFor(shape_.heads, 1, [&](size_t begin, size_t end) {
      for (size_t h = begin; h < end; ++h) {
        for (size_t t = 0; t < context_; t += kCacheBlockPositions) {
          std::memcpy(copies + (h * context_ + t) * row_bytes,
                      block_pointers_[s][t / kCacheBlockPositions],
                      std::min(kCacheBlockPositions, context_ - t) * row_bytes);
        }
      }
    });
    AttendHeads(copies, copies, shape_.cached(), shape_.rank, shape_.cached(),
                shape_.heads,
                latent_q_.data() + s * shape_.heads * shape_.cached(),
                sums_.data() + s * shape_.heads * shape_.rank);
  }
}

void MlaModule::Run(const float* q_latent, float* out) {
  const MlaShape& s = shape_;
  const size_t rows = batch_ * s.heads;
  const kernels::MlaArgs args = {
      .format = format_,
      .heads = s.heads,
      .nope_dim = s.nope,
      .v_dim = s.v,
      .softmax_scale = 1 / std::sqrt(static_cast<float>(s.key())),
      .q = q_.data(),
      .kv_b = &kv_b_,
      .uk_transposed = &uk_transposed_,
      .out = attended_.data()};
  const auto decode = [&] {
    kernels::MlaDecode({.format = format_,
                        .spans = spans_,
                        .heads = s.heads,
                        .softmax_scale = args.softmax_scale,
                        .q = latent_q_.data(),
                        .out = sums_.data()},
                       workspace_, pool_);
  };
  const auto join = [&](const float* rope, size_t stride) {
    for (size_t row = 0; row < rows; ++row) {
      std::copy_n(rope + row * stride, s.rope,
                  latent_q_.data() + row * s.cached() + s.rank);
    }
  };
  if (variant_ == MlaVariant::kAmCcMe) {
    Multiply(q_absorbed_, q_latent, sums_.data());
    Multiply(q_rope_, q_latent, rope_.data());
    for (size_t row = 0; row < rows; ++row) {
      std::copy_n(sums_.data() + row * s.rank, s.rank,
                  latent_q_.data() + row * s.cached());
    }
    join(rope_.data(), s.rope);
    decode();
    Multiply(o_absorbed_, sums_.data(), out);
    return;
  }
  Multiply(q_b_, q_latent, q_.data());
  switch (variant_) {
    case MlaVariant::kCd:
      ExpandNewest();
      AttendHeads(keys_.data(), values_.data(), s.key(), s.v, s.v, rows,
                  q_.data(), attended_.data());
      break;
    case MlaVariant::kCc:
      for (const kernels::MlaSpan& span : spans_) {
        kernels::MlaMaterialized(args, span, workspace_, pool_);
      }
      break;
    case MlaVariant::kACc:
      x_.Assign(kernels::ActivationFormFor(uk_transposed_.form()), q_.data(),
                rows, s.nope, s.key(), pool_);
      kernels::MatMulPerHead({.first = {.w = &uk_transposed_,
                                        .num_rows = s.rank,
                                        .x = &x_,
                                        .x_step = s.heads,
                                        .batch = batch_,
                                        .y = latent_q_.data(),
                                        .y_stride = s.heads * s.cached()},
                              .heads = s.heads,
                              .row_step = s.rank,
                              .x_step = 1,
                              .y_step = s.cached()},
                             pool_);
      join(q_.data() + s.nope, s.key());
      AttendCopies();
      x_.Assign(kernels::ActivationFormFor(kv_b_.form()), sums_.data(), rows,
                s.rank, s.rank, pool_);
      kernels::MatMulPerHead({.first = {.w = &kv_b_,
                                        .first_row = s.nope,
                                        .num_rows = s.v,
                                        .x = &x_,
                                        .x_step = s.heads,
                                        .batch = batch_,
                                        .y = attended_.data(),
                                        .y_stride = s.heads * s.v},
                              .heads = s.heads,
                              .row_step = s.expanded(),
                              .x_step = 1,
                              .y_step = s.v},
                             pool_);
      break;
    default:
      kernels::MlaAbsorbed(args, spans_, workspace_, pool_);
  }
  Multiply(o_, attended_.data(), out);
}

}  // namespace ringfleet::perf
