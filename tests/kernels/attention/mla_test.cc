// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/mla.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "tests/kernels/attention/latent_sequence.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::kernels {
namespace {

constexpr float kLayerScale = 0.2f;

struct Sizes {
  size_t heads = 5;
  size_t rank = 40;
  size_t rope = 6;
  size_t nope = 19;
  size_t v = 21;
};

// Random weights and a random cache of `positions` rows.
class Layer {
 public:
  Layer(const Sizes& sizes, size_t positions, Dtype cache_dtype,
        WeightForm weight_form = WeightForm::kF32)
      : sizes_(sizes),
        format_{.dtype = cache_dtype,
                .kv_lora_rank = sizes.rank,
                .rope_dim = sizes.rope},
        kv_b_(weight_form, sizes.heads * (sizes.nope + sizes.v), sizes.rank),
        uk_transposed_(weight_form, sizes.heads * sizes.rank, sizes.nope),
        sequence_(format_, RandomFloats(positions * format_.numbers(), 11)) {
    const std::vector<float> weights =
        RandomFloats(kv_b_.rows() * sizes.rank, 12, -0.4f, 0.4f);
    for (size_t row = 0; row < kv_b_.rows(); ++row) {
      kv_b_.SetRow(row, weights.data() + row * sizes.rank);
    }
    std::vector<float> column(sizes.nope);
    for (size_t row = 0; row < uk_transposed_.rows(); ++row) {
      const size_t head = row / sizes.rank;
      for (size_t j = 0; j < sizes.nope; ++j) {
        column[j] = weights[(head * (sizes.nope + sizes.v) + j) * sizes.rank +
                            row % sizes.rank];
      }
      uk_transposed_.SetRow(row, column.data());
    }
    ExpandValues();
  }

  size_t out_size() const { return sizes_.heads * sizes_.v; }
  size_t q_size() const { return sizes_.heads * (sizes_.nope + sizes_.rope); }
  MlaSpan Span(int64_t first_position, size_t num_queries,
               size_t first_row = 0) const {
    return sequence_.Span(first_position, num_queries, first_row);
  }

  MlaArgs Args(const float* q, float* out) const {
    return {.format = format_,
            .heads = sizes_.heads,
            .nope_dim = sizes_.nope,
            .v_dim = sizes_.v,
            .softmax_scale = kLayerScale,
            .q = q,
            .kv_b = &kv_b_,
            .uk_transposed = &uk_transposed_,
            .out = out};
  }

  struct Result {
    double value = 0;
    double tolerance = 0;
  };

  // Plain attention in double for one query at `position`: [heads, v].
  //
  // With a relative error of `unit` in every factor of a score (queries, and
  // keys as they are in either form) a score is off by twice that of the sum
  // of its terms' magnitudes, and so, relatively, is its weight; weights and
  // values are off by `unit` each. The magnitudes are those of the absorbed
  // form, whose terms are the larger ones.
  std::vector<Result> Expected(int64_t position, const float* q,
                               double unit) const {
    std::vector<Result> results(out_size());
    const std::vector<float>& cached = sequence_.rows();
    const size_t visible = static_cast<size_t>(position) + 1;
    const size_t numbers = format_.numbers();
    std::vector<float> row(sizes_.rank);
    for (size_t h = 0; h < sizes_.heads; ++h) {
      const float* query = q + h * (sizes_.nope + sizes_.rope);
      const size_t first = h * (sizes_.nope + sizes_.v);
      std::vector<double> latent(sizes_.rank);
      std::vector<double> latent_magnitude(sizes_.rank);
      for (size_t j = 0; j < sizes_.nope; ++j) {
        kv_b_.GetRow(first + j, row.data());
        for (size_t c = 0; c < sizes_.rank; ++c) {
          latent[c] += static_cast<double>(query[j]) * row[c];
          latent_magnitude[c] += std::abs(double{query[j]} * row[c]);
        }
      }
      std::vector<double> p(visible);
      std::vector<double> errors(visible);
      double total = 0;
      for (size_t t = 0; t < visible; ++t) {
        const float* key = &cached[t * numbers];
        double score = 0;
        double magnitude = 0;
        for (size_t c = 0; c < sizes_.rank; ++c) {
          score += latent[c] * key[c];
          magnitude += latent_magnitude[c] * std::abs(key[c]);
        }
        for (size_t j = 0; j < sizes_.rope; ++j) {
          const double term =
              double{query[sizes_.nope + j]} * key[sizes_.rank + j];
          score += term;
          magnitude += std::abs(term);
        }
        p[t] = std::exp(double{kLayerScale} * score);
        errors[t] = std::expm1(2 * unit * double{kLayerScale} * magnitude);
        total += p[t];
      }
      for (size_t j = 0; j < sizes_.v; ++j) {
        const size_t output = h * sizes_.v + j;
        const double* const values = &values_[output * positions()];
        const double* const magnitudes =
            &value_magnitudes_[output * positions()];
        Result& result = results[output];
        for (size_t t = 0; t < visible; ++t) {
          result.value += p[t] / total * values[t];
        }
        double mean_error = 0;
        for (size_t t = 0; t < visible; ++t) {
          mean_error += p[t] / total * errors[t];
        }
        for (size_t t = 0; t < visible; ++t) {
          const double weight = p[t] / total * (1 + errors[t] + mean_error);
          result.tolerance +=
              weight * (errors[t] * std::abs(values[t] - result.value) +
                        2 * unit * magnitudes[t]);
        }
        // The mean error moves the result through the sum of weights: second
        // order, as the first cancels against result.value above.
        result.tolerance *= 1 + mean_error;
      }
    }
    return results;
  }

