// SPDX-License-Identifier: Apache-2.0
// Panels of integer weights with AVX-512 VNNI: VPDPBUSD multiplies four
// unsigned by four signed bytes in each of 16 lanes and adds the sum to an
// int32. Weights are the unsigned side, stored with a bias (128 or 8); the sum
// starts at -bias * (sum of the row's codes), so it ends as the exact product.
//
// A tile of 6 rows x 64 outputs keeps 24 of 32 registers as sums and reads
// each weight once for all rows. The sums are tied to their registers by
// inline assembly: with the intrinsic, GCC 12 moves half of them through the
// stack and the loop runs at half of its speed.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/base.h"
#include "kernels/isa.h"
#include "kernels/products/panel.h"
#include "kernels/products/prefetch.h"
#include "kernels/unroll.h"

#if defined(__x86_64__)

#ifndef __clang__
// GCC 12 finds its own intrinsics' undefined vectors uninitialised.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512vnni")
namespace ringfleet::kernels {
namespace {

constexpr int kVectors = 4;  // Vectors of 16 outputs in a panel.
constexpr size_t kMaxRows = 6;
constexpr size_t kLineBytes = 64;
constexpr size_t kGroupSteps = kActivationGroup / kStepColumns;

// How many groups ahead a tile asks for lines. 16 KB of int8 codes are 0.6 us
// at the rate of one core, several latencies of the memory: 8 rows reach 540
// GOPS on two cores of Zen 4, with prefetches within the group 380.
constexpr size_t kTileGroupsAhead = 4;
// Groups ahead for a tile that reads alone: 8 KB if level 1 has to keep them.
constexpr size_t GroupsAhead(LinesAhead lines, size_t group_bytes) {
  return lines == LinesAhead::kIntoLevel1
             ? (8192 + group_bytes - 1) / group_bytes
             : kTileGroupsAhead;
}

inline void DotBytes(__m512i weights, __m512i codes, __m512i& sum) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(codes));
}

inline __m512i FourCodes(const int8_t* codes) {
  int32_t four;
  __builtin_memcpy(&four, codes, sizeof(four));
  return _mm512_set1_epi32(four);
}

// For the lines to come a tile calls AskFor or Pace in each step of a group, or
// takes them by line.

// Each line, when it has been used, is followed by asking for the one
// `distance` bytes behind it, into level 2: see LinesAhead::kIntoLevel2. A tile
// takes some of a step's vectors; of the others it asks for the line itself,
// which costs less than deciding.
struct AskByLine {
  static constexpr bool kByLine = true;
  uintptr_t distance[kVectors] = {};
};

inline void AskBehind(const uint8_t* line, uintptr_t distance) {
  const auto* const later = reinterpret_cast<const uint8_t*>(
      reinterpret_cast<uintptr_t>(line) + distance);
  __asm__ volatile("prefetcht1 %0" : : "m"(*later));
}

// Returns the lines that tile `tile` of `num_tiles` asks for while it reads
// `group`: its part of `ahead`, or none if `ahead` is null.
AskByLine ShareByLine(size_t tile, size_t num_tiles, const uint8_t* group,
                      const uint8_t* ahead) {
  AskByLine share;
  if (ahead == nullptr) return share;
  const size_t sharing = std::min<size_t>(num_tiles, kVectors);
  for (size_t i = 0; i < kVectors; ++i) {
    if (i * sharing / kVectors != tile) continue;
    share.distance[i] =
        reinterpret_cast<uintptr_t>(ahead) - reinterpret_cast<uintptr_t>(group);
  }
  return share;
}

// Asks for its share of a group's lines: every tile of a group takes some, so
// that the memory is busy all the time.
template <int locality>
struct AskFor {
  static constexpr bool kByLine = false;
  const uint8_t* from = nullptr;
  size_t lines_per_step = 0;

  void operator()(size_t step) const {
    const uint8_t* line = from + step * lines_per_step * kLineBytes;
    for (size_t i = 0; i < lines_per_step; ++i) {
      __builtin_prefetch(line + i * kLineBytes, /*rw=*/0, locality);
    }
  }
};

// Splits the lines of a group's steps, `per_step` each, over the tiles; none
// of no group.
template <int locality>
AskFor<locality> ShareOf(size_t tile, size_t num_tiles, size_t per_step,
                         size_t steps, const uint8_t* group) {
  const size_t sharing = std::min(num_tiles, per_step);
  if (group == nullptr || tile >= sharing) return {};
  const size_t begin = tile * per_step / sharing;
  const size_t end = (tile + 1) * per_step / sharing;
  return {.from = group + begin * steps * kLineBytes,
          .lines_per_step = end - begin};
}

