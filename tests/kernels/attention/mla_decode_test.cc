// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/mla_decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention/mla_workspace.h"
#include "kernels/dtype.h"
#include "tests/kernels/attention/latent_sequence.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr float kScale = 0.2f;
// Half the spacing of bfloat16's 8 significant bits.
constexpr double kBf16Unit = 0x1p-8;

bool ComputesInBf16(Dtype cache) {
  return cache != Dtype::kF32 && CurrentIsa() >= Isa::kAvx512Bf16;
}

// Sequences and queries of one call.
class Call {
 public:
  Call(const LatentRowFormat& format, size_t heads)
      : format_(format), heads_(heads) {}

  // The last `num_queries` of `positions` cached ones.
  void AddSequence(size_t positions, size_t num_queries, uint32_t seed,
                   float q_bound = 1) {
    AddSequence(RandomFloats(positions * format_.numbers(), seed), num_queries,
                seed, q_bound);
  }
  // The same of given rows.
  void AddSequence(const std::vector<float>& cached, size_t num_queries,
                   uint32_t seed, float q_bound = 1) {
    const size_t numbers = format_.numbers();
    const size_t positions = cached.size() / numbers;
    sequences_.emplace_back(format_, cached);
    spans_.push_back(sequences_.back().Span(
        static_cast<int64_t>(positions - num_queries), num_queries, rows()));
    const std::vector<float> q = RandomFloats(num_queries * heads_ * numbers,
                                              seed + 1, -q_bound, q_bound);
    q_.insert(q_.end(), q.begin(), q.end());
  }

  size_t rows() const { return q_.size() / (heads_ * format_.numbers()); }
  size_t row_size() const { return heads_ * format_.kv_lora_rank; }

  // [rows, heads, kv_lora_rank] of the given spans.
  std::vector<float> Run(std::vector<MlaSpan> spans, int threads = 2) const {
    ThreadPool pool(threads);
    MlaWorkspace workspace;
    std::vector<float> out(rows() * row_size(), NAN);
    MlaDecode({.format = format_,
               .spans = spans,
               .heads = heads_,
               .softmax_scale = kScale,
               .q = q_.data(),
               .out = out.data()},
              workspace, pool);
    return out;
  }
  std::vector<float> Run(int threads = 2) const { return Run(spans_, threads); }

  // Compares with plain attention in double. Queries, and rows of an int8
  // cache, are rounded to bfloat16 as the kernel does: of what it rounds, only
  // the weights are left, each by kBf16Unit at most. The float32 part:
  // a score's products and sums, scaled, and those over positions.
  void ExpectPlainAttention(const std::vector<float>& out) const {
    const bool bf16 = ComputesInBf16(format_.dtype);
    const size_t numbers = format_.numbers();
    const auto rounded = [bf16](float x) {
      return static_cast<double>(bf16 ? RoundToBf16(x) : x);
    };
    for (size_t s = 0; s < spans_.size(); ++s) {
      const MlaSpan& span = spans_[s];
      const std::vector<float>& cached = sequences_[s].rows();
      for (size_t i = 0; i < span.num_queries * heads_; ++i) {
        const size_t row = span.first_row * heads_ + i;
        const size_t visible =
            static_cast<size_t>(span.first_position) + i / heads_ + 1;
        std::vector<double> scores(visible);
        double magnitude = 0;
        for (size_t t = 0; t < visible; ++t) {
          double absolute = 0;
          for (size_t c = 0; c < numbers; ++c) {
            const double product = rounded(q_[row * numbers + c]) *
                                   rounded(cached[t * numbers + c]);
            scores[t] += double{kScale} * product;
            absolute += double{kScale} * std::abs(product);
          }
          magnitude = std::max(magnitude, absolute);
        }
        const double max = *std::max_element(scores.begin(), scores.end());
        const double n = static_cast<double>(numbers + visible);
        const double float_error = 2 * (magnitude + 1) * Gamma(n + 20);
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - max);
        for (size_t c = 0; c < format_.kv_lora_rank; ++c) {
          double expected = 0;
          double absolute = 0;
          for (size_t t = 0; t < visible; ++t) {
            const double value =
                scores[t] / sum * rounded(cached[t * numbers + c]);
            expected += value;
            absolute += std::abs(value);
          }
          ASSERT_NEAR(out[row * format_.kv_lora_rank + c], expected,
                      absolute * (float_error + (bf16 ? kBf16Unit : 0)))
              << "sequence " << s << " query " << i / heads_ << " head "
              << i % heads_ << " column " << c;
        }
      }
    }
  }

  const std::vector<MlaSpan>& spans() const { return spans_; }

 private:
  const LatentRowFormat format_;
  const size_t heads_;
  std::deque<LatentSequence> sequences_;
  std::vector<MlaSpan> spans_;
  std::vector<float> q_;
};

constexpr Dtype kCacheDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kInt8};