 private:
  size_t positions() const {
    return sequence_.rows().size() / format_.numbers();
  }

  // Every position's values of every head, and the sums of their terms'
  // magnitudes, by OpenBLAS: plain loops take seconds.
  void ExpandValues() {
    std::vector<double> weights, latents, weight_magnitudes, latent_magnitudes;
    std::vector<float> row(sizes_.rank);
    for (size_t i = 0; i < out_size(); ++i) {
      kv_b_.GetRow(
          i / sizes_.v * (sizes_.nope + sizes_.v) + sizes_.nope + i % sizes_.v,
          row.data());
      weights.insert(weights.end(), row.begin(), row.end());
    }
    for (size_t t = 0; t < positions(); ++t) {
      const float* const latent = &sequence_.rows()[t * format_.numbers()];
      latents.insert(latents.end(), latent, latent + sizes_.rank);
    }
    for (const double value : weights) {
      weight_magnitudes.push_back(std::abs(value));
    }
    for (const double value : latents) {
      latent_magnitudes.push_back(std::abs(value));
    }
    values_ = Expanded(weights, latents);
    value_magnitudes_ = Expanded(weight_magnitudes, latent_magnitudes);
  }

  // weights [heads * v, rank] times latents [positions, rank].
  std::vector<double> Expanded(const std::vector<double>& weights,
                               const std::vector<double>& latents) const {
    std::vector<double> expanded(out_size() * positions());
    const auto rank = static_cast<int>(sizes_.rank);
    const auto count = static_cast<int>(positions());
    if (expanded.empty()) return expanded;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans,
                static_cast<int>(out_size()), count, rank, 1, weights.data(),
                rank, latents.data(), rank, 0, expanded.data(), count);
    return expanded;
  }

  const Sizes sizes_;
  const LatentRowFormat format_;
  WeightMatrix kv_b_;
  WeightMatrix uk_transposed_;
  const LatentSequence sequence_;
  std::vector<double> values_;            // [heads * v, positions]
  std::vector<double> value_magnitudes_;  // [heads * v, positions]
};

using Kernel = void (*)(const MlaArgs&, const MlaSpan&, ThreadPool&);

void Absorbed(const MlaArgs& args, const MlaSpan& span, ThreadPool& pool) {
  MlaWorkspace workspace;
  MlaAbsorbed(args, {&span, 1}, workspace, pool);
}

void Materialized(const MlaArgs& args, const MlaSpan& span, ThreadPool& pool) {
  MlaWorkspace workspace;
  MlaMaterialized(args, span, workspace, pool);
}

// Relative error of what enters the products: bfloat16's, or that of a float32
// sum over every size there is.
double Unit(const Sizes& sizes, size_t positions, Dtype cache) {
  const double float_unit = Gamma(static_cast<double>(
      sizes.nope + sizes.rank + sizes.rope + positions + 40));
  const bool bf16 = cache != Dtype::kF32 && CurrentIsa() >= Isa::kAvx512Bf16;
  return float_unit + (bf16 ? 0x1p-8 : 0);
}