// Leaves them to the processor, and does nothing for so many instructions: see
// LinesAhead.
template <int instructions>
struct Pace {
  static constexpr bool kByLine = false;
  void operator()(size_t) const {
    __asm__ volatile(".rept %c0\n\tnop\n\t.endr" : : "i"(instructions));
  }
};

// Asks for the first lines of a group, behind which the processor foresees the
// others.
inline void AskForFirst(const uint8_t* group) {
  constexpr size_t kLines = 4;
  for (size_t i = 0; i < kLines; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(group + i * kLineBytes),
                 _MM_HINT_T1);
  }
}

// Returns the level that gets the lines, as __builtin_prefetch's locality.
// Lines that one tile reads are not read again soon. They stay out of level 2,
// where they would push out other lines at a cost (Zen 5: one row of int8 read
// 43.5 instead of 41 GB/s when it still asked).
constexpr int LocalityFor(LinesAhead lines, bool one_tile) {
  constexpr int kLevel1 = 3, kLevel2 = 2, kLevel1Only = 0;
  if (lines != LinesAhead::kIntoLevel1) return kLevel2;
  return one_tile ? kLevel1Only : kLevel1;
}

// Some rows of one group.
template <int Rows>
struct RowGroup {
  const int8_t* codes[Rows];
  float scales[Rows];
  const int32_t* sums[Rows];
  int32_t biases[Rows];
};

template <int Rows>
HWY_INLINE RowGroup<Rows> Select(const PanelBatch& x, size_t row,
                                 size_t group) {
  RowGroup<Rows> rows;
  for (int i = 0; i < Rows; ++i) {
    rows.codes[i] = x.codes[row + i] + group * kActivationGroup;
    rows.scales[i] = x.scales[row + i][group];
    rows.sums[i] = x.sums[row + i] + group * Activations::kSumsPerGroup;
    rows.biases[i] = x.biases[row + i][group];
  }
  return rows;
}

// A line of weights, loaded where this stands among what is volatile.
inline __m512i LoadHere(const uint8_t* line) {
  __m512i weights;
  __asm__ volatile("vmovdqa64 %1, %0"
                   : "=v"(weights)
                   : "m"(*reinterpret_cast<const __m512i*>(line)));
  return weights;
}

// Which codes of a line.
enum class Codes : uint8_t { kBytes, kLowBits, kHighBits };

template <Codes which>
HWY_INLINE __m512i Unpack(__m512i line) {
  if (which == Codes::kBytes) return line;
  if (which == Codes::kHighBits) line = _mm512_srli_epi16(line, 4);
  return _mm512_and_si512(line, _mm512_set1_epi8(15));
}

// Adds to sums[i][j] the dot products of four columns of row i, from `column`
// on, and vector first + j of a step of weights, line by line. Asks for the
// lines to come, once for those that have two codes in a byte.
template <Codes which, int Rows, int Vectors>
HWY_INLINE void DotByLine(const uint8_t* step, int first,
                          const RowGroup<Rows>& rows, size_t column,
                          const AskByLine& ahead,
                          __m512i (&sums)[Rows][Vectors]) {
  __m512i codes[Rows];
  RF_UNROLL
  for (int i = 0; i < Rows; ++i) codes[i] = FourCodes(rows.codes[i] + column);
  RF_UNROLL
  for (int j = 0; j < Vectors; ++j) {
    const uint8_t* const line = step + (first + j) * kLineBytes;
    const __m512i w = Unpack<which>(LoadHere(line));
    RF_UNROLL
    for (int i = 0; i < Rows; ++i) DotBytes(w, codes[i], sums[i][j]);
    if (which != Codes::kHighBits) AskBehind(line, ahead.distance[first + j]);
  }
}

inline void AddScaled(__m512 value, __m512 scale, float* sum) {
  _mm512_store_ps(
      sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_mul_ps(value, scale)));
}

