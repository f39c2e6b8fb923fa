// SPDX-License-Identifier: Apache-2.0
#include "worker/model/expert_exchange.h"

#include <algorithm>

#include "cluster/process/status_macros.h"
#include "kernels/elementwise.h"
#include "worker/model/moe_layer.h"
#include "worker/model/route_records.h"
#include "worker/model/row_gather.h"

namespace ringfleet::worker {
namespace {

// Replaces the own routes by those of all groups' rows, in group order.
absl::Status ShareRoutes(LayerContext& context) {
  const cluster::TraceScope scope(context.trace, "share routes");
  const GroupRows& rows = context.group_rows;
  TimedCommunicator& axis = *context.data_axis;
  RouteRecords routes(context, rows.all());
  const size_t bytes = routes.bytes();
  std::vector<uint64_t>& offsets = axis.gather_offsets();
  offsets.clear();
  for (const uint64_t offset : rows.offsets) offsets.push_back(offset * bytes);
  char* const records = Grow(axis.gather_buffer(), rows.all() * bytes);
  for (size_t row = 0; row < rows.own(); ++row) {
    routes.Store(row, records + (rows.begin() + row) * bytes);
  }
  RF_RETURN_IF_ERROR(
      axis.AllGather(absl::MakeSpan(records, rows.all() * bytes), offsets));
  for (size_t row = 0; row < rows.all(); ++row) {
    routes.Load(row, records + row * bytes);
  }
  return CheckRoutes(context, rows.all());
}

// Lists the rows that this rank sends to each group and receives from it.
void PlanExchange(LayerContext& context) {
  RowExchange& exchange = context.workspace.exchange;
  const GroupRows& rows = context.group_rows;
  const size_t chosen = context.spec.num_experts_per_tok;
  const int axis = context.plan.mesh.expert;
  const int own_coordinate = context.plan.expert_coordinate;
  const absl::Span<const int32_t> coordinates =
      context.workspace.dispatch.coordinates();
  const auto goes_to = [&](size_t row, int coordinate) {
    const absl::Span<const int32_t> of_row =
        coordinates.subspan(row * chosen, chosen);
    return std::find(of_row.begin(), of_row.end(), coordinate) != of_row.end();
  };
  exchange.sent_rows.clear();
  exchange.received_rows.clear();
  exchange.sent_ends.assign(1, 0);
  exchange.received_ends.assign(1, 0);
  for (int group = 0; group < context.plan.mesh.data; ++group) {
    if (group != rows.group || context.reproducible) {
      const int their_coordinate = group * axis + own_coordinate % axis;
      for (size_t row = 0; row < rows.own(); ++row) {
        if (!goes_to(rows.begin() + row, their_coordinate)) continue;
        exchange.sent_rows.push_back(static_cast<uint32_t>(row));
      }
      for (size_t row = rows.offsets[group]; row < rows.offsets[group + 1];
           ++row) {
        if (!goes_to(row, own_coordinate)) continue;
        exchange.received_rows.push_back(static_cast<uint32_t>(row));
      }
    }
    exchange.sent_ends.push_back(exchange.sent_rows.size());
    exchange.received_ends.push_back(exchange.received_rows.size());
  }
}

void Scale(absl::Span<const uint64_t> rows, size_t row_size,
           std::vector<uint64_t>& out) {
  out.clear();
  for (const uint64_t row : rows) out.push_back(row * row_size);
}

// Sends rows of x and sets exchange.x to the own rows and the received ones.
absl::Status ExchangeActivations(LayerContext& context,
                                 const kernels::Activations& x) {
  const cluster::TraceScope scope(context.trace, "dispatch");
  RowExchange& exchange = context.workspace.exchange;
  const size_t row_bytes = x.StoredRowBytes();
  const size_t own = context.group_rows.own();
  const size_t sent = exchange.sent_rows.size();
  const size_t received = exchange.received_rows.size();
  char* const out = Grow(exchange.sent, sent * row_bytes);
  char* const in = Grow(exchange.received, received * row_bytes);
  context.pool.ParallelFor(sent, kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      x.StoreRow(exchange.sent_rows[i], out + i * row_bytes);
    }
  });
  Scale(exchange.sent_ends, row_bytes, exchange.from);
  Scale(exchange.received_ends, row_bytes, exchange.to);
  RF_RETURN_IF_ERROR(context.data_axis->AllToAll(
      absl::MakeConstSpan(out, sent * row_bytes), exchange.from,
      absl::MakeSpan(in, received * row_bytes), exchange.to));
  exchange.x.Reshape(x.form(), own + received, context.spec.hidden_size);
  context.pool.ParallelFor(
      own + received, kRowGrain, [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
          if (row >= own) {
            exchange.x.LoadRow(row, in + (row - own) * row_bytes);
          } else if (x.form() == kernels::Activations::Form::kF32) {
            exchange.x.SetRow(row, x.Values(row));
          } else {
            exchange.x.SetCodes(row,
                                reinterpret_cast<const char*>(x.Codes(row)),
                                reinterpret_cast<const char*>(x.Scales(row)));
          }
        }
      });
  return absl::OkStatus();
}

