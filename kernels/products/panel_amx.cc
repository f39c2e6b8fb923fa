// SPDX-License-Identifier: Apache-2.0
// Panels of integer weights with AMX, which multiplies [16, 64] codes of
// activations by [64, 16] codes of weights in one instruction.
// A panel's steps are the rows that the instruction wants of its second
// factor, so int8 weights are read where they lie; int4's are unpacked a block
// at a time, for all rows of a batch. A product is one unit: the columns that
// have a scale of their own, whose exact sums are then scaled as in
// panel_avx512_vnni.cc.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/base.h"
#include "kernels/products/amx_tiles.h"
#include "kernels/products/panel.h"
#include "kernels/unroll.h"

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
// Units that go through a tile of rows together: their codes stay in
// registers, their weights (int8: 16 KB) and the sums of 48 rows (12 KB) in a
// level-1 cache of 48 KB.
constexpr size_t kBlockUnits = 4;

// Registers: two of sums, two of weights, and the activations of kBlockUnits
// units.
constexpr int kSums = 0, kWeights = 2, kCodes = 4;

void Configure(size_t rows, size_t columns) {
  const size_t steps = (columns + kStepColumns - 1) / kStepColumns;
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    config.Set(kSums + i, rows, kLine);
    config.Set(kWeights + i, steps, kLine);
  }
  for (size_t unit = 0; unit < kBlockUnits; ++unit) {
    config.Set(kCodes + static_cast<int>(unit), rows, steps * kStepColumns);
  }
  config.Load();
}

// Some rows of a batch in some units.
struct Part {
  const PanelBatch* x;
  size_t block, units;                 // The first unit, and their number.
  size_t row, rows;                    // The first row, and their number.
  const int8_t* codes = nullptr;       // The first row's, in the first unit.
  size_t stride = 0;                   // From row to row of the codes.
  const int8_t* next_codes = nullptr;  // Codes of the next part, or null.
  size_t ahead_begin = 0, ahead_lines = 0;  // Lines to ask for.
};

// For rows that do not lie at equal distances.
struct Gathered {
  static constexpr size_t kStride = kBlockUnits * kActivationGroup;
  alignas(64) int8_t codes[kTileRows * kStride];
};

// The sums of some units for kTileOutputs outputs.
struct Sums {
  alignas(64) int32_t of[kBlockUnits][kTileRows * kTileOutputs];
};

inline __m512i DotsAt(const Sums& sums, size_t unit, size_t row) {
  return _mm512_load_si512(sums.of[unit] + row * kTileOutputs);
}

// A unit is a group of activations.
class Int8Units {
 public:
  static constexpr size_t kColumns = kActivationGroup;
  static constexpr size_t kBytes = kColumns / kStepColumns * kStepBytes;
  // Fewer of a tile leave it so empty that VNNI is faster.
  static constexpr size_t kLeastRows = 10;
  static IntegerPanelKernel Vnni() { return Avx512VnniPanelKernels().int8; }

  // Units of kColumns columns; what is left is one with fewer.
  static size_t Whole(size_t columns) { return columns / kColumns; }
  static size_t PanelBytes(size_t columns) {
    return (columns + kStepColumns - 1) / kStepColumns * kStepBytes;
  }

  // The codes of some units, as registers take them: valid until the next call.
  const uint8_t* Unpack(const uint8_t* block, size_t) { return block; }

  // Prepares AddScaled for a part of what was unpacked.
  void Begin(const Part&) {}

  // tile[i] += scale * dot, unit by unit, for rows [begin, end) of a part and
  // kTileOutputs outputs from `output` on.
  template <size_t kUnits>
  void AddScaled(const Sums& sums, const Part& part, size_t begin, size_t end,
                 size_t output, float* tile) const {
    for (size_t i = begin; i < end; ++i) {
      const int32_t* const biases = part.x->biases[part.row + i] + part.block;
      const float* const scales = part.x->scales[part.row + i] + part.block;
      float* const at = tile + i * kPanelRows + output;
      __m512 sum = _mm512_load_ps(at);
      RF_UNROLL
      for (size_t unit = 0; unit < kUnits; ++unit) {
        const __m512i dot = _mm512_sub_epi32(DotsAt(sums, unit, i),
                                             _mm512_set1_epi32(biases[unit]));
        sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_cvtepi32_ps(dot),
                                               _mm512_set1_ps(scales[unit])));
      }
      _mm512_store_ps(at, sum);
    }
  }
};

