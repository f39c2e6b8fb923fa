// SPDX-License-Identifier: Apache-2.0
// Panels of int8 weights with AMX, which multiplies [16, 64] codes of
// activations by [64, 16] codes of weights in one instruction.
// A panel's steps are the rows that the instruction wants of its second
// factor, so weights are read where they lie; a product is one group of
// columns, whose exact sums are then scaled as in panel_avx512_vnni.cc.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/base.h"
#include "kernels/amx_tiles.h"
#include "kernels/panel.h"

#if defined(__x86_64__)

#ifndef __clang__
// GCC 12 finds its own intrinsics' undefined vectors uninitialised.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,amx-tile,amx-int8")
namespace ringfleet::kernels {
namespace {

constexpr size_t kTileOutputs = 16;
constexpr size_t kLine = kTileRowBytes;
constexpr size_t kGroupLines =
    kActivationGroup / kStepColumns * kStepBytes / kLine;
// Groups that go through a tile of rows together: their codes stay in
// registers, their weights (16 KB) and the sums of 48 rows (12 KB) in a level-1
// cache of 48 KB.
constexpr size_t kBlockGroups = 4;

// Registers: two of sums, two of weights, and the activations of kBlockGroups
// groups.
constexpr int kSums = 0, kWeights = 2, kCodes = 4;

void Configure(size_t rows, size_t columns) {
  const size_t steps = (columns + kStepColumns - 1) / kStepColumns;
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    config.Set(kSums + i, rows, kLine);
    config.Set(kWeights + i, steps, kLine);
  }
  for (size_t group = 0; group < kBlockGroups; ++group) {
    config.Set(kCodes + static_cast<int>(group), rows, steps * kStepColumns);
  }
  config.Load();
}

// Some rows of a batch in some groups.
struct Part {
  const PanelBatch* x;
  size_t block, groups;                // The first group and how many.
  size_t row, rows;                    // The same.
  const int8_t* codes = nullptr;       // Of the first row and group,
  size_t stride = 0;                   // and how far apart rows lie.
  const int8_t* next_codes = nullptr;  // Of the part that follows, or null.
};

// For rows that do not lie at equal distances.
struct Gathered {
  static constexpr size_t kStride = kBlockGroups * kActivationGroup;
  alignas(64) int8_t codes[kTileRows * kStride];
};

bool EquallySpaced(const PanelBatch& x, size_t first, size_t count) {
  for (size_t i = 2; i < count; ++i) {
    if (x.codes[first + i] - x.codes[first + i - 1] !=
        x.codes[first + 1] - x.codes[first]) {
      return false;
    }
  }
  return true;
}

void SetCodes(Part& part, Gathered& gathered) {
  const PanelBatch& x = *part.x;
  const size_t first = part.block * kActivationGroup;
  if (EquallySpaced(x, part.row, part.rows)) {
    part.codes = x.codes[part.row] + first;
    part.stride = part.rows > 1 ? x.codes[part.row + 1] - x.codes[part.row] : 0;
    return;
  }
  for (size_t i = 0; i < part.rows; ++i) {
    std::memcpy(gathered.codes + i * Gathered::kStride,
                x.codes[part.row + i] + first, part.groups * kActivationGroup);
  }
  part.codes = gathered.codes;
  part.stride = Gathered::kStride;
}

// Lines that are asked for between products.
struct Ahead {
  const uint8_t* from = nullptr;
  size_t lines = 0;  // For each product.
};

inline void Ask(Ahead& ahead) {
  for (size_t i = 0; i < ahead.lines; ++i, ahead.from += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead.from), _MM_HINT_T1);
  }
}

// Asks for the codes of the part that follows, line `index` of each row: they
// lie far apart, where the processor foresees nothing.
inline void AskCodes(const Part& part, size_t index) {
  const int8_t* line = part.next_codes;
  if (line == nullptr || index >= kBlockGroups) return;
  line += index * kLine;
  for (size_t i = 0; i < part.rows; ++i, line += part.stride) {
    _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
  }
}

// The sums of some groups for kTileOutputs outputs.
struct Sums {
  alignas(64) int32_t of[kBlockGroups][kTileRows * kTileOutputs];
};

// One group for kTileOutputs outputs; groups take the registers in turns.
template <size_t kGroup>
inline void MultiplyGroup(const uint8_t* weights, Sums& sums) {
  constexpr int kTurn = kGroup % 2;
  constexpr int kOwnCodes = kCodes + static_cast<int>(kGroup);
  LoadTile<kWeights + kTurn>(weights + kGroup * kGroupLines * kLine,
                             kStepBytes);
  ZeroTile<kSums + kTurn>();
  AddInt8Product<kSums + kTurn, kOwnCodes, kWeights + kTurn>();
  StoreTile<kSums + kTurn>(sums.of[kGroup], kLine);
}

// tile[i] += scale * dot, group by group, for rows [begin, end) of a part.
template <size_t kGroups>
inline void AddScaled(const Sums& sums, const Part& part, size_t begin,
                      size_t end, float* tile) {
  for (size_t i = begin; i < end; ++i) {
    const int32_t* const biases = part.x->biases[part.row + i] + part.block;
    const float* const scales = part.x->scales[part.row + i] + part.block;
    __m512 sum = _mm512_load_ps(tile + i * kPanelRows);
#pragma GCC unroll 4
    for (size_t group = 0; group < kGroups; ++group) {
      const __m512i dot =
          _mm512_sub_epi32(_mm512_load_si512(sums.of[group] + i * kTileOutputs),
                           _mm512_set1_epi32(biases[group]));
      sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_cvtepi32_ps(dot),
                                             _mm512_set1_ps(scales[group])));
    }
    _mm512_store_ps(tile + i * kPanelRows, sum);
  }
}

