// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/matmul.h"

#include <algorithm>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/isa.h"
#include "kernels/products/panel.h"
#include "kernels/products/prefetch.h"
#include "kernels/products/row_batches.h"

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

// Where the panel `index` behind the first of the product lies, as far as one
// does.
const uint8_t* PanelOrNull(const MatMulArgs& args, size_t index) {
  return PanelOrNull(*args.w, FirstPanel(args) + index);
}

// y[i][o] = x[i] . w[first_row + o], o < num_rows.
void MultiplyRows(const WeightMatrix& w, size_t first_row, size_t num_rows,
                  const PanelBatch& x, const uint8_t* next, float* const* y) {
  const auto ask_for = [&](size_t first) {
    const size_t size = std::min(num_rows - first, kPanelRows);
    for (size_t i = 0; i < x.size; ++i) Prefetch(y[i] + first, size);
  };
  ask_for(0);
  MultiplyPanels(
      w, first_row, num_rows, x, next, [&](const PanelResults& results) {
        ask_for(results.first + results.size);
        for (size_t i = 0; i < x.size; ++i) {
          std::copy_n(results.Row(i), results.size, y[i] + results.first);
        }
      });
}

// Computes the outputs of panels [begin, end), counted from the product's
// first.
void MultiplyPanelsOf(const MatMulArgs& args, size_t begin, size_t end,
                      const uint8_t* next) {
  // More rows than go together pass each panel while a cache has it.
  const size_t together = args.batch <= kMaxPanelBatch ? end - begin : 1;
  for (size_t panel = begin; panel < end; panel += together) {
    const auto row_at = [&](size_t index) {
      return std::clamp((FirstPanel(args) + index) * kPanelRows, args.first_row,
                        args.first_row + args.num_rows);
    };
    const size_t first_row = row_at(panel);
    const size_t num_rows = row_at(panel + together) - first_row;
    const uint8_t* const after =
        panel + together < end ? PanelOrNull(args, panel + together) : next;
    for (size_t first = 0; first < args.batch; first += kMaxPanelBatch) {
      PanelBatch batch;
      float* y[kMaxPanelBatch];
      const size_t count = std::min(kMaxPanelBatch, args.batch - first);
      for (size_t i = 0; i < count; ++i) {
        batch.Add(*args.x, args.first_x + (first + i) * args.x_step);
        y[i] =
            args.y + (first + i) * args.y_stride + first_row - args.first_row;
      }
      MultiplyRows(*args.w, first_row, num_rows, batch, after, y);
    }
  }
}

// Whole panels.
size_t TileOutputs(const MatMulRangesArgs& args) {
  return std::max<size_t>(args.tile_columns / kPanelRows, 1) * kPanelRows;
}

}  // namespace

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
    size_t first = 0;  // First panel of a product.
    for (const MatMulArgs& args : products) {
      const size_t last = first + NumPanels(args);
      const size_t from = std::max(begin, first);
      const size_t to = std::min(end, last);
      if (from < to) {
        MultiplyPanelsOf(args, from - first, to - first,
                         PanelOrNull(args, to - first));
      }
      first = last;
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

size_t NumTiles(const MatMulRangesArgs& args) {
  const size_t width = TileOutputs(args);
  return (args.w->rows() + width - 1) / width;
}

void MultiplyTile(const MatMulRangesArgs& args, size_t tile) {
  for (const RowRange range : args.ranges) {
    RF_CHECK(range.begin >= args.first_y && range.end <= args.x->rows());
  }
  RF_CHECK(args.ranges.empty() ||
           args.x->form() == ActivationFormFor(args.w->form()));
  const size_t first_row = tile * TileOutputs(args);
  const size_t num_rows =
      std::min(TileOutputs(args), args.w->rows() - first_row);
  const uint8_t* const next =
      PanelOrNull(*args.w, (first_row + num_rows) / kPanelRows);
  RowBatches batches(*args.x, args.ranges);
  for (;;) {
    PanelBatch batch;
    size_t rows[kMaxPanelBatch];
    const size_t count = batches.Next(batch, rows);
    if (count == 0) return;
    float* y[kMaxPanelBatch];
    for (size_t i = 0; i < count; ++i) {
      y[i] = args.y + (rows[i] - args.first_y) * args.y_stride + first_row;
    }
    MultiplyRows(*args.w, first_row, num_rows, batch, next, y);
  }
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
  // Where a head's rows begin inside a panel, it touches one more.
  const size_t panels = args.first.num_rows / kPanelRows + 2;
  pool.ParallelFor(
      args.heads * panels, Grain(args.first), [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end;) {
          const size_t head = i / panels;
          const size_t after = std::min(end, (head + 1) * panels);
          const MatMulArgs moved = product(head);
          const size_t first = i - head * panels;
          const size_t last = std::min(after - head * panels, NumPanels(moved));
          if (first < last) {
            const uint8_t* next = PanelOrNull(moved, last);
            if (last == NumPanels(moved)) {
              // The next head's rows may lie far behind this one's.
              next = head + 1 < args.heads ? PanelOrNull(product(head + 1), 0)
                                           : nullptr;
            }
            MultiplyPanelsOf(moved, first, last, next);
          }
          i = after;
        }
      });
}

}  // namespace ringfleet::kernels