// tile[i] += scale * dot over one group of up to kGroupSteps steps.
template <int Rows, typename Ahead>
HWY_INLINE void Int8Group(const uint8_t* weights, size_t steps,
                          const RowGroup<Rows>& rows, const Ahead& ahead,
                          float* tile) {
  __m512i sums[Rows][kVectors];
  RF_UNROLL
  for (int i = 0; i < Rows; ++i) {
    const __m512i start = _mm512_set1_epi32(-rows.biases[i]);
    RF_UNROLL
    for (int j = 0; j < kVectors; ++j) sums[i][j] = start;
  }
  for (size_t step = 0; step < steps; ++step) {
    if constexpr (Ahead::kByLine) {
      DotByLine<Codes::kBytes>(weights + step * kStepBytes, 0, rows,
                               step * kStepColumns, ahead, sums);
    } else {
      __m512i w[kVectors];
      RF_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        w[j] = _mm512_load_si512(weights + step * kStepBytes + j * kLineBytes);
      }
      ahead(step);
      RF_UNROLL
      for (int i = 0; i < Rows; ++i) {
        const __m512i codes = FourCodes(rows.codes[i] + step * kStepColumns);
        RF_UNROLL
        for (int j = 0; j < kVectors; ++j) DotBytes(w[j], codes, sums[i][j]);
      }
    }
  }
  RF_UNROLL
  for (int i = 0; i < Rows; ++i) {
    const __m512 scale = _mm512_set1_ps(rows.scales[i]);
    RF_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      AddScaled(_mm512_cvtepi32_ps(sums[i][j]), scale,
                tile + i * kPanelRows + j * 16);
    }
  }
}

// Adds the products of the `parts` parts of a group of int4 weights. Six rows
// take half of the outputs at a time, so that the scaled sums of the group stay
// in registers beside the integer ones of a part (48 rows: 611 -> 635 GOPS).
template <int Rows, typename Ahead>
HWY_INLINE void Int4Group(const uint8_t* weights, size_t parts,
                          const RowGroup<Rows>& rows, const Ahead& ahead,
                          float* tile) {
  constexpr size_t kPairs = kInt4Group / (2 * kStepColumns);
  constexpr int kAtOnce = Rows > 5 ? kVectors / 2 : kVectors;
  const __m512i low_bits = _mm512_set1_epi8(15);
  for (int first = 0; first < kVectors; first += kAtOnce) {
    __m512 inner[Rows][kAtOnce];
    RF_UNROLL
    for (int i = 0; i < Rows; ++i) {
      RF_UNROLL
      for (int j = 0; j < kAtOnce; ++j) inner[i][j] = _mm512_setzero_ps();
    }
    for (size_t part = 0; part < parts; ++part) {
      const uint8_t* from = weights + part * kInt4GroupBytes;
      __m512i sums[Rows][kAtOnce];
      RF_UNROLL
      for (int i = 0; i < Rows; ++i) {
        const __m512i start = _mm512_set1_epi32(-8 * rows.sums[i][part]);
        RF_UNROLL
        for (int j = 0; j < kAtOnce; ++j) sums[i][j] = start;
      }
      for (size_t pair = 0; pair < kPairs; ++pair) {
        const uint8_t* bytes = from + kInt4ScaleBytes + pair * kStepBytes;
        const size_t column = part * kInt4Group + pair * 2 * kStepColumns;
        if constexpr (Ahead::kByLine) {
          DotByLine<Codes::kLowBits>(bytes, first, rows, column, ahead, sums);
          DotByLine<Codes::kHighBits>(bytes, first, rows, column + kStepColumns,
                                      ahead, sums);
        } else {
          if (first == 0) ahead(part * kPairs + pair);
          // Low bits, then high ones.
          RF_UNROLL
          for (size_t half = 0; half < 2; ++half) {
            __m512i w[kAtOnce];
            RF_UNROLL
            for (int j = 0; j < kAtOnce; ++j) {
              const __m512i both =
                  _mm512_load_si512(bytes + (first + j) * kLineBytes);
              w[j] = _mm512_and_si512(
                  half == 0 ? both : _mm512_srli_epi16(both, 4), low_bits);
            }
            RF_UNROLL
            for (int i = 0; i < Rows; ++i) {
              const __m512i codes =
                  FourCodes(rows.codes[i] + column + half * kStepColumns);
              RF_UNROLL
              for (int j = 0; j < kAtOnce; ++j) {
                DotBytes(w[j], codes, sums[i][j]);
              }
            }
          }
        }
      }
      RF_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const __m256i bf16 = _mm256_load_si256(
            reinterpret_cast<const __m256i*>(from + (first + j) * 32));
        if constexpr (Ahead::kByLine) {
          // Two vectors' scales are a line.
          if (j % 2 == 0) {
            AskBehind(from + (first + j) * 32, ahead.distance[first + j]);
          }
        }
        const __m512 scale = _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
        RF_UNROLL
        for (int i = 0; i < Rows; ++i) {
          inner[i][j] = _mm512_add_ps(
              inner[i][j],
              _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][j]), scale));
        }
      }
    }
    RF_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const __m512 scale = _mm512_set1_ps(rows.scales[i]);
      RF_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        AddScaled(inner[i][j], scale, tile + i * kPanelRows + (first + j) * 16);
      }
    }
  }
}

