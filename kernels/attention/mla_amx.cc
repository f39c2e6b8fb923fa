// SPDX-License-Identifier: Apache-2.0
// The operations of mla_block.h with AMX, whose products of tiles take pairs in
// the order that packed queries and values have: [16 rows, 16 pairs] times
// [16 pairs, 16 columns]. Rows and pairs beyond the last pass through memory
// that is padded with zeros.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/base.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/attention/mla_bf16_block.h"
#include "kernels/attention/mla_block.h"
#include "kernels/products/amx_tiles.h"

#if defined(__x86_64__)

#ifndef __clang__
// GCC 12 finds its own intrinsics' undefined vectors uninitialised.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16,fma")
namespace ringfleet::kernels {
namespace {

constexpr size_t kTilePairs = kTileRowBytes / kPairBytes;
constexpr size_t kTileColumns = 16;
constexpr size_t kMaxGroups = kMaxLanes / kTileColumns;
constexpr size_t kTileBytes = kTileRows * kTileRowBytes;

// Registers: the sums of all lanes, a factor that they share, and factors of
// their own in turns.
constexpr int kShared = 4, kOwn = 5;
static_assert(kMaxGroups == 4);

void ConfigureAll() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.Set(tile, kTileRows, kTileRowBytes);
  }
  config.Load();
}

// One tile of a factor, padded with zeros.
struct PaddedTile {
  alignas(64) char bytes[kTileBytes];

  void Fill(const char* from, size_t stride, size_t rows, size_t row_bytes) {
    std::memset(bytes, 0, sizeof(bytes));
    for (size_t i = 0; i < rows; ++i) {
      std::memcpy(bytes + i * kTileRowBytes, from + i * stride, row_bytes);
    }
  }
};

// Calls body.operator()<i>() for i < kCount.
template <size_t kCount, typename Body>
inline void ForEach(const Body& body) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (body.template operator()<kIndex>(), ...);
  }
  (std::make_index_sequence<kCount>());
}

// scores [positions, padded lanes] = keys . queries, for lanes in kGroups
// groups of 16.
template <size_t kGroups>
class Scores {
 public:
  explicit Scores(const MlaBlock& block) : block_(block) {
    const size_t odd = pairs_ % kTilePairs;
    if (odd == 0) return;
    for (size_t group = 0; group < kGroups; ++group) {
      last_queries_[group].Fill(
          queries_ + (pairs_ - odd) * kStride + group * kTileRowBytes, kStride,
          odd, kTileRowBytes);
    }
  }

  void Multiply(MlaPrefetcher& prefetcher) const {
    for (size_t row = 0; row < block_.positions; row += kTileRows) {
      prefetcher.Tile();
      MultiplyRows(row);
    }
  }

 private:
  // Bytes of a step of packed queries, and of a row of scores.
  static constexpr size_t kStride = kGroups * kTileRowBytes;

  void MultiplyRows(size_t row) const {
    const size_t rows = std::min(block_.positions - row, kTileRows);
    const char* keys =
        static_cast<const char*>(block_.keys) + row * block_.key_stride_bytes;
    const char* queries = queries_;
    ForEach<kGroups>([]<size_t kGroup>() { ZeroTile<kGroup>(); });
    PaddedTile padded;
    for (size_t pair = 0; pair < pairs_; pair += kTilePairs) {
      const size_t pairs = std::min(pairs_ - pair, kTilePairs);
      if (rows == kTileRows && pairs == kTilePairs) {
        LoadTile<kShared>(keys, block_.key_stride_bytes);
      } else {
        padded.Fill(keys, block_.key_stride_bytes, rows, pairs * kPairBytes);
        LoadTile<kShared>(padded.bytes, kTileRowBytes);
      }
      ForEach<kGroups>([&]<size_t kGroup>() {
        constexpr int kQueries = kOwn + kGroup % 2;
        if (pairs == kTilePairs) {
          LoadTile<kQueries>(queries + kGroup * kTileRowBytes, kStride);
        } else {
          LoadTile<kQueries>(last_queries_[kGroup].bytes, kTileRowBytes);
        }
        AddBf16Product<kGroup, kShared, kQueries>();
      });
      keys += kTileRowBytes;
      queries += kTilePairs * kStride;
    }
    // Scratch has room for whole tiles.
    float* scores = block_.scores + row * kGroups * kTileColumns;
    ForEach<kGroups>([&]<size_t kGroup>() {
      StoreTile<kGroup>(scores + kGroup * kTileColumns, kStride);
    });
  }

  const MlaBlock& block_;
  const char* const queries_ = static_cast<const char*>(block_.queries);
  const size_t pairs_ = (block_.key_dim + 1) / 2;
  PaddedTile last_queries_[kGroups];
};

// out [lanes, value_dim] = out * old_factor + probabilities . values, times
// new_factor in the end.
template <size_t kGroups>
class WeightedValues {
 public:
  // `probabilities` of TransposeProbabilitiesBf16.
  WeightedValues(const MlaBlock& block, const char* probabilities,
                 const float* old_factor, const float* new_factor)
      : block_(block),
        probabilities_(probabilities),
        old_factor_(old_factor),
        new_factor_(new_factor) {}

  // A panel of values after the other; its sums are added while the next are
  // multiplied.
  void Multiply(MlaPrefetcher& prefetcher) {
    for (size_t tile = 0; tile < kPanelTiles; ++tile) MultiplyColumns(0, tile);
    for (size_t panel = 0; panel < panels_; ++panel) {
      for (size_t tile = 0; tile < kPanelTiles; ++tile) {
        prefetcher.Tile();
        if (panel + 1 < panels_) MultiplyColumns(panel + 1, tile);
        Add(panel, tile * block_.lanes / kPanelTiles,
            (tile + 1) * block_.lanes / kPanelTiles);
      }
    }
  }