// Every number of rows that a tile has, and of vectors: 1 to 6 and beyond.
TEST(MlaDecodeTest, MatchesPlainAttentionForEveryNumberOfHeads) {
  ForEachIsa([] {
    for (const Dtype dtype : kCacheDtypes) {
      for (const size_t heads : {1, 2, 3, 5, 16, 17, 33, 48, 64, 65, 128}) {
        SCOPED_TRACE(::testing::Message()
                     << DtypeName(dtype) << " heads " << heads);
        Call call({.dtype = dtype, .kv_lora_rank = 16, .rope_dim = 4}, heads);
        call.AddSequence(45, 1, 10);
        call.AddSequence(130, 2, 20);
        call.ExpectPlainAttention(call.Run());
      }
    }
  });
}

// Ranks with tails, an odd number of numbers in a row, no rope part.
TEST(MlaDecodeTest, MatchesPlainAttentionForEveryRank) {
  ForEachIsa([] {
    for (const Dtype dtype : kCacheDtypes) {
      for (const auto& [rank, rope] :
           std::vector<std::pair<size_t, size_t>>{{8, 2},
                                                  {1, 0},
                                                  {7, 4},
                                                  {40, 6},
                                                  {63, 1},
                                                  {65, 3},
                                                  {80, 0},
                                                  {512, 64}}) {
        SCOPED_TRACE(::testing::Message()
                     << DtypeName(dtype) << " rank " << rank << " + " << rope);
        Call call({.dtype = dtype, .kv_lora_rank = rank, .rope_dim = rope}, 3);
        call.AddSequence(131, 1, 30);
        call.AddSequence(7, 3, 40);
        call.ExpectPlainAttention(call.Run());
      }
    }
  });
}

TEST(MlaDecodeTest, MatchesPlainAttentionAtBordersOfBlocksAndParts) {
  ForEachIsa([] {
    for (const Dtype dtype : kCacheDtypes) {
      Call call({.dtype = dtype, .kv_lora_rank = 24, .rope_dim = 8}, 5);
      for (const size_t positions : {1, 2, 3, 6, 7, 12, 127, 128, 129, 255, 257,
                                     1023, 1024, 1025, 1100, 2049}) {
        call.AddSequence(positions, 1, static_cast<uint32_t>(positions));
      }
      // Queries on both sides of a border.
      call.AddSequence(131, 8, 7001);
      call.AddSequence(1027, 6, 7002);
      SCOPED_TRACE(DtypeName(dtype));
      call.ExpectPlainAttention(call.Run());
    }
  });
}

// 33 * 1024 positions are more than the parts of the least length hold.
TEST(MlaDecodeTest, PartsOfVeryLongContextsGrow) {
  Call call({.dtype = Dtype::kBf16, .kv_lora_rank = 8, .rope_dim = 2}, 2);
  call.AddSequence(33 * 1024 + 5, 1, 50);
  call.AddSequence(32 * 1024, 1, 51);
  call.ExpectPlainAttention(call.Run());
}

// Scores of some hundreds: the softmax is a choice of one position, found
// wherever it lies, and nothing overflows.
TEST(MlaDecodeTest, ExtremeScoresStayFinite) {
  ForEachIsa([] {
    for (const Dtype dtype : kCacheDtypes) {
      SCOPED_TRACE(DtypeName(dtype));
      Call call({.dtype = dtype, .kv_lora_rank = 24, .rope_dim = 8}, 7);
      call.AddSequence(1100, 1, 60, /*q_bound=*/1000);
      const std::vector<float> out = call.Run();
      for (const float value : out) {
        ASSERT_TRUE(std::isfinite(value));
        ASSERT_LE(std::abs(value), 1.01f);
      }
    }
  });
}

// A query that points at one cached position gets its latent: keys and values
// of every position are read from where they lie, and those behind the query
// are not.
TEST(MlaDecodeTest, FindsEveryPosition) {
  const size_t positions = 1100;
  const size_t heads = 64;
  ForEachIsa([&] {
    for (const Dtype dtype : kCacheDtypes) {
      const LatentRowFormat format = {
          .dtype = dtype, .kv_lora_rank = 96, .rope_dim = 32};
      // Signs: a row's product with itself is 128, with others 11 on average.
      std::vector<float> rows = RandomFloats(positions * 128, 70);
      for (float& value : rows) value = value < 0 ? -1.0f : 1.0f;
      const LatentSequence sequence(format, rows);
      ThreadPool pool(2);
      MlaWorkspace workspace;
      for (size_t first = 0; first + heads <= positions; first += heads) {
        const size_t last = first + heads - 1;
        const MlaSpan spans[] = {
            sequence.Span(static_cast<int64_t>(last), 1, 0),
            // Sees none of the positions that its heads point at.
            sequence.Span(static_cast<int64_t>(first) - 1, first > 0, 1)};
        std::vector<float> q(rows.begin() + first * 128,
                             rows.begin() + (first + heads) * 128);
        q.insert(q.end(), q.begin(), q.begin() + heads * 128);
        std::vector<float> out(2 * heads * 96);
        MlaDecode({.format = format,
                   .spans = spans,
                   .heads = heads,
                   .softmax_scale = 1,
                   .q = q.data(),
                   .out = out.data()},
                  workspace, pool);
        for (size_t h = 0; h < heads; ++h) {
          double match = 0;
          for (size_t c = 0; c < 96; ++c) {
            // The others have weights below exp(-50), int8 codes 1 / 127 off.
            ASSERT_NEAR(out[h * 96 + c], rows[(first + h) * 128 + c], 0x1p-8)
                << "position " << first + h;
            match += out[(heads + h) * 96 + c] * rows[(first + h) * 128 + c];
          }
          if (first > 0) {
            ASSERT_LT(match, 90) << "position " << first + h << " was seen";
          }
        }
      }
    }
  });
}