struct Int8Weights {
  static constexpr size_t kGroupBytes = kGroupSteps * kStepBytes;
  static constexpr size_t kUnits = kGroupSteps;  // Where prefetches are spread.
  static constexpr size_t kLinesPerUnit = kStepBytes / kLineBytes;
  // With up to so many rows the processor foresees lines. Zen 5 those of one:
  // 98 % of a sum's rate instead of 93; of four 78.
  static constexpr int ForeseenRows(LinesAhead lines) {
    if (lines == LinesAhead::kForeseen) return kMaxRows;
    return lines == LinesAhead::kIntoLevel1 ? 1 : 0;
  }
  // Where it needs time for that, a unit does best if it has some 64
  // instructions, which these that do nothing fill up.
  static constexpr int Idle(int rows) { return 57 - 5 * rows; }
  template <int Rows, typename Ahead>
  static HWY_INLINE void Group(const uint8_t* weights, size_t columns,
                               const RowGroup<Rows>& rows, const Ahead& ahead,
                               float* tile) {
    Int8Group<Rows>(weights, (columns + kStepColumns - 1) / kStepColumns, rows,
                    ahead, tile);
  }
};

struct Int4Weights {
  static constexpr size_t kGroupBytes =
      Activations::kSumsPerGroup * kInt4GroupBytes;
  static constexpr size_t kUnits =
      Activations::kSumsPerGroup * kInt4Group / (2 * kStepColumns);
  // 4.5, rounded up: the lines of the scales are asked for, too.
  static constexpr size_t kLinesPerUnit =
      (kGroupBytes / kLineBytes + kUnits - 1) / kUnits;
  static constexpr int ForeseenRows(LinesAhead lines) {
    return lines == LinesAhead::kForeseen ? 2 : 0;
  }
  // As above, 80 instructions.
  static constexpr int Idle(int rows) { return 50 - 10 * rows; }
  template <int Rows, typename Ahead>
  static HWY_INLINE void Group(const uint8_t* weights, size_t columns,
                               const RowGroup<Rows>& rows, const Ahead& ahead,
                               float* tile) {
    Int4Group<Rows>(weights, (columns + kInt4Group - 1) / kInt4Group, rows,
                    ahead, tile);
  }
};

size_t NumTiles(const PanelBatch& x) {
  return (x.size + kMaxRows - 1) / kMaxRows;
}

// Calls body(std::integral_constant<int, rows>()) for 1 to kMaxRows rows.
template <typename Body>
HWY_INLINE void WithRows(size_t rows, const Body& body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    case 4:
      return body(std::integral_constant<int, 4>());
    case 5:
      return body(std::integral_constant<int, 5>());
    default:
      return body(std::integral_constant<int, 6>());
  }
}

// The groups of a panel, front to back, each of which asks for the lines of the
// one `ahead` behind it.
template <typename Form, size_t ahead>
struct Groups {
  const uint8_t* panel;
  size_t columns;
  const uint8_t* next;  // As in MultiplyPanel.

  size_t Count() const {
    return (columns + kActivationGroup - 1) / kActivationGroup;
  }
  const uint8_t* At(size_t group) const {
    return panel + group * Form::kGroupBytes;
  }
  size_t Columns(size_t group) const {
    return std::min(kActivationGroup, columns - group * kActivationGroup);
  }
  bool HasAhead(size_t group) const { return group + ahead < Count(); }
  // Where this panel ends, of the next one; null if there is none.
  const uint8_t* Ahead(size_t group) const {
    if (HasAhead(group)) return At(group + ahead);
    if (next == nullptr) return nullptr;
    return next + (group + ahead - Count()) * Form::kGroupBytes;
  }
};