void ExpectPlainAttention(const Sizes& sizes, size_t positions,
                          size_t num_queries, Dtype dtype) {
  ThreadPool pool(2);
  const Layer layer(sizes, positions, dtype);
  const int64_t first = static_cast<int64_t>(positions - num_queries);
  const std::vector<float> q = RandomFloats(num_queries * layer.q_size(),
                                            static_cast<uint32_t>(positions));
  for (const Kernel kernel : {&Absorbed, &Materialized}) {
    std::vector<float> out(num_queries * layer.out_size(), NAN);
    kernel(layer.Args(q.data(), out.data()), layer.Span(first, num_queries),
           pool);
    for (size_t i = 0; i < num_queries; ++i) {
      const auto expected =
          layer.Expected(first + static_cast<int64_t>(i),
                         &q[i * layer.q_size()], Unit(sizes, positions, dtype));
      for (size_t j = 0; j < expected.size(); ++j) {
        ASSERT_NEAR(out[i * layer.out_size() + j], expected[j].value,
                    expected[j].tolerance)
            << DtypeName(dtype) << ", " << positions << " positions, query "
            << i << ", " << (kernel == &Absorbed ? "absorbed" : "materialized");
      }
    }
  }
}

constexpr Dtype kLatentDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kInt8};

TEST(MlaTest, BothFormsMatchPlainAttentionAtBlockBorders) {
  ForEachIsa([] {
    for (const Dtype dtype : kLatentDtypes) {
      for (const size_t positions : {1, 2, 127, 128, 129, 257}) {
        ExpectPlainAttention({}, positions, std::min<size_t>(positions, 4),
                             dtype);
      }
    }
  });
}

// Groups of 64 queries, whole and cut, on both sides of block borders.
TEST(MlaTest, BothFormsMatchPlainAttentionForManyQueries) {
  ForEachIsa([] {
    for (const Dtype dtype : kLatentDtypes) {
      for (const size_t num_queries : {63, 64, 65, 70, 150}) {
        ExpectPlainAttention({.heads = 1, .nope = 8, .v = 5}, 170, num_queries,
                             dtype);
      }
    }
  });
}

TEST(MlaTest, BothFormsMatchPlainAttentionForOtherSizes) {
  ForEachIsa([] {
    for (const Dtype dtype : kLatentDtypes) {
      for (const Sizes& sizes :
           {Sizes{.heads = 1, .rope = 0}, Sizes{.heads = 1, .nope = 0},
            Sizes{.heads = 2, .rope = 5, .nope = 9},
            Sizes{.heads = 2, .rank = 33, .rope = 3, .nope = 4, .v = 70},
            Sizes{.heads = 17, .rank = 16, .rope = 16, .nope = 32, .v = 64}}) {
        ExpectPlainAttention(sizes, 150, 3, dtype);
      }
    }
  });
}

// Relative to the norm of a query's result: 1e-5 is 170 u, about what the
// additions over a block and the products' tails allow.
TEST(MlaTest, TheFormsAgreeInFloat32) {
  const Sizes sizes = {
      .heads = 4, .rank = 512, .rope = 64, .nope = 128, .v = 128};
  ForEachIsa([&] {
    ThreadPool pool(2);
    const size_t positions = 300;
    const Layer layer(sizes, positions, Dtype::kF32);
    for (const size_t num_queries : {1, 7, 40}) {
      const MlaSpan span = layer.Span(
          static_cast<int64_t>(positions - num_queries), num_queries);
      const std::vector<float> q =
          RandomFloats(num_queries * layer.q_size(), 21);
      std::vector<float> absorbed(num_queries * layer.out_size());
      std::vector<float> materialized(num_queries * layer.out_size());
      Absorbed(layer.Args(q.data(), absorbed.data()), span, pool);
      Materialized(layer.Args(q.data(), materialized.data()), span, pool);
      double difference = 0;
      double norm = 0;
      for (size_t i = 0; i < absorbed.size(); ++i) {
        difference += std::pow(double{absorbed[i]} - materialized[i], 2.0);
        norm += std::pow(materialized[i], 2.0);
      }
      EXPECT_LT(std::sqrt(difference / norm), 1e-5) << num_queries;
    }
  });
}

