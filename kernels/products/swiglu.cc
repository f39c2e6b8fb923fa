// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/swiglu.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/elementwise.h"
#include "kernels/products/matmul.h"
#include "kernels/products/panel.h"
#include "kernels/products/prefetch.h"
#include "kernels/products/row_batches.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kPanelsPerGroup = kActivationGroup / kPanelRows;
static_assert(kActivationGroup % kPanelRows == 0);

// How many rows ahead of those that are set memory is asked for.
constexpr size_t kRowsAhead = 16;

size_t NumGroups(const SwigluExpert& expert) {
  return (expert.gate->rows() + kActivationGroup - 1) / kActivationGroup;
}

// Rows [first, first + size) of an expert.
PanelBatch Gather(const Activations& x, absl::Span<const uint32_t> rows,
                  size_t first, size_t size) {
  PanelBatch batch;
  for (size_t i = 0; i < size; ++i) batch.Add(x, rows[first + i]);
  return batch;
}

// MultiplyGateAndUp for an expert whose products are already computed.
void TakeGateAndUp(const SwigluExpert& expert, size_t begin, size_t end,
                   Activations* hidden) {
  const size_t width = expert.gate->rows();
  for (size_t i = 0; i < expert.rows.size(); ++i) {
    const size_t row = expert.rows[i] * width;
    for (size_t group = begin; group < end; ++group) {
      const size_t first = group * kActivationGroup;
      const size_t size = std::min(kActivationGroup, width - first);
      float values[kActivationGroup];
      std::copy_n(expert.gate_x + row + first, size, values);
      SiluMultiply(values, expert.up_x + row + first, size);
      hidden->SetGroup(i, group, values);
    }
  }
}

// Groups [begin, end) of columns of `hidden`, for all rows of an expert. `next`
// are weights this thread reads afterwards, or null.
void MultiplyGateAndUp(const SwigluExpert& expert, const Activations& x,
                       size_t begin, size_t end, const uint8_t* next,
                       Activations* hidden) {
  if (expert.gate_x != nullptr) {
    return TakeGateAndUp(expert, begin, end, hidden);
  }
  // So many of each matrix before the other one as the results have room for.
  const size_t together =
      std::max<size_t>(kMaxPanelBatch / expert.rows.size(), 1);
  for (size_t group = begin; group < end; group += together) {
    const size_t last = std::min(group + together, end);
    const size_t first_row = group * kActivationGroup;
    const size_t width =
        std::min(last * kActivationGroup, expert.gate->rows()) - first_row;
    const uint8_t* const after =
        last < end ? PanelOrNull(*expert.gate, last * kPanelsPerGroup) : next;
    for (size_t first = 0; first < expert.rows.size();
         first += kMaxPanelBatch) {
      const size_t count = std::min(kMaxPanelBatch, expert.rows.size() - first);
      const PanelBatch batch = Gather(x, expert.rows, first, count);
      float values[kMaxPanelBatch * kActivationGroup];
      const auto row = [&](size_t i) { return values + i * width; };
      MultiplyPanels(*expert.gate, first_row, width, batch,
                     PanelOrNull(*expert.up, group * kPanelsPerGroup),
                     [&](const PanelResults& gate) {
                       for (size_t i = 0; i < count; ++i) {
                         std::copy_n(gate.Row(i), gate.size,
                                     row(i) + gate.first);
                       }
                     });
      MultiplyPanels(*expert.up, first_row, width, batch, after,
                     [&](const PanelResults& up) {
                       for (size_t i = 0; i < count; ++i) {
                         SiluMultiply(row(i) + up.first, up.Row(i), up.size);
                       }
                     });
      for (size_t i = 0; i < count; ++i) {
        for (size_t g = group; g < last; ++g) {
          hidden->SetGroup(first + i, g,
                           row(i) + (g - group) * kActivationGroup);
        }
      }
    }
  }
}

// Sums of a thread that stay in a level-1 cache of 32 KB beside some of the
// weights: one row of 64 panels.
constexpr size_t kDownSums = 64 * kPanelRows;

// Adds an expert's part to outputs [first_row, first_row + width), for some of
// its rows.
void AddDown(const SwigluExpert& expert, const Activations& hidden,
             absl::Span<const RowRange> pieces, size_t first_row, size_t width,
             const uint8_t* next, size_t hidden_size, const SwigluOutput& out) {
  RowBatches batches(hidden, pieces);
  for (;;) {
    PanelBatch batch;
    size_t rows[kMaxPanelBatch];
    const size_t count = batches.Next(batch, rows);
    if (count == 0) return;
    MultiplyPanels(
        *expert.down, first_row, width, batch, next,
        [&](const PanelResults& results) {
          for (size_t i = 0; i < count; ++i) {
            const size_t row = expert.rows[rows[i]] - out.first_y;
            const float weight =
                expert.weights == nullptr ? 1.0f : expert.weights[rows[i]];
            AddScaledTo(weight, results.Row(i), results.size,
                        out.y + row * hidden_size + first_row + results.first);
          }
        });
  }
}

// Which of an expert's rows are rows of `range`.
RowRange PieceOf(const SwigluExpert& expert, const RowRange& range) {
  const auto index = [&expert](size_t row) {
    return static_cast<size_t>(
        std::lower_bound(expert.rows.begin(), expert.rows.end(), row) -
        expert.rows.begin());
  };
  return {index(range.begin), index(range.end)};
}

}  // namespace