// Few rows: one tile, which reads the panel front to back.
template <int Rows, typename Form, LinesAhead lines>
void MultiplyOneTile(const uint8_t* panel, const PanelBatch& x,
                     const uint8_t* next, float* tile) {
  const Groups<Form, GroupsAhead(lines, Form::kGroupBytes)> groups = {
      panel, x.columns, next};
  size_t group = 0;
  if constexpr (Rows <= Form::ForeseenRows(lines)) {
    constexpr bool paced = lines == LinesAhead::kForeseen;
    const Pace<paced ? Form::Idle(Rows) : 0> pace;
    for (; groups.HasAhead(group); ++group) {
      if constexpr (paced) AskForFirst(groups.Ahead(group));
      Form::template Group<Rows>(groups.At(group), kActivationGroup,
                                 Select<Rows>(x, 0, group), pace, tile);
    }
  }
  if constexpr (lines == LinesAhead::kIntoLevel2) {
    for (; group < groups.Count(); ++group) {
      // In the last group, of where the thread goes on.
      const uint8_t* const ahead = group + 1 < groups.Count()
                                       ? groups.At(group) + kBytesAheadByLine
                                       : next;
      Form::template Group<Rows>(
          groups.At(group), groups.Columns(group), Select<Rows>(x, 0, group),
          ShareByLine(0, 1, groups.At(group), ahead), tile);
    }
  } else {
    // No processor foresees where the thread goes on.
    for (; group < groups.Count(); ++group) {
      Form::template Group<Rows>(
          groups.At(group), groups.Columns(group), Select<Rows>(x, 0, group),
          ShareOf<LocalityFor(lines, /*one_tile=*/true)>(
              0, 1, Form::kLinesPerUnit, Form::kUnits, groups.Ahead(group)),
          tile);
    }
  }
}

// One tile of several in one group. Not inlined, so that the compiler assigns
// registers for one number of rows at a time (16 rows: 23 -> 24.5 GB/s).
template <int Rows, typename Form, typename Ahead>
HWY_NOINLINE void MultiplyTileOfGroup(const uint8_t* weights, size_t columns,
                                      const PanelBatch& x, size_t row,
                                      size_t group, const Ahead& ahead,
                                      float* tile) {
  Form::template Group<Rows>(weights, columns, Select<Rows>(x, row, group),
                             ahead, tile + row * kPanelRows);
}

// More rows, in tiles as equal as integers allow, each through one group after
// the other.
template <typename Form, LinesAhead lines>
void MultiplyTiles(const uint8_t* panel, const PanelBatch& x,
                   const uint8_t* next, float* tile) {
  const Groups<Form, kTileGroupsAhead> groups = {panel, x.columns, next};
  const size_t tiles = NumTiles(x);
  for (size_t group = 0; group < groups.Count(); ++group) {
    const uint8_t* ahead = groups.Ahead(group);
    for (size_t t = 0; t < tiles; ++t) {
      const size_t row = t * x.size / tiles;
      const auto share = [&] {
        if constexpr (lines == LinesAhead::kIntoLevel2) {
          return ShareByLine(t, tiles, groups.At(group), ahead);
        } else {
          return ShareOf<LocalityFor(lines, /*one_tile=*/false)>(
              t, tiles, Form::kLinesPerUnit, Form::kUnits, ahead);
        }
      }();
      WithRows((t + 1) * x.size / tiles - row, [&](auto rows) {
        MultiplyTileOfGroup<rows(), Form>(groups.At(group),
                                          groups.Columns(group), x, row, group,
                                          share, tile);
      });
    }
  }
}

template <typename Form, LinesAhead lines>
void Multiply(const uint8_t* panel, const PanelBatch& x, const uint8_t* next,
              float* tile) {
  for (size_t i = 0; i < x.size * kPanelRows; i += 16) {
    _mm512_store_ps(tile + i, _mm512_setzero_ps());
  }
  if (NumTiles(x) != 1) {  // No rows are no tiles.
    return MultiplyTiles<Form, lines>(panel, x, next, tile);
  }
  WithRows(x.size, [&](auto rows) {
    MultiplyOneTile<rows(), Form, lines>(panel, x, next, tile);
  });
}

template <LinesAhead lines>
constexpr IntegerPanelKernels kKernels = {
    .int8 = &Multiply<Int8Weights, lines>,
    .int4 = &Multiply<Int4Weights, lines>};

}  // namespace

IntegerPanelKernels Avx512VnniPanelKernels(LinesAhead lines) {
  switch (lines) {
    case LinesAhead::kForeseen:
      return kKernels<LinesAhead::kForeseen>;
    case LinesAhead::kIntoLevel1:
      return kKernels<LinesAhead::kIntoLevel1>;
    case LinesAhead::kIntoLevel2:
      break;
  }
  return kKernels<LinesAhead::kIntoLevel2>;
}

}  // namespace ringfleet::kernels
HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