// A part, for all outputs of a panel. The products for 16 outputs run while
// the sums of the 16 before are scaled: a read that follows the store of sums
// at once waits for it.
template <size_t... kGroup>
void MultiplyPart(std::index_sequence<kGroup...>, const uint8_t* weights,
                  const Part& part, Ahead& ahead, float* tile) {
  constexpr size_t kGroups = sizeof...(kGroup);
  Sums sums[2];
  (LoadTile<kCodes + static_cast<int>(kGroup)>(
       part.codes + kGroup * kActivationGroup, part.stride),
   ...);
  (MultiplyGroup<kGroup>(weights, sums[0]), ...);
#pragma GCC unroll 4
  for (size_t output = 0; output < kPanelRows; output += kTileOutputs) {
    const size_t next = output + kTileOutputs;
    const Sums& ready = sums[output / kTileOutputs % 2];
    Sums& begun = sums[next / kTileOutputs % 2];
    const auto step = [&]<size_t kOne>() {
      Ask(ahead);
      AskCodes(part, output / kTileOutputs * kGroups + kOne);
      if (next < kPanelRows) {
        MultiplyGroup<kOne>(weights + next * kStepColumns, begun);
      }
      AddScaled<kGroups>(ready, part, kOne * part.rows / kGroups,
                         (kOne + 1) * part.rows / kGroups, tile + output);
    };
    (step.template operator()<kGroup>(), ...);
  }
}

void MultiplyPart(const uint8_t* weights, const Part& part, Ahead& ahead,
                  float* tile) {
  static_assert(kBlockGroups == 4);
  switch (part.groups) {
    case 1:
      return MultiplyPart(std::make_index_sequence<1>(), weights, part, ahead,
                          tile);
    case 2:
      return MultiplyPart(std::make_index_sequence<2>(), weights, part, ahead,
                          tile);
    case 3:
      return MultiplyPart(std::make_index_sequence<3>(), weights, part, ahead,
                          tile);
    default:
      return MultiplyPart(std::make_index_sequence<4>(), weights, part, ahead,
                          tile);
  }
}

// What is read behind a block: the next one, or where the thread goes on.
Ahead BehindBlock(const uint8_t* weights, size_t block, size_t columns,
                  const uint8_t* next, size_t tiles) {
  const size_t behind = block + kBlockGroups;
  const size_t all = (columns + kActivationGroup - 1) / kActivationGroup;
  Ahead ahead;
  if (behind + kBlockGroups <= all) {
    ahead.from = weights + kBlockGroups * kGroupLines * kLine;
  } else if (behind >= all) {
    ahead.from = next;
  }
  constexpr size_t kProducts = kBlockGroups * (kPanelRows / kTileOutputs);
  if (ahead.from != nullptr) {
    ahead.lines = kBlockGroups * kGroupLines / (kProducts * tiles);
  }
  return ahead;
}

// `groups` groups of `columns` columns each, from `first` on.
void MultiplyGroups(const uint8_t* panel, size_t first, size_t groups,
                    size_t columns, const PanelBatch& x, const uint8_t* next,
                    float* tile) {
  const size_t tiles = (x.size + kTileRows - 1) / kTileRows;
  size_t configured = 0;
  Gathered gathered;
  for (size_t block = first; block < first + groups; block += kBlockGroups) {
    const uint8_t* const weights = panel + block * kGroupLines * kLine;
    Ahead ahead = BehindBlock(weights, block, x.columns, next, tiles);
    for (size_t t = 0; t < tiles; ++t) {
      Part part = {.x = &x,
                   .block = block,
                   .groups = std::min(kBlockGroups, first + groups - block),
                   .row = t * x.size / tiles};
      part.rows = (t + 1) * x.size / tiles - part.row;
      SetCodes(part, gathered);
      // The tile behind this one, or the first in the next block.
      const bool last = t + 1 == tiles;
      const size_t next_row = last ? 0 : part.row + part.rows;
      const size_t next_block = last ? block + kBlockGroups : block;
      if (next_block + kBlockGroups <= first + groups) {
        part.next_codes = x.codes[next_row] + next_block * kActivationGroup;
      }
      if (part.rows != configured) Configure(part.rows, columns);
      configured = part.rows;
      MultiplyPart(weights, part, ahead, tile + part.row * kPanelRows);
    }
  }
}

void MultiplyByTiles(const uint8_t* panel, const PanelBatch& x,
                     const uint8_t* next, float* tile) {
  for (size_t i = 0; i < x.size * kPanelRows; i += 16) {
    _mm512_store_ps(tile + i, _mm512_setzero_ps());
  }
  const size_t groups = x.columns / kActivationGroup;
  const size_t rest = x.columns % kActivationGroup;
  MultiplyGroups(panel, 0, groups, kActivationGroup, x, next, tile);
  if (rest > 0) MultiplyGroups(panel, groups, 1, rest, x, next, tile);
  ReleaseTiles();
}

// Fewer rows leave most of a tile empty: VNNI is faster.
constexpr size_t kLeastRows = 10;

void Multiply(const uint8_t* panel, const PanelBatch& x, const uint8_t* next,
              float* tile) {
  if (x.size >= kLeastRows) return MultiplyByTiles(panel, x, next, tile);
  Avx512VnniPanelKernels().int8(panel, x, next, tile);
}

}  // namespace

IntegerPanelKernels AmxPanelKernels() {
  return {.int8 = &Multiply, .int4 = Avx512VnniPanelKernels().int4};
}

}  // namespace ringfleet::kernels
HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
