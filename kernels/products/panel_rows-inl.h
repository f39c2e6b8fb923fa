// SPDX-License-Identifier: Apache-2.0
// The loop of Highway's panel kernels over a panel: group by group of
// kActivationGroup columns. A group of the weights (4 KB of int8, 8 of bf16, 16
// of f32) stays in the level-1 or 2 cache while all rows of activations pass.
// Some rows pass at a time; their sums stay in registers. Compiled once per
// target.
//
// A form of weights is a class with
//   kGroupBytes, kUnitColumns        of a group; columns of the smallest part
//   kVectors<Rows>                   vectors of sums of each of Rows rows
//   RowGroup, its Set(x, row, group) a row of activations in one group
//   Block<Rows>(weights, units, rows, output, later, tile)
//     adds the products of a group with `rows` to outputs [output, output +
//     kVectors<Rows> * lanes) of `tile`. It asks the memory for its outputs'
//     part of the group `later` (null: none), some of it in each step: all
//     lines at once would wait for each other (one row of bf16 on Zen 5 99 % of
//     a sum's rate instead of 84, six rows of int8 on Zen 3 69 instead of 49)
#if defined(RINGFLEET_KERNELS_PANEL_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFLEET_KERNELS_PANEL_ROWS_INL_H_
#undef RINGFLEET_KERNELS_PANEL_ROWS_INL_H_
#else
#define RINGFLEET_KERNELS_PANEL_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/products/panel.h"
#include "kernels/products/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace ringfleet::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows that share a pass over a group of weights. 16 registers hold two vectors
// of sums for each, two of weights, one of codes and one of products.
constexpr size_t kMaxRows = 6;

// Returns how many of `left` rows go together next. The last passes get about
// equally many.
inline size_t RowsTogether(size_t left) {
  if (left <= kMaxRows) return left;
  return left < 2 * kMaxRows ? (left + 1) / 2 : kMaxRows;
}

// Multiplies `units` of one group of weights with Rows rows. `later` is a group
// to ask for; null if it was asked for.
template <class Weights, size_t Rows>
HWY_NOINLINE void MultiplyRows(const uint8_t* weights, size_t units,
                               const typename Weights::RowGroup* rows,
                               const uint8_t* later, float* tile) {
  const size_t outputs =
      Weights::template kVectors<Rows> * hn::Lanes(hn::CappedTag<float, 16>());
  for (size_t output = 0; output < kPanelRows; output += outputs) {
    Weights::template Block<Rows>(weights, units, rows, output, later, tile);
  }
}

template <class Weights>
void MultiplyCount(size_t count, const uint8_t* weights, size_t units,
                   const typename Weights::RowGroup* rows, const uint8_t* later,
                   float* tile) {
  static constexpr decltype(&MultiplyRows<Weights, 1>) kKernels[kMaxRows] = {
      &MultiplyRows<Weights, 1>, &MultiplyRows<Weights, 2>,
      &MultiplyRows<Weights, 3>, &MultiplyRows<Weights, 4>,
      &MultiplyRows<Weights, 5>, &MultiplyRows<Weights, 6>};
  kKernels[count - 1](weights, units, rows, later, tile);
}

// tile[i][o] = sums of all groups, added up in ascending order. A group asks
// for the bytes `ahead` behind its beginning (0: none), past the panel's end
// for those of `next`.
template <class Weights>
void MultiplyGroups(const uint8_t* panel, const PanelBatch& x, size_t ahead,
                    const uint8_t* next, float* tile) {
  std::fill_n(tile, x.size * kPanelRows, 0.0f);
  typename Weights::RowGroup rows[kMaxPanelBatch];
  const size_t groups = (x.columns + kActivationGroup - 1) / kActivationGroup;
  const uint8_t* const end = panel + groups * Weights::kGroupBytes;
  for (size_t group = 0; group < groups; ++group) {
    const size_t columns =
        std::min(kActivationGroup, x.columns - group * kActivationGroup);
    const size_t units =
        (columns + Weights::kUnitColumns - 1) / Weights::kUnitColumns;
    for (size_t i = 0; i < x.size; ++i) rows[i].Set(x, i, group);
    const uint8_t* weights = panel + group * Weights::kGroupBytes;
    const uint8_t* const later =
        ahead > 0 ? GroupAhead(weights, ahead, end, next) : nullptr;
    for (size_t row = 0; row < x.size;) {
      const size_t count = RowsTogether(x.size - row);
      MultiplyCount<Weights>(count, weights, units, rows + row,
                             row == 0 ? later : nullptr,
                             tile + row * kPanelRows);
      row += count;
    }
  }
}

}  // namespace ringfleet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RINGFLEET_KERNELS_PANEL_ROWS_INL_H_
