// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/aligned_buffer.h"
#include "kernels/dtype.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

struct Sizes {
  size_t heads = 5;
  size_t rank = 40;  // Two vectors of 16 and a tail.
  size_t rope = 6;
  size_t nope = 19;
  size_t v = 21;
};

// Random weights and a random cache of `positions` rows. What lies behind them
// in the last block is NaN: reading it would show.
class Layer {
 public:
  Layer(const Sizes& sizes, size_t positions, Dtype cache_dtype,
        WeightForm weight_form = WeightForm::kF32)
      : sizes_(sizes),
        dtype_(cache_dtype),
        kv_b_(weight_form, sizes.heads * (sizes.nope + sizes.v), sizes.rank),
        uk_transposed_(weight_form, sizes.heads * sizes.rank, sizes.nope),
        rows_(RandomFloats(positions * row_size(), 11)) {
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
    const size_t num_blocks =
        (positions + kCacheBlockPositions - 1) / kCacheBlockPositions;
    for (size_t b = 0; b < num_blocks; ++b) {
      const size_t size = kCacheBlockPositions * row_size();
      blocks_.emplace_back(size * DtypeBytes(dtype_));
      for (size_t i = 0; i < size; ++i) {
        const size_t index = b * size + i;
        const float value = index < rows_.size()
                                ? rows_[index]
                                : std::numeric_limits<float>::quiet_NaN();
        if (dtype_ == Dtype::kF32) {
          std::memcpy(blocks_[b].data() + 4 * i, &value, 4);
        } else {
          const uint16_t bits = FloatToBf16(value);
          std::memcpy(blocks_[b].data() + 2 * i, &bits, 2);
          if (index < rows_.size()) rows_[index] = Bf16ToFloat(bits);
        }
      }
      block_pointers_.push_back(blocks_[b].data());
    }
  }

  size_t row_size() const { return sizes_.rank + sizes_.rope; }
  size_t out_size() const { return sizes_.heads * sizes_.v; }
  size_t q_size() const { return sizes_.heads * (sizes_.nope + sizes_.rope); }

  MlaArgs Args(int64_t first_position, size_t num_queries, const float* q,
               float* out) const {
    return {.cache = {.dtype = dtype_,
                      .kv_lora_rank = sizes_.rank,
                      .rope_dim = sizes_.rope,
                      .blocks = block_pointers_},
            .heads = sizes_.heads,
            .nope_dim = sizes_.nope,
            .v_dim = sizes_.v,
            .softmax_scale = 0.2f,
            .first_position = first_position,
            .num_queries = num_queries,
            .q = q,
            .kv_b = &kv_b_,
            .uk_transposed = &uk_transposed_,
            .out = out};
  }

  // Plain attention in double, keys and values expanded one by one.
  std::vector<double> Expected(int64_t position, const float* q) const {
    std::vector<double> result(out_size());
    std::vector<float> weights(sizes_.rank);
    const size_t visible = static_cast<size_t>(position) + 1;
    for (size_t h = 0; h < sizes_.heads; ++h) {
      const float* query = q + h * (sizes_.nope + sizes_.rope);
      const auto expand = [&](size_t j, size_t t) {
        kv_b_.GetRow(h * (sizes_.nope + sizes_.v) + j, weights.data());
        double sum = 0;
        for (size_t c = 0; c < sizes_.rank; ++c) {
          sum += static_cast<double>(weights[c]) * rows_[t * row_size() + c];
        }
        return sum;
      };
      std::vector<double> p(visible);
      double total = 0;
      for (size_t t = 0; t < visible; ++t) {
        double score = 0;
        for (size_t j = 0; j < sizes_.nope; ++j) {
          score += query[j] * expand(j, t);
        }
        for (size_t j = 0; j < sizes_.rope; ++j) {
          score += static_cast<double>(query[sizes_.nope + j]) *
                   rows_[t * row_size() + sizes_.rank + j];
        }
        p[t] = std::exp(static_cast<double>(0.2f) * score);
        total += p[t];
      }
      for (size_t j = 0; j < sizes_.v; ++j) {
        double sum = 0;
        for (size_t t = 0; t < visible; ++t) {
          sum += p[t] * expand(sizes_.nope + j, t);
        }
        result[h * sizes_.v + j] = sum / total;
      }
    }
    return result;
  }

  // Largest |latent . W_UV| of any head and position: the scale of errors.
  double ValueBound() const { return 0.4 * static_cast<double>(sizes_.rank); }