// The bits of a query do not depend on the queries beside it, the sequences of
// the call, or the threads.
TEST(MlaTest, AbsorbedIsRowInvariant) {
  const Sizes sizes = {.heads =
                           70};  // 117 queries are more than one pass holds.
  const size_t positions = 300;
  ForEachIsa([&] {
    for (const Dtype dtype : kLatentDtypes) {
      const Layer layer(sizes, positions, dtype, WeightForm::kInt8);
      const size_t num_queries = 150;
      const int64_t first = static_cast<int64_t>(positions - num_queries);
      const std::vector<float> q =
          RandomFloats(num_queries * layer.q_size(), 31);
      std::vector<float> expected(num_queries * layer.out_size());
      ThreadPool one(1);
      for (size_t i = 0; i < num_queries; ++i) {
        Absorbed(layer.Args(q.data(), expected.data()),
                 layer.Span(first + static_cast<int64_t>(i), 1, i), one);
      }
      for (int threads = 1; threads <= 3;
           threads += ringfleet::testing::kSanitized ? 2 : 1) {
        ThreadPool pool(threads);
        MlaWorkspace workspace;
        std::vector<float> out(expected.size(), NAN);
        const MlaSpan spans[] = {
            layer.Span(first, 1, 0), layer.Span(first + 1, 130, 1),
            layer.Span(first + 131, 2, 131),
            layer.Span(first + 133, num_queries - 133, 133)};
        MlaAbsorbed(layer.Args(q.data(), out.data()), spans, workspace, pool);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(),
                              out.size() * sizeof(float)),
                  0)
            << DtypeName(dtype) << ", " << threads << " threads";
      }
    }
  });
}

// Rows of other spans lie between those of the absorbed ones.
TEST(MlaTest, AbsorbedLeavesOtherRowsAlone) {
  const Sizes sizes;
  const Layer layer(sizes, 20, Dtype::kBf16);
  const std::vector<float> q = RandomFloats(9 * layer.q_size(), 35);
  std::vector<float> out(9 * layer.out_size(), -7);
  ThreadPool pool(2);
  MlaWorkspace workspace;
  const MlaSpan spans[] = {layer.Span(3, 2, 1), layer.Span(10, 1, 6)};
  MlaAbsorbed(layer.Args(q.data(), out.data()), spans, workspace, pool);
  std::vector<float> expected(9 * layer.out_size(), -7);
  for (const MlaSpan& span : spans) {
    Absorbed(layer.Args(q.data(), expected.data()), span, pool);
  }
  EXPECT_EQ(out, expected);
  EXPECT_NE(out[layer.out_size()], -7);
  EXPECT_EQ(out[3 * layer.out_size()], -7);
}

TEST(MlaTest, MaterializedDependsNeitherOnThreadsNorOnOtherQueries) {
  const size_t positions = 260;
  ForEachIsa([&] {
    for (const Dtype dtype : kLatentDtypes) {
      const Layer layer({}, positions, dtype);
      const std::vector<float> q = RandomFloats(positions * layer.q_size(), 41);
      std::vector<float> expected(positions * layer.out_size());
      ThreadPool one(1);
      Materialized(layer.Args(q.data(), expected.data()),
                   layer.Span(0, positions), one);
      for (int threads = 1; threads <= 4; ++threads) {
        ThreadPool pool(threads);
        for (const size_t begin : {0, 1, 127, 128, 200, 259}) {
          std::vector<float> out(expected.size(), NAN);
          Materialized(
              layer.Args(q.data(), out.data()),
              layer.Span(static_cast<int64_t>(begin), positions - begin, begin),
              pool);
          for (size_t i = begin * layer.out_size(); i < out.size(); ++i) {
            ASSERT_EQ(out[i], expected[i]);
          }
        }
      }
    }
  });
}

// Scores of some hundreds: exp of them overflows unless the maximum is taken
// off, within a block and across blocks. The bound is that of |W_UV latent|.
TEST(MlaTest, LargeScoresStayFinite) {
  const Sizes sizes;
  ForEachIsa([&] {
    ThreadPool pool(1);
    const size_t positions = 400;
    for (const Dtype dtype : kLatentDtypes) {
      const Layer layer(sizes, positions, dtype);
      const std::vector<float> q = RandomFloats(layer.q_size(), 51, -500, 500);
      for (const Kernel kernel : {&Absorbed, &Materialized}) {
        std::vector<float> out(layer.out_size(), NAN);
        kernel(layer.Args(q.data(), out.data()), layer.Span(positions - 1, 1),
               pool);
        for (const float value : out) {
          ASSERT_LE(std::abs(value), 0.41 * static_cast<double>(sizes.rank));
        }
      }
    }
  });
}