void SwigluHidden(absl::Span<const SwigluExpert> experts, const Activations& x,
                  SwigluWorkspace* workspace, ThreadPool& pool) {
  std::vector<Activations>& hidden = workspace->hidden;
  if (hidden.size() < experts.size()) hidden.resize(experts.size());
  std::vector<size_t>& first_task = workspace->first_task;
  first_task.assign(1, 0);
  size_t work = 1;
  for (size_t e = 0; e < experts.size(); ++e) {
    const SwigluExpert& expert = experts[e];
    const size_t width = expert.gate->rows();
    RF_CHECK(expert.up->rows() == width && expert.down->columns() == width);
    const bool visited = !expert.rows.empty() && width > 0;
    first_task.push_back(first_task.back() + (visited ? NumGroups(expert) : 0));
    if (!visited) continue;
    hidden[e].Reshape(ActivationFormFor(expert.down->form()),
                      expert.rows.size(), width);
    work =
        std::max(work, 2 * kActivationGroup * x.columns() * expert.rows.size());
  }

  const auto visited = [&](size_t e) {
    return first_task[e + 1] > first_task[e];
  };
  pool.ParallelFor(
      first_task.back(), ProductGrain(work), [&](size_t begin, size_t end) {
        size_t e = 0;
        for (size_t task = begin; task < end;) {
          while (task >= first_task[e + 1]) ++e;
          const size_t last = std::min(end, first_task[e + 1]);
          const size_t group = task - first_task[e];
          const size_t last_group = last - first_task[e];
          size_t following = e;
          if (last == first_task[e + 1]) {
            do {
              ++following;
            } while (following < experts.size() && !visited(following));
          }
          const uint8_t* next =
              following == experts.size()
                  ? nullptr
                  : PanelOrNull(
                        *experts[following].gate,
                        following == e ? last_group * kPanelsPerGroup : 0);
          MultiplyGateAndUp(experts[e], x, group, last_group, next, &hidden[e]);
          task = last;
        }
      });
}

void SwigluDown(absl::Span<const SwigluExpert> experts, size_t hidden_size,
                const SwigluOutput& out, SwigluWorkspace* workspace,
                ThreadPool& pool) {
  const size_t ranges = out.rows.size();
  std::vector<RowRange>& all_pieces = workspace->pieces;
  all_pieces.clear();
  size_t work = 0;
  for (size_t e = 0; e < experts.size(); ++e) {
    const SwigluExpert& expert = experts[e];
    RF_CHECK(expert.down->rows() == hidden_size);
    RF_CHECK(expert.rows.empty() || expert.down->columns() == 0 ||
             workspace->hidden[e].rows() == expert.rows.size());
    for (const RowRange& range : out.rows) {
      all_pieces.push_back(expert.down->columns() > 0 ? PieceOf(expert, range)
                                                      : RowRange());
      work += kPanelRows * expert.down->columns() * all_pieces.back().size();
    }
  }
  const auto pieces = [&](size_t e) {
    return absl::MakeConstSpan(all_pieces).subspan(e * ranges, ranges);
  };
  // The first from `e` on that has rows.
  const auto visited_from = [&](size_t e) {
    const auto empty = [](const RowRange& piece) { return piece.size() == 0; };
    while (e < experts.size() &&
           std::all_of(pieces(e).begin(), pieces(e).end(), empty)) {
      ++e;
    }
    return e;
  };

  size_t rows = 0;
  for (const RowRange& range : out.rows) rows += range.size();
  // Panels of an expert before the next one's.
  const size_t together =
      std::max<size_t>(kDownSums / kPanelRows / std::max<size_t>(rows, 1), 1);
  const size_t panels = (hidden_size + kPanelRows - 1) / kPanelRows;
  pool.ParallelFor(panels, ProductGrain(work), [&](size_t begin, size_t end) {
    for (size_t panel = begin; panel < end; panel += together) {
      const size_t last = std::min(panel + together, end);
      const size_t first = panel * kPanelRows;
      const size_t width = std::min(last * kPanelRows, hidden_size) - first;
      for (const RowRange& range : out.rows) {
        for (size_t row = range.begin; row < range.end; ++row) {
          float* const sums = out.y + (row - out.first_y) * hidden_size + first;
          if (row + kRowsAhead < range.end) {
            Prefetch(sums + kRowsAhead * hidden_size, width);
          }
          std::fill_n(sums, width, 0.0f);
        }
      }
      for (size_t e = visited_from(0); e < experts.size();) {
        const size_t following = visited_from(e + 1);
        const uint8_t* next =
            following < experts.size()
                ? PanelOrNull(*experts[following].down, panel)
                : PanelOrNull(*experts[visited_from(0)].down, last);
        AddDown(experts[e], workspace->hidden[e], pieces(e), first, width, next,
                hidden_size, out);
        e = following;
      }
    }
  });
}

void Swiglu(absl::Span<const SwigluExpert> experts, const Activations& x,
            size_t hidden_size, const SwigluOutput& out,
            SwigluWorkspace* workspace, ThreadPool& pool) {
  SwigluHidden(experts, x, workspace, pool);
  SwigluDown(experts, hidden_size, out, workspace, pool);
}

}  // namespace ringfleet::kernels