// A unit is a part of a group, with scales of its weights; a block is two
// groups.
class Int4Units {
 public:
  static constexpr size_t kColumns = kInt4Group;
  static constexpr size_t kBytes = kInt4GroupBytes;
  static constexpr size_t kLeastRows = 13;
  static IntegerPanelKernel Vnni() { return Avx512VnniPanelKernels().int4; }

  // Both factors have whole units, padded with zeros.
  static size_t Whole(size_t columns) {
    return (columns + kColumns - 1) / kColumns;
  }
  static size_t PanelBytes(size_t columns) { return Whole(columns) * kBytes; }

  const uint8_t* Unpack(const uint8_t* block, size_t units) {
    block_ = block;
    const __m512i low_bits = _mm512_set1_epi8(15);
    uint8_t* to = codes_;
    for (size_t unit = 0; unit < units; ++unit) {
      const uint8_t* const from = block + unit * kBytes + kInt4ScaleBytes;
      for (size_t pair = 0; pair < kColumns / kStepColumns / 2; ++pair) {
        for (size_t i = 0; i < kStepBytes; i += kLine) {
          const __m512i both = _mm512_load_si512(from + pair * kStepBytes + i);
          _mm512_store_si512(to + i, _mm512_and_si512(both, low_bits));
          _mm512_store_si512(
              to + kStepBytes + i,
              _mm512_and_si512(_mm512_srli_epi16(both, 4), low_bits));
        }
        to += 2 * kStepBytes;
      }
    }
    return codes_;
  }

  // Computes what the offset of the codes adds to sums.
  void Begin(const Part& part) {
    for (size_t i = 0; i < part.rows; ++i) {
      const int32_t* const sums = part.x->sums[part.row + i] + part.block;
      for (size_t unit = 0; unit < part.units; ++unit) {
        biases_[i][unit] = 8 * sums[unit];
      }
    }
  }

  template <size_t kUnits>
  void AddScaled(const Sums& sums, const Part& part, size_t begin, size_t end,
                 size_t output, float* tile) const {
    __m512 weights[kUnits];
    RF_UNROLL
    for (size_t unit = 0; unit < kUnits; ++unit) {
      const __m256i bf16 = _mm256_load_si256(reinterpret_cast<const __m256i*>(
          block_ + unit * kBytes + output * sizeof(uint16_t)));
      weights[unit] = _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
    }
    constexpr size_t kPerGroup = kActivationGroup / kColumns;
    for (size_t i = begin; i < end; ++i) {
      const float* const scales =
          part.x->scales[part.row + i] + part.block / kPerGroup;
      float* const at = tile + i * kPanelRows + output;
      __m512 sum = _mm512_load_ps(at);
      __m512 inner = _mm512_setzero_ps();  // Sum over a group's units.
      RF_UNROLL
      for (size_t unit = 0; unit < kUnits; ++unit) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(
            DotsAt(sums, unit, i), _mm512_set1_epi32(biases_[i][unit])));
        inner = _mm512_add_ps(inner, _mm512_mul_ps(dot, weights[unit]));
        if ((unit + 1) % kPerGroup > 0 && unit + 1 < kUnits) continue;
        const __m512 scale = _mm512_set1_ps(scales[unit / kPerGroup]);
        sum = _mm512_add_ps(sum, _mm512_mul_ps(inner, scale));
        inner = _mm512_setzero_ps();
      }
      _mm512_store_ps(at, sum);
    }
  }

 private:
  const uint8_t* block_ = nullptr;
  // [units][steps][kPanelRows][4].
  alignas(64) uint8_t codes_[kBlockUnits * kColumns * kPanelRows];
  int32_t biases_[kTileRows][kBlockUnits];
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

template <typename Units>
void SetCodes(Part& part, Gathered& gathered) {
  const PanelBatch& x = *part.x;
  const size_t first = part.block * Units::kColumns;
  if (EquallySpaced(x, part.row, part.rows)) {
    part.codes = x.codes[part.row] + first;
    part.stride = part.rows > 1 ? x.codes[part.row + 1] - x.codes[part.row] : 0;
    return;
  }
  for (size_t i = 0; i < part.rows; ++i) {
    std::memcpy(gathered.codes + i * Gathered::kStride,
                x.codes[part.row + i] + first, part.units * Units::kColumns);
  }
  part.codes = gathered.codes;
  part.stride = Gathered::kStride;
}

