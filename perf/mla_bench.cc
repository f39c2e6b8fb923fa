// SPDX-License-Identifier: Apache-2.0
// Speed of latent attention at DeepSeek-V3's sizes: 128 heads (or a shard of
// them), kv_lora_rank 512, rope 64, nope and value 128. One call is one layer.
//
// FLOP/s counts multiplications and additions of both products over the visible
// positions: 2 heads (2 * 512 + 64) a position and query in the absorbed form,
// 2 heads (128 + 64 + 128) in the materialised one. `bytes_per_second` is what
// is read of the cache once.
//
// "CPU" is the time of both threads together: on a machine that other processes
// share, half of it is what "Time" would be without them. RINGFLEET_ISA (sse4,
// avx2, avx512, avx512_bf16 ...) forces an instruction set.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/aligned_buffer.h"
#include "kernels/attention/mla.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/mla_prefill.h"
#include "kernels/dtype.h"
#include "kernels/isa.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kRank = 512;
constexpr size_t kRope = 64;
constexpr size_t kNope = 128;
constexpr size_t kV = 128;
constexpr int kThreads = 2;

void ForceIsaFromEnvironment() {
  const char* name = std::getenv("RINGFLEET_ISA");
  if (name == nullptr) return;
  const auto isa = ParseIsa(name);
  if (!isa.ok()) {
    std::fprintf(stderr, "RINGFLEET_ISA: %s\n",
                 std::string(isa.status().message()).c_str());
    std::exit(2);
  }
  ForceIsa(*isa);
}

std::vector<float> Values(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 2654435761u >> 7) % 1999) / 1000 - 1;
  }
  return values;
}

// Sequences of one length, each with a cache of its own.
class Sequences {
 public:
  Sequences(const LatentRowFormat& format, size_t count, size_t positions,
            size_t num_queries) {
    const std::vector<float> values = Values(8191 + format.numbers());
    const size_t num_blocks =
        (positions + kCacheBlockPositions - 1) / kCacheBlockPositions;
    for (size_t s = 0; s < count; ++s) {
      std::vector<const char*>& blocks = pointers_.emplace_back();
      for (size_t b = 0; b < num_blocks; ++b) {
        blocks_.emplace_back(kCacheBlockPositions * format.bytes());
        blocks.push_back(blocks_.back().data());
        for (size_t t = 0; t < kCacheBlockPositions; ++t) {
          StoreLatentRow(format, &values[(s + b * 977 + t * 31) % 8191],
                         blocks_.back().data() + t * format.bytes());
        }
      }
    }
    for (size_t s = 0; s < count; ++s) {
      spans_.push_back(
          {.blocks = pointers_[s],
           .first_position = static_cast<int64_t>(positions - num_queries),
           .num_queries = num_queries,
           .first_row = s * num_queries});
    }
  }
  const std::vector<MlaSpan>& spans() const { return spans_; }

 private:
  std::vector<AlignedBuffer> blocks_;
  std::vector<std::vector<const char*>> pointers_;
  std::vector<MlaSpan> spans_;
};

// How many positions the last queries of a sequence see together.
double Seen(size_t positions, size_t num_queries) {
  return static_cast<double>(num_queries) *
         (static_cast<double>(positions) -
          static_cast<double>(num_queries - 1) / 2);
}

// Multiply-adds of an iteration.
void CountOperations(benchmark::State& state, double multiply_adds) {
  state.counters["FLOP/s"] = benchmark::Counter(
      2 * multiply_adds, benchmark::Counter::kIsIterationInvariantRate);
}

// Arguments: heads, sequences, positions, queries of each.
template <Dtype kDtype>
void Decode(benchmark::State& state) {
  ForceIsaFromEnvironment();
  const LatentRowFormat format = {kDtype, kRank, kRope};
  const size_t heads = static_cast<size_t>(state.range(0));
  const size_t count = static_cast<size_t>(state.range(1));
  const size_t positions = static_cast<size_t>(state.range(2));
  const size_t num_queries = static_cast<size_t>(state.range(3));
  const Sequences sequences(format, count, positions, num_queries);
  const size_t rows = count * num_queries;
  const std::vector<float> q = Values(rows * heads * (kRank + kRope));
  std::vector<float> out(rows * heads * kRank);
  ThreadPool pool(kThreads);
  MlaWorkspace workspace;
  for (auto _ : state) {
    MlaDecode({.format = format,
               .spans = sequences.spans(),
               .heads = heads,
               .softmax_scale = 0.1f,
               .q = q.data(),
               .out = out.data()},
              workspace, pool);
    benchmark::ClobberMemory();
  }
  CountOperations(state, static_cast<double>(count) *
                             Seen(positions, num_queries) *
                             static_cast<double>(heads * (2 * kRank + kRope)));
  state.SetBytesProcessed(
      static_cast<int64_t>(count * positions * format.bytes()) *
      static_cast<int64_t>(state.iterations()));
}