 private:
  static constexpr size_t kPanelTiles = kMaxLanes / kTileColumns;
  static constexpr size_t kProbabilityRowBytes =
      kCacheBlockPositions / 2 * kPairBytes;
  static constexpr size_t kValueRowBytes = kMaxLanes * kPairBytes;
  // Rows of results lie far apart, where the processor foresees nothing.
  static constexpr size_t kRowsAhead = 8;

  // 16 columns of a panel, if it has them.
  void MultiplyColumns(size_t panel, size_t tile) {
    if (panel * kMaxLanes + tile * kTileColumns >= block_.value_dim) return;
    const size_t pairs = (block_.positions + 1) / 2;
    const size_t packed_pairs = (block_.packed_positions + 1) / 2;
    const char* values = static_cast<const char*>(block_.values) +
                         panel * packed_pairs * kValueRowBytes +
                         tile * kTileRowBytes;
    const char* probabilities = probabilities_;
    ForEach<kGroups>([]<size_t kGroup>() { ZeroTile<kGroup>(); });
    for (size_t pair = 0; pair < pairs; pair += kTilePairs) {
      if (pairs - pair >= kTilePairs) {
        LoadTile<kShared>(values, kValueRowBytes);
      } else {
        padded_.Fill(values, kValueRowBytes, pairs - pair, kTileRowBytes);
        LoadTile<kShared>(padded_.bytes, kTileRowBytes);
      }
      ForEach<kGroups>([&]<size_t kGroup>() {
        constexpr int kProbabilities = kOwn + kGroup % 2;
        LoadTile<kProbabilities>(
            probabilities + kGroup * kTileRows * kProbabilityRowBytes,
            kProbabilityRowBytes);
        AddBf16Product<kGroup, kProbabilities, kShared>();
      });
      values += kTilePairs * kValueRowBytes;
      probabilities += kTileRowBytes;
    }
    float* sums = sums_[panel % 2][0] + tile * kTileColumns;
    ForEach<kGroups>([&]<size_t kGroup>() {
      StoreTile<kGroup>(sums + kGroup * kTileRows * kMaxLanes,
                        kMaxLanes * sizeof(float));
    });
  }

  // Lanes [begin, end) of a panel.
  void Add(size_t panel, size_t begin, size_t end) {
    const size_t columns =
        std::min(block_.value_dim - panel * kMaxLanes, kMaxLanes);
    float* out = block_.out + begin * block_.out_stride + panel * kMaxLanes;
    for (size_t lane = begin; lane < end; ++lane, out += block_.out_stride) {
      const float* sums = sums_[panel % 2][lane];
      const __m512 old_factor = _mm512_set1_ps(old_factor_[lane]);
      const __m512 new_factor = _mm512_set1_ps(new_factor_[lane]);
      for (size_t i = 0; i < columns; i += kTileColumns) {
        const auto mask = static_cast<__mmask16>(
            columns - i >= kTileColumns ? 0xffff : (1u << (columns - i)) - 1);
        if (lane + kRowsAhead < block_.lanes) {
          _mm_prefetch(out + kRowsAhead * block_.out_stride + i, _MM_HINT_T0);
        }
        __m512 sum = _mm512_load_ps(sums + i);
        if (!block_.first) {
          sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, out + i),
                                old_factor, sum);
        }
        if (block_.last) sum = _mm512_mul_ps(sum, new_factor);
        _mm512_mask_storeu_ps(out + i, mask, sum);
      }
    }
  }

  const MlaBlock& block_;
  const char* const probabilities_;
  const float* const old_factor_;
  const float* const new_factor_;
  const size_t panels_ = (block_.value_dim + kMaxLanes - 1) / kMaxLanes;
  PaddedTile padded_;
  alignas(64) float sums_[2][kGroups * kTileRows][kMaxLanes];
};

template <size_t kGroups>
void AttendLanes(const MlaBlock& block) {
  const size_t tiles =
      (block.positions + block.value_dim) / kTileRows + 2 * kMaxGroups;
  MlaPrefetcher prefetcher(block, tiles);
  ConfigureAll();
  Scores<kGroups>(block).Multiply(prefetcher);
  float old_factor[kMaxLanes];
  float new_factor[kMaxLanes];
  SoftmaxBf16(block, old_factor, new_factor);
  alignas(
      64) char probabilities[kMaxLanes * kCacheBlockPositions / 2 * kPairBytes];
  TransposeProbabilitiesBf16(block, probabilities);
  WeightedValues<kGroups>(block, probabilities, old_factor, new_factor)
      .Multiply(prefetcher);
  ReleaseTiles();
}

void Attend(const MlaBlock& block) {
  switch (PaddedLanes(block.lanes) / kLaneGroup) {
    case 1:
      return AttendLanes<1>(block);
    case 2:
      return AttendLanes<2>(block);
    case 3:
      return AttendLanes<3>(block);
    default:
      return AttendLanes<4>(block);
  }
}

}  // namespace

const MlaKernels& MlaKernelsAmx() {
  static const MlaKernels kernels = [] {
    MlaKernels all = kMlaBf16Rows;
    all.attend = &Attend;
    return all;
  }();
  return kernels;
}

}  // namespace ringfleet::kernels
HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
