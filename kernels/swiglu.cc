// SPDX-License-Identifier: Apache-2.0
#include "kernels/swiglu.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/panel.h"
#include "kernels/prefetch.h"
#include "kernels/row_batches.h"

namespace ringfleet::kernels {
namespace {

constexpr size_t kPanelsPerGroup = kActivationGroup / kPanelRows;
static_assert(kActivationGroup % kPanelRows == 0);

// How many rows ahead of those that are set memory is asked for.
constexpr size_t kRowsAhead = 16;

size_t NumGroups(const SwigluExpert& expert) {
  return (expert.gate->rows() + kActivationGroup - 1) / kActivationGroup;
}

const uint8_t* PanelOrNull(const WeightMatrix& w, size_t panel) {
  return panel < w.num_panels() && w.panel_bytes() > 0 ? w.Panel(panel)
                                                       : nullptr;
}

// Rows [first, first + size) of an expert.
PanelBatch Gather(const Activations& x, absl::Span<const uint32_t> rows,
                  size_t first, size_t size) {
  PanelBatch batch;
  for (size_t i = 0; i < size; ++i) batch.Add(x, rows[first + i]);
  return batch;
}

// One group of columns of `hidden`, for all rows of an expert. `next` are
// weights this thread reads afterwards, or null.
void MultiplyGateAndUp(const SwigluExpert& expert, const Activations& x,
                       size_t group, const uint8_t* next, Activations* hidden) {
  const size_t first_panel = group * kPanelsPerGroup;
  const size_t panels =
      std::min(kPanelsPerGroup, expert.gate->num_panels() - first_panel);
  for (size_t first = 0; first < expert.rows.size(); first += kMaxPanelBatch) {
    const size_t count = std::min(kMaxPanelBatch, expert.rows.size() - first);
    const PanelBatch batch = Gather(x, expert.rows, first, count);
    float values[kMaxPanelBatch][kActivationGroup];
    for (size_t p = 0; p < panels; ++p) {
      const size_t panel = first_panel + p;
      PanelTile gate;
      PanelTile up;
      MultiplyPanel(*expert.gate, panel, batch, PanelOrNull(*expert.up, panel),
                    &gate);
      MultiplyPanel(
          *expert.up, panel, batch,
          p + 1 < panels ? PanelOrNull(*expert.gate, panel + 1) : next, &up);
      const size_t width =
          std::min(kPanelRows, expert.gate->rows() - panel * kPanelRows);
      for (size_t i = 0; i < count; ++i) {
        SiluMultiply(gate.Row(i), up.Row(i), width);
        std::copy_n(gate.Row(i), width, values[i] + p * kPanelRows);
      }
    }
    for (size_t i = 0; i < count; ++i) {
      hidden->SetGroup(first + i, group, values[i]);
    }
  }
}

// Adds an expert's part to one panel of outputs, for some of its rows.
void AddDown(const SwigluExpert& expert, const Activations& hidden,
             absl::Span<const RowRange> pieces, size_t panel,
             const uint8_t* next, size_t hidden_size, const SwigluOutput& out) {
  const size_t width = std::min(kPanelRows, hidden_size - panel * kPanelRows);
  RowBatches batches(hidden, pieces);
  for (;;) {
    PanelBatch batch;
    size_t rows[kMaxPanelBatch];
    const size_t count = batches.Next(batch, rows);
    if (count == 0) return;
    PanelTile tile;
    MultiplyPanel(*expert.down, panel, batch, next, &tile);
    for (size_t i = 0; i < count; ++i) {
      float* sums = out.y + (expert.rows[rows[i]] - out.first_y) * hidden_size +
                    panel * kPanelRows;
      const float weight =
          expert.weights == nullptr ? 1.0f : expert.weights[rows[i]];
      AddScaledTo(weight, tile.Row(i), width, sums);
    }
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
        for (size_t task = begin; task < end; ++task) {
          while (task >= first_task[e + 1]) ++e;
          const SwigluExpert& expert = experts[e];
          const size_t group = task - first_task[e];
          size_t following = e;
          if (group + 1 == NumGroups(expert)) {
            do {
              ++following;
            } while (following < experts.size() && !visited(following));
          }
          const uint8_t* next =
              following == experts.size()
                  ? nullptr
                  : PanelOrNull(
                        *experts[following].gate,
                        following == e ? (group + 1) * kPanelsPerGroup : 0);
          MultiplyGateAndUp(expert, x, group, next, &hidden[e]);
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

  const size_t panels = (hidden_size + kPanelRows - 1) / kPanelRows;
  pool.ParallelFor(panels, ProductGrain(work), [&](size_t begin, size_t end) {
    for (size_t panel = begin; panel < end; ++panel) {
      const size_t first = panel * kPanelRows;
      const size_t width = std::min(kPanelRows, hidden_size - first);
      for (const RowRange& rows : out.rows) {
        for (size_t row = rows.begin; row < rows.end; ++row) {
          float* const sums = out.y + (row - out.first_y) * hidden_size + first;
          if (row + kRowsAhead < rows.end) {
            Prefetch(sums + kRowsAhead * hidden_size, width);
          }
          std::fill_n(sums, width, 0.0f);
        }
      }
      for (size_t e = visited_from(0); e < experts.size();) {
        const size_t following = visited_from(e + 1);
        const uint8_t* next =
            following == experts.size()
                ? nullptr
                : PanelOrNull(*experts[following].down, panel);
        AddDown(experts[e], workspace->hidden[e], pieces(e), panel, next,
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