// The bits of a query depend neither on the queries beside it nor on their
// order, the threads, or what is cached behind it.
TEST(MlaDecodeTest, IsRowInvariant) {
  ForEachIsa([] {
    for (const Dtype dtype : kCacheDtypes) {
      for (const size_t heads : {5, 128}) {
        SCOPED_TRACE(::testing::Message()
                     << DtypeName(dtype) << " heads " << heads);
        Call call({.dtype = dtype, .kv_lora_rank = 40, .rope_dim = 6}, heads);
        call.AddSequence(40, 1, 80);
        call.AddSequence(1500, 3, 81);
        call.AddSequence(129, 1, 82);
        call.AddSequence(3000, 1, 83);
        call.AddSequence(300, 8, 84);
        std::vector<float> alone(call.rows() * call.row_size());
        for (const MlaSpan& span : call.spans()) {
          for (size_t i = 0; i < span.num_queries; ++i) {
            MlaSpan one = span;
            one.first_position += static_cast<int64_t>(i);
            one.num_queries = 1;
            one.first_row += i;
            const std::vector<float> out = call.Run({one}, /*threads=*/1);
            std::copy_n(&out[one.first_row * call.row_size()], call.row_size(),
                        &alone[one.first_row * call.row_size()]);
          }
        }
        std::vector<MlaSpan> spans = call.spans();
        for (const int threads : {1, 2, 3, 7}) {
          const std::vector<float> out = call.Run(spans, threads);
          ASSERT_EQ(
              std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)),
              0)
              << threads << " threads";
          std::rotate(spans.begin(), spans.begin() + 1, spans.end());
        }
      }
    }
  });
}

// A sequence without a number in it is attended to before others, in the same
// scratch.
TEST(MlaDecodeTest, WhatIsNotANumberStaysInItsSequence) {
  ForEachIsa([] {
    for (const Dtype dtype : kCacheDtypes) {
      for (const size_t heads : {5, 64}) {
        Call call({.dtype = dtype, .kv_lora_rank = 72, .rope_dim = 6}, heads);
        call.AddSequence(std::vector<float>(128 * 78, NAN), 1, 100);
        call.AddSequence(5, 1, 101);
        call.AddSequence(37, 1, 102);
        const std::vector<float> out = call.Run(/*threads=*/1);
        EXPECT_TRUE(std::isnan(out[0]));
        const std::vector<float> others =
            call.Run({call.spans()[1], call.spans()[2]}, /*threads=*/1);
        for (size_t i = call.row_size(); i < out.size(); ++i) {
          ASSERT_EQ(out[i], others[i])
              << DtypeName(dtype) << " " << heads << " heads";
        }
      }
    }
  });
}

// More partial results than are kept at a time: 40 queries of 9 parts with 128
// heads of rank 256 are 47 MB.
TEST(MlaDecodeTest, ManyLongQueriesTakeTurns) {
  Call call({.dtype = Dtype::kBf16, .kv_lora_rank = 256, .rope_dim = 0}, 128);
  call.AddSequence(8192 + 40, 40, 90);
  const std::vector<float> all = call.Run();
  MlaSpan last = call.spans()[0];
  last.first_position += 39;
  last.first_row += 39;
  last.num_queries = 1;
  const std::vector<float> alone = call.Run({last});
  for (size_t i = 39 * call.row_size(); i < all.size(); ++i) {
    ASSERT_EQ(all[i], alone[i]);
  }
}

TEST(MlaDecodeTest, NoQueriesAndNoHeadsDoNothing) {
  Call call({.dtype = Dtype::kBf16, .kv_lora_rank = 8, .rope_dim = 2}, 2);
  call.AddSequence(3, 0, 1);
  EXPECT_TRUE(call.Run().empty());
  EXPECT_TRUE(call.Run({}).empty());
  Call no_heads({.dtype = Dtype::kF32, .kv_lora_rank = 8, .rope_dim = 2}, 0);
  ThreadPool pool(1);
  MlaWorkspace workspace;
  MlaDecode({.format = {.dtype = Dtype::kF32}}, workspace, pool);
}

}  // namespace
}  // namespace ringfleet::kernels