// Asks for lines of a panel between products, in turns one of each of kStreams
// stretches as long as a page, which begin kStretchesAhead of them before what
// is read. The processor's own prefetcher runs ahead within each page that is
// read, and one page at a time leaves the memory idle while products run (int8
// weights that no cache holds, one core, 16 and 48 rows: 90 and 154 ns a KB, so
// 70 and 128).
class Ahead {
 public:
  // `next`: memory that is read next, as long as the panel, or null. If it
  // follows the panel, the lines behind it are asked for, too: products go on
  // there.
  Ahead(const uint8_t* panel, size_t bytes, const uint8_t* next)
      : panel_(reinterpret_cast<uintptr_t>(panel)), end_(panel_ + bytes) {
    if (next == nullptr) {
      limit_ = end_;
      return;
    }
    jump_ = reinterpret_cast<uintptr_t>(next) - end_;
    if (jump_ > kPanelRows * sizeof(float)) limit_ = end_ + bytes;
  }

  // Asks for what belongs to the panel's lines up to `end`.
  void AskUpTo(size_t end) {
    for (; done_ + kStreams <= end; done_ += kStreams) {
      const uintptr_t first = panel_ +
                              (kStretchesAhead + done_ / kLines) * kBytes +
                              done_ % kLines / kStreams * kLine;
      RF_UNROLL
      for (size_t stream = 0; stream < kStreams; ++stream) {
        const uintptr_t at = first + stream * kBytes +
                             (kStreams - 1 - stream) * (kBytes / kStreams);
        if (at >= limit_) break;
        _mm_prefetch(reinterpret_cast<const char*>(at < end_ ? at : at + jump_),
                     _MM_HINT_T2);
      }
    }
  }

 private:
  static constexpr size_t kStreams = 16;
  static constexpr size_t kStretchesAhead = 4;
  static constexpr size_t kBytes = 4096;  // A stretch's.
  static constexpr size_t kLines = kBytes / kLine;

  uintptr_t panel_, end_;
  uintptr_t jump_ = 0;  // From the end to what is read behind it.
  uintptr_t limit_ = UINTPTR_MAX;
  size_t done_ = 0;
};

// Asks for the codes of the part that follows, line `index` of each row: they
// lie far apart, where the processor foresees nothing.
template <typename Units>
inline void AskCodes(const Part& part, size_t index) {
  const int8_t* line = part.next_codes;
  if (line == nullptr || index >= kBlockUnits * Units::kColumns / kLine) return;
  line += index * kLine;
  for (size_t i = 0; i < part.rows; ++i, line += part.stride) {
    _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
  }
}

// One unit for kTileOutputs outputs; units take the registers in turns.
template <typename Units, size_t kUnit>
inline void MultiplyUnit(const uint8_t* weights, Sums& sums) {
  constexpr int kTurn = kUnit % 2;
  constexpr int kOwnCodes = kCodes + static_cast<int>(kUnit);
  constexpr size_t kUnitBytes = Units::kColumns / kStepColumns * kStepBytes;
  LoadTile<kWeights + kTurn>(weights + kUnit * kUnitBytes, kStepBytes);
  ZeroTile<kSums + kTurn>();
  AddInt8Product<kSums + kTurn, kOwnCodes, kWeights + kTurn>();
  StoreTile<kSums + kTurn>(sums.of[kUnit], kLine);
}

// A part, for all outputs of a panel. The products for 16 outputs run while
// the sums of the 16 before are scaled: a read that follows the store of sums
// at once waits for it.
template <typename Units, size_t... kUnit>
void MultiplyPart(std::index_sequence<kUnit...>, const Units& units,
                  const uint8_t* weights, const Part& part, Ahead& ahead,
                  float* tile) {
  constexpr size_t kUnits = sizeof...(kUnit);
  constexpr size_t kProducts = kUnits * (kPanelRows / kTileOutputs);
  Sums sums[2];
  (LoadTile<kCodes + static_cast<int>(kUnit)>(
       part.codes + kUnit * Units::kColumns, part.stride),
   ...);
  (MultiplyUnit<Units, kUnit>(weights, sums[0]), ...);
  RF_UNROLL
  for (size_t output = 0; output < kPanelRows; output += kTileOutputs) {
    const size_t next = output + kTileOutputs;
    const Sums& ready = sums[output / kTileOutputs % 2];
    Sums& begun = sums[next / kTileOutputs % 2];
    const auto step = [&]<size_t kOne>() {
      const size_t product = output / kTileOutputs * kUnits + kOne;
      ahead.AskUpTo(part.ahead_begin +
                    (product + 1) * part.ahead_lines / kProducts);
      AskCodes<Units>(part, product);
      if (next < kPanelRows) {
        MultiplyUnit<Units, kOne>(weights + next * kStepColumns, begun);
      }
      units.template AddScaled<kUnits>(ready, part, kOne * part.rows / kUnits,
                                       (kOne + 1) * part.rows / kUnits, output,
                                       tile);
    };
    (step.template operator()<kUnit>(), ...);
  }
}