 private:
  const Sizes sizes_;
  const Dtype dtype_;
  WeightMatrix kv_b_;
  WeightMatrix uk_transposed_;
  std::vector<float> rows_;  // [positions, rank + rope], as cached
  std::vector<AlignedBuffer> blocks_;
  std::vector<const char*> block_pointers_;
};

using Kernel = void (*)(const MlaArgs&, ThreadPool&);

// Errors in the scores: products of nope * rank terms below 0.4 each plus rope
// terms, scaled by 0.2, with gamma(nope + rank + 20); they enter the
// probabilities absolutely, twice (numerator and sum). Sums over positions are
// averages of values below rank * 0.4 and take at most 128 additions in a
// block, 3 a merge and rank / 16 + 6 in the products.
double Tolerance(const Sizes& sizes, const Layer& layer) {
  const double nope = static_cast<double>(sizes.nope);
  const double rank = static_cast<double>(sizes.rank);
  const double score =
      0.2 * (0.4 * nope * rank + static_cast<double>(sizes.rope));
  return layer.ValueBound() *
         (2 * score * Gamma(nope + rank + 20) + 2 * Gamma(128 + 30 + rank));
}

TEST(MlaTest, BothFormsMatchPlainAttentionAtBlockBorders) {
  const Sizes sizes;
  ThreadPool pool(2);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const size_t positions : {1, 2, 127, 128, 129, 257}) {
      const Layer layer(sizes, positions, dtype);
      const size_t num_queries = std::min<size_t>(positions, 4);
      const int64_t first = static_cast<int64_t>(positions - num_queries);
      const std::vector<float> q = RandomFloats(num_queries * layer.q_size(),
                                                static_cast<int>(positions));
      for (const Kernel kernel : {&MlaAbsorbed, &MlaMaterialized}) {
        std::vector<float> out(num_queries * layer.out_size(), NAN);
        kernel(layer.Args(first, num_queries, q.data(), out.data()), pool);
        for (size_t i = 0; i < num_queries; ++i) {
          const std::vector<double> expected = layer.Expected(
              first + static_cast<int64_t>(i), &q[i * layer.q_size()]);
          for (size_t j = 0; j < expected.size(); ++j) {
            ASSERT_NEAR(out[i * layer.out_size() + j], expected[j],
                        Tolerance(sizes, layer))
                << positions << " positions, query " << i;
          }
        }
      }
    }
  }
}

// Relative to the norm of a query's result: 1e-5 is 170 u, about what the 128
// additions of a block and the products' tails allow.
TEST(MlaTest, TheFormsAgreeInFloat32) {
  const Sizes sizes = {
      .heads = 4, .rank = 512, .rope = 64, .nope = 128, .v = 128};
  ThreadPool pool(2);
  const size_t positions = 300;
  const Layer layer(sizes, positions, Dtype::kF32);
  for (const size_t num_queries : {1, 7, 40}) {
    const int64_t first = static_cast<int64_t>(positions - num_queries);
    const std::vector<float> q = RandomFloats(num_queries * layer.q_size(), 21);
    std::vector<float> absorbed(num_queries * layer.out_size());
    std::vector<float> materialized(num_queries * layer.out_size());
    MlaAbsorbed(layer.Args(first, num_queries, q.data(), absorbed.data()),
                pool);
    MlaMaterialized(
        layer.Args(first, num_queries, q.data(), materialized.data()), pool);
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < absorbed.size(); ++i) {
      difference += std::pow(double{absorbed[i]} - materialized[i], 2.0);
      norm += std::pow(materialized[i], 2.0);
    }
    EXPECT_LT(std::sqrt(difference / norm), 1e-5) << num_queries;
  }
}