// A prompt's attention, without the product with kv_b: the same expanded part
// serves for all blocks and heads. Arguments: heads, positions, queries.
template <Dtype kDtype>
void Prefill(benchmark::State& state) {
  ForceIsaFromEnvironment();
  const LatentRowFormat format = {kDtype, kRank, kRope};
  const size_t heads = static_cast<size_t>(state.range(0));
  const size_t positions = static_cast<size_t>(state.range(1));
  const size_t num_queries = static_cast<size_t>(state.range(2));
  const Sequences sequences(format, 1, positions, num_queries);
  constexpr size_t kPartPositions = kExpandedBlocks * kCacheBlockPositions;
  const size_t part_heads = (heads + kExpandedBlocks - 1) / kExpandedBlocks;
  const std::vector<float> latents = Values(kPartPositions * format.numbers());
  const std::vector<float> expanded =
      Values(kPartPositions * part_heads * (kNope + kV));
  const std::vector<float> q = Values(num_queries * heads * (kNope + kRope));
  std::vector<float> out(num_queries * heads * kV);
  ThreadPool pool(kThreads);
  MlaWorkspace workspace;
  const MlaArgs args = {.format = format,
                        .heads = heads,
                        .nope_dim = kNope,
                        .v_dim = kV,
                        .softmax_scale = 0.1f,
                        .q = q.data(),
                        .out = out.data()};
  for (auto _ : state) {
    for (size_t first = 0; first < positions; first += kPartPositions) {
      for (size_t head = 0; head < heads; head += part_heads) {
        MlaAttendExpanded(
            {.args = &args,
             .span = &sequences.spans()[0],
             .first_block = first / kCacheBlockPositions,
             .positions = std::min(positions - first, kPartPositions),
             .first_head = head,
             .heads = std::min(part_heads, heads - head),
             .latents = latents.data(),
             .expanded = expanded.data()},
            workspace, pool);
      }
    }
    benchmark::ClobberMemory();
  }
  CountOperations(state, Seen(positions, num_queries) *
                             static_cast<double>(heads * (kNope + kRope + kV)));
}

WeightMatrix Int8Weights(size_t rows, size_t columns) {
  WeightMatrix weights =
      *WeightMatrix::Create(WeightForm::kInt8, rows, columns);
  const std::vector<float> values = Values(8191 + columns);
  for (size_t row = 0; row < rows; ++row) {
    weights.SetRow(row, &values[row * 31 % 8191]);
  }
  return weights;
}

// Attention of some queries of one sequence in both forms, between which
// PreferMaterialized chooses: products with W_UK and W_UV included in the time,
// but not in FLOP/s. Arguments: positions, queries, whether keys and values are
// expanded.
void Chunk(benchmark::State& state) {
  ForceIsaFromEnvironment();
  constexpr size_t kHeads = 128;
  const LatentRowFormat format = {Dtype::kBf16, kRank, kRope};
  const size_t positions = static_cast<size_t>(state.range(0));
  const size_t num_queries = static_cast<size_t>(state.range(1));
  static const WeightMatrix kv_b = Int8Weights(kHeads * (kNope + kV), kRank);
  static const WeightMatrix uk_transposed = Int8Weights(kHeads * kRank, kNope);
  const Sequences sequences(format, 1, positions, num_queries);
  const std::vector<float> q = Values(num_queries * kHeads * (kNope + kRope));
  std::vector<float> out(num_queries * kHeads * kV);
  ThreadPool pool(kThreads);
  MlaWorkspace workspace;
  const MlaArgs args = {.format = format,
                        .heads = kHeads,
                        .nope_dim = kNope,
                        .v_dim = kV,
                        .softmax_scale = 0.1f,
                        .q = q.data(),
                        .kv_b = &kv_b,
                        .uk_transposed = &uk_transposed,
                        .out = out.data()};
  const MlaSpan& span = sequences.spans()[0];
  for (auto _ : state) {
    if (state.range(2) != 0) {
      MlaMaterialized(args, span, workspace, pool);
    } else {
      MlaAbsorbed(args, {&span, 1}, workspace, pool);
    }
    benchmark::ClobberMemory();
  }
  const size_t numbers =
      state.range(2) != 0 ? kNope + kRope + kV : 2 * kRank + kRope;
  CountOperations(state, Seen(positions, num_queries) *
                             static_cast<double>(kHeads * numbers));
}

// Time on the wall, and of both threads together.
void Settings(benchmark::internal::Benchmark* benchmark) {
  benchmark->Unit(benchmark::kMillisecond)
      ->MeasureProcessCPUTime()
      ->UseRealTime();
}

BENCHMARK(Decode<Dtype::kBf16>)
    ->Args({128, 1, 8192, 1})
    ->Args({128, 1, 2048, 1})
    ->Args({128, 1, 512, 1})
    ->Args({128, 32, 40, 1})
    ->Args({128, 8, 2048, 1})
    ->Args({128, 1, 8192, 4})
    ->Args({16, 1, 8192, 1})
    ->Args({16, 8, 8192, 1})
    ->Apply(Settings);
BENCHMARK(Decode<Dtype::kInt8>)
    ->Args({128, 1, 8192, 1})
    ->Args({16, 8, 8192, 1})
    ->Apply(Settings);
BENCHMARK(Decode<Dtype::kF32>)->Args({128, 1, 8192, 1})->Apply(Settings);
BENCHMARK(Prefill<Dtype::kBf16>)->Args({128, 512, 512})->Apply(Settings);
BENCHMARK(Prefill<Dtype::kF32>)->Args({128, 512, 512})->Apply(Settings);
BENCHMARK(Chunk)
    ->ArgsProduct({{2048, 8192}, {32, 64, 128, 256, 512}, {0, 1}})
    ->ArgNames({"positions", "queries", "expanded"})
    ->Apply(Settings);

}  // namespace
}  // namespace ringfleet::kernels