TEST(MlaTest, NoHeadsAndNoQueriesDoNothing) {
  ThreadPool pool(2);
  const Layer no_heads({.heads = 0}, 3, Dtype::kF32);
  const Layer layer({}, 3, Dtype::kF32);
  for (const Kernel kernel : {&Absorbed, &Materialized}) {
    kernel(no_heads.Args(nullptr, nullptr), no_heads.Span(2, 1), pool);
    kernel(layer.Args(nullptr, nullptr), layer.Span(3, 0), pool);
  }
}

// With V3's sizes the border is Lq > 170.67 T / (T + 170.67) when every query
// sees all T positions; the causal mean moves it up slightly.
TEST(MlaTest, PrefersTheMaterializedFormFromThePublishedBorder) {
  MlaArgs args;
  args.format.kv_lora_rank = 512;
  args.format.rope_dim = 64;
  args.nope_dim = 128;
  args.v_dim = 128;
  const auto prefers = [&](int64_t total, int64_t queries) {
    return PreferMaterialized(args,
                              {.first_position = total - queries,
                               .num_queries = static_cast<size_t>(queries)});
  };
  EXPECT_FALSE(prefers(4096, 1));
  EXPECT_FALSE(prefers(4096, 8));
  EXPECT_FALSE(prefers(4096, 163));
  EXPECT_TRUE(prefers(4096, 175));
  EXPECT_TRUE(prefers(100000, 172));
  EXPECT_FALSE(prefers(100000, 170));
  EXPECT_TRUE(prefers(4096, 4096));
  EXPECT_TRUE(prefers(64, 64));
  // Expanding is never cheaper when it makes a row no smaller.
  args.nope_dim = 1024;
  EXPECT_FALSE(prefers(4096, 1000));
}

// What attending to some positions in one form or the other costs a head of
// V3's, in multiply-adds: products with W_UK and W_UV, then scores and sums.
struct Costs {
  double past = 0, chunk = 0;  // Positions.
  double weights = 512 * (128 + 128);

  double Scores(double positions, bool absorbed) const {
    return chunk * positions * (absorbed ? 2 * 512 + 64 : 128 + 64 + 128);
  }
  double Own() const { return (chunk + 1) / 2; }  // Visible on the average.
  double Absorbed() const {
    return chunk * weights + Scores(past + Own(), true);
  }
  double Materialized() const {
    return (past + chunk) * weights + Scores(past + Own(), false);
  }
  // The past in one form, the chunk itself in the other.
  double AbsorbedPast() const {
    return 2 * chunk * weights + Scores(past, true) + Scores(Own(), false);
  }
  double AbsorbedChunk() const {
    return (chunk + past) * weights + Scores(past, false) + Scores(Own(), true);
  }
};

// A chunk of a prompt is attended to in one form, its past and itself alike:
// no mixture needs fewer operations than the better of the two.
TEST(MlaTest, NoMixtureOfFormsNeedsFewerOperations) {
  MlaArgs args;
  args.format.kv_lora_rank = 512;
  args.format.rope_dim = 64;
  args.nope_dim = 128;
  args.v_dim = 128;
  for (int64_t chunk = 1; chunk <= 8192; chunk += 1 + chunk / 16) {
    for (int64_t past = 0; past <= 200000; past += 1 + past / 16) {
      const Costs costs = {.past = static_cast<double>(past),
                           .chunk = static_cast<double>(chunk)};
      const double best = std::min(costs.Absorbed(), costs.Materialized());
      ASSERT_LE(best, costs.AbsorbedPast()) << past << " " << chunk;
      ASSERT_LE(best, costs.AbsorbedChunk()) << past << " " << chunk;
      ASSERT_EQ(
          PreferMaterialized(args, {.first_position = past,
                                    .num_queries = static_cast<size_t>(chunk)}),
          costs.Materialized() < costs.Absorbed())
          << past << " " << chunk;
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