// The bits of a query do not depend on the queries beside it, the threads, or
// what is cached behind it.
TEST(MlaTest, AbsorbedIsRowInvariant) {
  const Sizes sizes;
  const size_t positions = 300;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const Layer layer(sizes, positions, dtype, WeightForm::kBf16);
    const size_t num_queries = 290;  // More rows than one pass holds.
    const int64_t first = static_cast<int64_t>(positions - num_queries);
    const std::vector<float> q = RandomFloats(num_queries * layer.q_size(), 31);
    std::vector<float> expected(num_queries * layer.out_size());
    ThreadPool one(1);
    for (size_t i = 0; i < num_queries; ++i) {
      MlaAbsorbed(
          layer.Args(first + static_cast<int64_t>(i), 1, &q[i * layer.q_size()],
                     &expected[i * layer.out_size()]),
          one);
    }
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadPool pool(threads);
      for (const size_t begin : {size_t{0}, size_t{117}, num_queries - 7}) {
        const size_t count = num_queries - begin;
        std::vector<float> out(count * layer.out_size(), NAN);
        MlaAbsorbed(layer.Args(first + static_cast<int64_t>(begin), count,
                               &q[begin * layer.q_size()], out.data()),
                    pool);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out[i], expected[begin * layer.out_size() + i]);
        }
      }
    }
  }
}

TEST(MlaTest, MaterializedDependsNeitherOnThreadsNorOnOtherQueries) {
  const Sizes sizes;
  const size_t positions = 260;
  const Layer layer(sizes, positions, Dtype::kBf16);
  const std::vector<float> q = RandomFloats(positions * layer.q_size(), 41);
  std::vector<float> expected(positions * layer.out_size());
  ThreadPool one(1);
  MlaMaterialized(layer.Args(0, positions, q.data(), expected.data()), one);
  for (int threads = 2; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (const size_t begin : {0, 1, 127, 128, 200}) {
      const size_t count = positions - begin;
      std::vector<float> out(count * layer.out_size(), NAN);
      MlaMaterialized(layer.Args(static_cast<int64_t>(begin), count,
                                 &q[begin * layer.q_size()], out.data()),
                      pool);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i], expected[begin * layer.out_size() + i]);
      }
    }
  }
}

// Scores of some hundreds: exp of them overflows unless the maximum is taken
// off, within a block and across blocks.
TEST(MlaTest, LargeScoresStayFinite) {
  const Sizes sizes;
  ThreadPool pool(1);
  const size_t positions = 400;
  const Layer layer(sizes, positions, Dtype::kF32);
  std::vector<float> q = RandomFloats(layer.q_size(), 51, -500, 500);
  for (const Kernel kernel : {&MlaAbsorbed, &MlaMaterialized}) {
    std::vector<float> out(layer.out_size(), NAN);
    kernel(layer.Args(positions - 1, 1, q.data(), out.data()), pool);
    for (const float value : out) {
      EXPECT_LE(std::abs(value), layer.ValueBound());
    }
  }
}

TEST(MlaTest, NoHeadsAndNoQueriesDoNothing) {
  ThreadPool pool(2);
  const Layer no_heads({.heads = 0}, 3, Dtype::kF32);
  const Layer layer({}, 3, Dtype::kF32);
  for (const Kernel kernel : {&MlaAbsorbed, &MlaMaterialized}) {
    kernel(no_heads.Args(2, 1, nullptr, nullptr), pool);
    kernel(layer.Args(3, 0, nullptr, nullptr), pool);
  }
}

TEST(MlaTest, OneHeadWithoutRopeOrNope) {
  ThreadPool pool(3);
  for (const Sizes sizes :
       {Sizes{.heads = 1, .rope = 0}, Sizes{.heads = 1, .nope = 0}}) {
    const Layer layer(sizes, 150, Dtype::kF32);
    const std::vector<float> q = RandomFloats(layer.q_size(), 61);
    const std::vector<double> expected = layer.Expected(149, q.data());
    for (const Kernel kernel : {&MlaAbsorbed, &MlaMaterialized}) {
      std::vector<float> out(layer.out_size(), NAN);
      kernel(layer.Args(149, 1, q.data(), out.data()), pool);
      for (size_t j = 0; j < out.size(); ++j) {
        EXPECT_NEAR(out[j], expected[j], Tolerance(sizes, layer));
      }
    }
  }
}

// With V3's sizes the border is Lq > 170.67 T / (T + 170.67) when every query
// sees all T positions; the causal mean moves it up slightly.
TEST(MlaTest, PrefersTheMaterializedFormFromThePublishedBorder) {
  MlaArgs args;
  args.cache.kv_lora_rank = 512;
  args.cache.rope_dim = 64;
  args.nope_dim = 128;
  args.v_dim = 128;
  const auto prefers = [&](int64_t total, int64_t queries) {
    args.first_position = total - queries;
    args.num_queries = static_cast<size_t>(queries);
    return PreferMaterialized(args);
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

}  // namespace
}  // namespace ringfleet::kernels