// Replaces the workspace's routes by those of the rows of exchange.x. Own rows
// keep no routes if they are among the received ones.
void KeepRoutes(LayerContext& context) {
  Workspace& workspace = context.workspace;
  RowExchange& exchange = workspace.exchange;
  const GroupRows& rows = context.group_rows;
  const size_t chosen = context.spec.num_experts_per_tok;
  const size_t count = rows.own() + exchange.received_rows.size();
  int32_t* const replicas = Grow(exchange.replicas, count * chosen);
  float* const weights = Grow(exchange.weights, count * chosen);
  for (size_t i = 0; i < count; ++i) {
    const size_t row = i < rows.own() ? rows.begin() + i
                                      : exchange.received_rows[i - rows.own()];
    std::copy_n(workspace.route_replicas.data() + row * chosen, chosen,
                replicas + i * chosen);
    std::copy_n(workspace.route_weights.data() + row * chosen, chosen,
                weights + i * chosen);
    if (context.reproducible && i < rows.own()) {
      std::fill_n(replicas + i * chosen, chosen, -1);
    }
  }
  workspace.route_replicas.swap(exchange.replicas);
  workspace.route_weights.swap(exchange.weights);
}

// Sends back the sums of received rows, which lie behind the own rows in
// `partial`. Adds the returned sums of own rows, group by group.
absl::Status ReturnSums(LayerContext& context, float* partial) {
  const cluster::TraceScope scope(context.trace, "combine");
  RowExchange& exchange = context.workspace.exchange;
  const size_t hidden = context.spec.hidden_size;
  const size_t received = exchange.received_rows.size();
  const size_t sent = exchange.sent_rows.size();
  float* const returned = Grow(exchange.returned, sent * hidden);
  Scale(exchange.received_ends, hidden, exchange.from);
  Scale(exchange.sent_ends, hidden, exchange.to);
  RF_RETURN_IF_ERROR(context.data_axis->AllToAll(
      absl::MakeConstSpan(partial + context.group_rows.own() * hidden,
                          received * hidden),
      exchange.from, absl::MakeSpan(returned, sent * hidden), exchange.to,
      {context.wire, hidden}));
  for (size_t group = 0; group + 1 < exchange.sent_ends.size(); ++group) {
    const size_t first = exchange.sent_ends[group];
    context.pool.ParallelFor(
        exchange.sent_ends[group + 1] - first, kRowGrain,
        [&](size_t begin, size_t end) {
          for (size_t i = first + begin; i < first + end; ++i) {
            kernels::AddTo(returned + i * hidden, hidden,
                           partial + exchange.sent_rows[i] * hidden);
          }
        });
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<float*> ExchangedFeedForward(LayerContext& context,
                                            const LayerWeights& weights,
                                            const kernels::Activations& x,
                                            int layer) {
  RF_RETURN_IF_ERROR(ShareRoutes(context));
  NoteFeedForward(context, weights, layer);
  PlanExchange(context);
  RF_RETURN_IF_ERROR(ExchangeActivations(context, x));
  KeepRoutes(context);
  RowExchange& exchange = context.workspace.exchange;
  const kernels::RowRange rows = {0, exchange.x.rows()};
  float* const partial =
      Grow(context.workspace.partial, rows.end * context.spec.hidden_size);
  if (rows.end > 0) {
    FeedForward(context, weights, exchange.x, /*early=*/{},
                {.y = partial, .rows = {&rows, 1}});
  }
  RF_RETURN_IF_ERROR(ReturnSums(context, partial));
  return partial;
}

}  // namespace ringfleet::worker
