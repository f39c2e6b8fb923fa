// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/dot-inl.h"
#include "kernels/isa.h"
#include "kernels/panel.h"
#include "kernels/prefetch.h"
#include "kernels/row_batches.h"

namespace ringfleet::kernels {
namespace {

// Multiply-adds that one thread does in about the time that waking the pool
// takes (10 us): smaller products, and smaller chunks, don't pay.
constexpr size_t kMinChunkMultiplyAdds = size_t{1} << 16;

void Check(const MatMulArgs& args) {
  RF_CHECK(args.first_row <= args.w->rows());
  RF_CHECK(args.num_rows <= args.w->rows() - args.first_row);
  RF_CHECK(args.batch == 0 ||
           args.first_x + (args.batch - 1) * args.x_step < args.x->rows());
  RF_CHECK(args.batch == 0 ||
           args.x->form() == ActivationFormFor(args.w->form()));
}

size_t FirstPanel(const MatMulArgs& args) {
  return args.first_row / kPanelRows;
}

size_t NumPanels(const MatMulArgs& args) {
  if (args.num_rows == 0 || args.batch == 0) return 0;
  return (args.first_row + args.num_rows - 1) / kPanelRows + 1 -
         FirstPanel(args);
}

size_t Grain(const MatMulArgs& args) {
  return ProductGrain(kPanelRows * args.w->columns() * args.batch);
}

// What of panel `index`, counted from the first of the product, it asks for.
void MultiplyPanelOf(const MatMulArgs& args, size_t index,
                     const uint8_t* next) {
  const size_t panel = FirstPanel(args) + index;
  const size_t panel_begin = panel * kPanelRows;
  const size_t begin = std::max(args.first_row, panel_begin);
  const size_t end =
      std::min(args.first_row + args.num_rows, panel_begin + kPanelRows);
  for (size_t first = 0; first < args.batch; first += kMaxPanelBatch) {
    PanelBatch batch;
    const size_t count = std::min(kMaxPanelBatch, args.batch - first);
    const auto results = [&](size_t i) {
      return args.y + (first + i) * args.y_stride + begin - args.first_row;
    };
    for (size_t i = 0; i < count; ++i) {
      batch.Add(*args.x, args.first_x + (first + i) * args.x_step);
      Prefetch(results(i), end - begin);
    }
    PanelTile tile;
    MultiplyPanel(*args.w, panel, batch, next, &tile);
    for (size_t i = 0; i < count; ++i) {
      std::copy(tile.Row(i) + (begin - panel_begin),
                tile.Row(i) + (end - panel_begin), results(i));
    }
  }
}

size_t TilePanels(const MatMulRangesArgs& args) {
  return std::max<size_t>(args.tile_columns / kPanelRows, 1);
}

size_t NumTiles(const MatMulRangesArgs& args) {
  const size_t panels = TilePanels(args);
  return (args.w->num_panels() + panels - 1) / panels;
}

void MultiplyTile(const MatMulRangesArgs& args, size_t tile_index) {
  const size_t first = tile_index * TilePanels(args);
  const size_t last = std::min(first + TilePanels(args), args.w->num_panels());
  RowBatches batches(*args.x, args.ranges);
  for (;;) {
    PanelBatch batch;
    size_t rows[kMaxPanelBatch];
    const size_t count = batches.Next(batch, rows);
    if (count == 0) return;
    for (size_t panel = first; panel < last; ++panel) {
      const size_t begin = panel * kPanelRows;
      const size_t size = std::min(kPanelRows, args.w->rows() - begin);
      const auto results = [&](size_t i) {
        return args.y + (rows[i] - args.first_y) * args.y_stride + begin;
      };
      for (size_t i = 0; i < count; ++i) Prefetch(results(i), size);
      PanelTile tile;
      const bool more = panel + 1 < args.w->num_panels();
      MultiplyPanel(*args.w, panel, batch,
                    more && args.w->panel_bytes() > 0 ? args.w->Panel(panel + 1)
                                                      : nullptr,
                    &tile);
      for (size_t i = 0; i < count; ++i) {
        std::copy(tile.Row(i), tile.Row(i) + size, results(i));
      }
    }
  }
}

// Where the panel `index` behind the first of the product lies, as far as one
// does.
const uint8_t* PanelOrNull(const MatMulArgs& args, size_t index) {
  const size_t panel = FirstPanel(args) + index;
  return panel < args.w->num_panels() && args.w->panel_bytes() > 0
             ? args.w->Panel(panel)
             : nullptr;
}

}  // namespace

float Dot(const float* x, const float* w, size_t size) {
  float sum;
  DotRows<1>(w, &x, size, &sum);
  return sum;
}

ProductRows BestProductRows(Activations::Form form) {
  if (form == Activations::Form::kF32) return {.together = 1, .enough = 16};
  switch (CurrentIsa()) {
    case Isa::kSse4:
    case Isa::kAvx2:
    case Isa::kAvx512:
      break;
    case Isa::kAvxVnni:
    case Isa::kAvx512Vnni:
    case Isa::kAvx512Bf16:
      return {.together = 1, .enough = 16};
    case Isa::kAmx:
      return {.together = 16, .enough = 32};
  }
  return {.together = 1, .enough = 8};
}

size_t ProductGrain(size_t multiply_adds) {
  return 1 + kMinChunkMultiplyAdds / std::max<size_t>(multiply_adds, 1);
}

void MatMul(absl::Span<const MatMulArgs> products, ThreadPool& pool) {
  size_t total = 0;
  size_t grain = 1;
  for (const MatMulArgs& args : products) {
    Check(args);
    total += NumPanels(args);
    grain = std::max(grain, Grain(args));
  }
  pool.ParallelFor(total, grain, [products](size_t begin, size_t end) {
    size_t product = 0;
    size_t first = 0;  // Of the product's panels.
    for (size_t i = begin; i < end; ++i) {
      while (i - first >= NumPanels(products[product])) {
        first += NumPanels(products[product++]);
      }
      const MatMulArgs& args = products[product];
      MultiplyPanelOf(args, i - first, PanelOrNull(args, i - first + 1));
    }
  });
}

void MatMul(const WeightMatrix& w, const Activations& x, float* y,
            ThreadPool& pool) {
  const MatMulArgs args = {.w = &w,
                           .num_rows = w.rows(),
                           .x = &x,
                           .batch = x.rows(),
                           .y = y,
                           .y_stride = w.rows()};
  MatMul(absl::MakeConstSpan(&args, 1), pool);
}

void MatMulRanges(absl::Span<const MatMulRangesArgs> products,
                  ThreadPool& pool) {
  size_t tiles = 0;
  size_t grain = 1;
  for (const MatMulRangesArgs& args : products) {
    size_t rows = 0;
    for (const RowRange range : args.ranges) {
      RF_CHECK(range.begin >= args.first_y && range.end <= args.x->rows());
      rows += range.size();
    }
    RF_CHECK(rows == 0 || args.x->form() == ActivationFormFor(args.w->form()));
    tiles += NumTiles(args);
    grain = std::max(grain, ProductGrain(TilePanels(args) * kPanelRows *
                                         args.w->columns() * rows));
  }
  pool.ParallelFor(tiles, grain, [products](size_t begin, size_t end) {
    size_t product = 0;
    size_t first = 0;  // Of the product's tiles.
    for (size_t i = begin; i < end; ++i) {
      while (i - first >= NumTiles(products[product])) {
        first += NumTiles(products[product++]);
      }
      MultiplyTile(products[product], i - first);
    }
  });
}

void MatMulPerHead(const PerHeadArgs& args, ThreadPool& pool) {
  const auto product = [&args](size_t head) {
    MatMulArgs moved = args.first;
    moved.first_row += head * args.row_step;
    moved.first_x += head * args.x_step;
    moved.y += head * args.y_step;
    return moved;
  };
  if (args.heads == 0 || args.first.batch == 0) return;
  Check(product(args.heads - 1));
  // The next head's rows may lie far behind this one's.
  const auto next_panel = [&](size_t head, const MatMulArgs& moved,
                              size_t index) {
    if (index + 1 < NumPanels(moved)) return PanelOrNull(moved, index + 1);
    return head + 1 < args.heads ? PanelOrNull(product(head + 1), 0) : nullptr;
  };
  // Where a head's rows begin inside a panel, it touches one more.
  const size_t panels = args.first.num_rows / kPanelRows + 2;
  pool.ParallelFor(
      args.heads * panels, Grain(args.first), [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
          const size_t head = i / panels;
          const size_t index = i % panels;
          const MatMulArgs moved = product(head);
          if (index >= NumPanels(moved)) continue;
          MultiplyPanelOf(moved, index, next_panel(head, moved, index));
        }
      });
}

}  // namespace ringfleet::kernels