template <typename Units>
void MultiplyPart(const Units& units, const uint8_t* weights, const Part& part,
                  Ahead& ahead, float* tile) {
  static_assert(kBlockUnits == 4);
  switch (part.units) {
    case 1:
      return MultiplyPart(std::make_index_sequence<1>(), units, weights, part,
                          ahead, tile);
    case 2:
      return MultiplyPart(std::make_index_sequence<2>(), units, weights, part,
                          ahead, tile);
    case 3:
      return MultiplyPart(std::make_index_sequence<3>(), units, weights, part,
                          ahead, tile);
    default:
      return MultiplyPart(std::make_index_sequence<4>(), units, weights, part,
                          ahead, tile);
  }
}

// `count` units of `columns` columns each, from `first` on.
template <typename Units>
void MultiplyUnits(const uint8_t* panel, size_t first, size_t count,
                   size_t columns, const PanelBatch& x, Ahead& ahead,
                   float* tile) {
  constexpr size_t kUnitLines = Units::kBytes / kLine;
  const size_t tiles = (x.size + kTileRows - 1) / kTileRows;
  const size_t end = first + count;
  size_t configured = 0;
  Gathered gathered;
  Units units;
  for (size_t block = first; block < end; block += kBlockUnits) {
    const size_t size = std::min(kBlockUnits, end - block);
    const size_t lines = size * kUnitLines;
    const uint8_t* const weights =
        units.Unpack(panel + block * Units::kBytes, size);
    for (size_t t = 0; t < tiles; ++t) {
      Part part = {.x = &x,
                   .block = block,
                   .units = size,
                   .row = t * x.size / tiles,
                   .rows = (t + 1) * x.size / tiles - t * x.size / tiles,
                   .ahead_begin = block * kUnitLines + t * lines / tiles};
      part.ahead_lines =
          block * kUnitLines + (t + 1) * lines / tiles - part.ahead_begin;
      SetCodes<Units>(part, gathered);
      // The tile behind this one, or the first in the next block.
      const bool last = t + 1 == tiles;
      const size_t next_row = last ? 0 : part.row + part.rows;
      const size_t next_block = last ? block + kBlockUnits : block;
      if (next_block + kBlockUnits <= end) {
        part.next_codes = x.codes[next_row] + next_block * Units::kColumns;
      }
      if (part.rows != configured) Configure(part.rows, columns);
      configured = part.rows;
      units.Begin(part);
      MultiplyPart(units, weights, part, ahead, tile + part.row * kPanelRows);
    }
  }
}

template <typename Units>
void MultiplyByTiles(const uint8_t* panel, const PanelBatch& x,
                     const uint8_t* next, float* tile) {
  for (size_t i = 0; i < x.size * kPanelRows; i += 16) {
    _mm512_store_ps(tile + i, _mm512_setzero_ps());
  }
  Ahead ahead(panel, Units::PanelBytes(x.columns), next);
  const size_t whole = Units::Whole(x.columns);
  MultiplyUnits<Units>(panel, 0, whole, Units::kColumns, x, ahead, tile);
  if (x.columns > whole * Units::kColumns) {
    MultiplyUnits<Units>(panel, whole, 1, x.columns - whole * Units::kColumns,
                         x, ahead, tile);
  }
  ReleaseTiles();
}

template <typename Units>
void Multiply(const uint8_t* panel, const PanelBatch& x, const uint8_t* next,
              float* tile) {
  const size_t tiles = (x.size + kTileRows - 1) / kTileRows;
  if (x.size >= Units::kLeastRows * tiles) {
    return MultiplyByTiles<Units>(panel, x, next, tile);
  }
  Units::Vnni()(panel, x, next, tile);
}

}  // namespace

IntegerPanelKernels AmxPanelKernels() {
  return {.int8 = &Multiply<Int8Units>, .int4 = &Multiply<Int4Units>};
}

}  // namespace ringfleet::kernels
HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
