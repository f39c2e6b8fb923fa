// SPDX-License-Identifier: Apache-2.0
#include "worker/strategies/weight_gather.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cluster/process/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/products/rms_norm.h"
#include "worker/model/mla_layer.h"
#include "worker/model/moe_layer.h"
#include "worker/model/row_gather.h"
#include "worker/strategies/cache_rows.h"
#include "worker/strategies/split_layers.h"

namespace ringfleet::worker {
namespace {

using kernels::WeightMatrix;

// Form and size of a matrix on one rank.
struct MatrixShape {
  kernels::WeightForm form = kernels::WeightForm::kF32;
  size_t rows = 0;
  size_t columns = 0;
  // Returns the bytes up to the next matrix. Kernels want views aligned to 64
  // bytes.
  size_t PaddedBytes() const {
    return (WeightMatrix::Bytes(form, rows, columns) + 63) / 64 * 64;
  }
};

// Returns the shape of the i-th attention matrix that is split by heads: q_b,
// kv_b, uk_transposed, o.
MatrixShape AttentionShape(const cluster::ModelSpec& spec,
                           const cluster::ShardPlan& plan,
                           kernels::WeightForm form, size_t i) {
  const size_t heads = plan.heads.size();
  const size_t nope = spec.qk_nope_head_dim;
  const size_t v_dim = spec.v_head_dim;
  const size_t latent = spec.kv_lora_rank;
  switch (i) {
    case 0:
      return {form, heads * spec.qk_head_dim(),
              static_cast<size_t>(spec.q_lora_rank > 0 ? spec.q_lora_rank
                                                       : spec.hidden_size)};
    case 1:
      return {form, heads * (nope + v_dim), latent};
    case 2:
      return {form, heads * latent, nope};
    default:
      return {form, static_cast<size_t>(spec.hidden_size), heads * v_dim};
  }
}

// Returns the shape of gate, up or down (i = 0, 1, 2) of `width` columns of a
// network.
MatrixShape NetworkShape(const cluster::ModelSpec& spec, size_t width,
                         kernels::WeightForm form, size_t i) {
  const size_t hidden = spec.hidden_size;
  return i < 2 ? MatrixShape{form, width, hidden}
               : MatrixShape{form, hidden, width};
}

// Returns how many columns a rank has of an expert at `coordinate`.
size_t ExpertWidth(const cluster::ShardPlan& plan, int coordinate) {
  return plan.expert_coordinate == coordinate ? plan.expert_columns.size() : 0;
}

// All-gathers `count` matrices of which each rank has its shard:
//   shape(rank, i)  shape of the rank's i-th matrix
//   own[i]          this rank's matrix; not read where its shape is empty
//   use(rank, views) is called in rank order with views of the rank's matrices,
//     which are valid until the next call of this function
template <size_t kCount, typename Shape, typename Use>
absl::Status GatherMatrices(LayerContext& context, Shape shape,
                            const std::array<const WeightMatrix*, kCount>& own,
                            Use use) {
  TimedCommunicator& communicator = context.communicator;
  std::vector<uint64_t>& offsets = communicator.gather_offsets();
  offsets.assign(1, 0);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < kCount; ++i) bytes += shape(rank, i).PaddedBytes();
    offsets.push_back(offsets.back() + bytes);
  }
  kernels::AlignedBuffer& buffer = context.workspace.gathered_weights;
  if (buffer.size() < offsets.back()) {
    buffer = kernels::AlignedBuffer();
    RF_ASSIGN_OR_RETURN(buffer,
                        kernels::AlignedBuffer::Allocate(offsets.back()));
  }
  char* at = buffer.data() + offsets[communicator.rank()];
  for (size_t i = 0; i < kCount; ++i) {
    const MatrixShape mine = shape(communicator.rank(), i);
    const uint64_t bytes =
        WeightMatrix::Bytes(mine.form, mine.rows, mine.columns);
    if (bytes > 0) std::memcpy(at, own[i]->data(), bytes);
    at += mine.PaddedBytes();
  }
  RF_RETURN_IF_ERROR(communicator.AllGather(
      absl::MakeSpan(buffer.data(), offsets.back()), offsets));
  const char* data = buffer.data();
  for (int rank = 0; rank < communicator.size(); ++rank) {
    std::array<WeightMatrix, kCount> views;
    for (size_t i = 0; i < kCount; ++i) {
      const MatrixShape other = shape(rank, i);
      // The workspace owns the memory and outlives every view.
      views[i] = WeightMatrix::View(
          other.form, other.rows, other.columns, data,
          std::shared_ptr<const void>(std::shared_ptr<const void>(), data));
      data += other.PaddedBytes();
    }
    use(rank, std::move(views));
  }
  return absl::OkStatus();
}

// Adds summand [size] to sum.
void AddAll(LayerContext& context, const float* summand, size_t size,
            float* sum) {
  constexpr size_t kGrain = size_t{1} << 14;
  context.pool.ParallelFor(size, kGrain, [&](size_t begin, size_t end) {
    kernels::AddTo(summand + begin, end - begin, sum + begin);
  });
}

// Sets workspace.own_batch to this rank's rows of the batch and returns it.
const Batch& OwnRows(LayerContext& context, const Batch& batch,
                     const RowSplit& split) {
  Batch& own = context.workspace.own_batch;
  own.ids.assign(batch.ids.begin() + static_cast<ptrdiff_t>(split.begin()),
                 batch.ids.begin() + static_cast<ptrdiff_t>(split.end()));
  own.spans.clear();
  for (const BatchSpan& span : batch.spans) {
    const size_t begin = std::max(split.begin(), span.first_row);
    const size_t end = std::min(split.end(), span.first_row + span.rows);
    if (begin >= end) continue;
    BatchSpan& part = own.spans.emplace_back(span);
    part.first_row = begin - split.begin();
    part.rows = end - begin;
    part.first_position += static_cast<int64_t>(begin - span.first_row);
  }
  return own;
}

// Gathers the cache rows of all rows into every rank's cache.
absl::Status GatherCacheRows(LayerContext& context, const Batch& batch,
                             const RowSplit& split, int layer) {
  CacheRows rows(context, batch, layer);
  return GatherRows(
      context, split, rows.bytes(),
      [&](size_t i, char* record) { rows.Store(i, record); },
      [&](size_t row, const char* record) { rows.Load(row, record); });
}

// Adds the attention of all heads to sum [own rows, D].
absl::Status AddAttention(LayerContext& context,
                          const AttentionWeights& weights, const Batch& own,
                          int layer, const kernels::Activations& query_x,
                          float* sum) {
  const cluster::ModelSpec& spec = context.spec;
  const auto shape = [&](int rank, size_t i) {
    return AttentionShape(spec, context.plans[rank], weights.o.form(), i);
  };
  const size_t size = own.rows() * spec.hidden_size;
  float* partial = Grow(context.workspace.partial, size);
  return GatherMatrices<4>(
      context, shape,
      {&weights.q_b, &weights.kv_b, &weights.uk_transposed, &weights.o},
      [&](int, std::array<WeightMatrix, 4> views) {
        if (own.rows() == 0 || views[3].columns() == 0) return;
        AttentionWeights shard;
        shard.q_b = std::move(views[0]);
        shard.kv_b = std::move(views[1]);
        shard.uk_transposed = std::move(views[2]);
        shard.o = std::move(views[3]);
        Attend(context, shard, own, layer, query_x, partial);
        AddAll(context, partial, size, sum);
      });
}

// Adds a network, whose columns are split over all ranks, to sum [own rows, D].
//   width(rank)  columns of the network on the rank
//   rows, row_weights: as in kernels::SwigluExpert; there may be no rows
template <typename Width>
absl::Status AddNetwork(LayerContext& context, kernels::WeightForm form,
                        Width width, const MlpWeights* own,
                        absl::Span<const uint32_t> rows,
                        const float* row_weights, const kernels::Activations& x,
                        float* sum) {
  const size_t hidden = context.spec.hidden_size;
  const auto shape = [&](int rank, size_t i) {
    return NetworkShape(context.spec, width(rank), form, i);
  };
  std::array<const WeightMatrix*, 3> mine = {};
  if (own != nullptr) mine = {&own->gate, &own->up, &own->down};
  float* partial = Grow(context.workspace.partial, x.rows() * hidden);
  return GatherMatrices<3>(
      context, shape, mine, [&](int, std::array<WeightMatrix, 3> views) {
        if (rows.empty() || views[0].rows() == 0) return;
        const cluster::TraceScope scope(context.trace, "feed-forward");
        for (const WeightMatrix& view : views)
          context.bytes_read += view.bytes();
        const kernels::SwigluExpert network = {.gate = &views[0],
                                               .up = &views[1],
                                               .down = &views[2],
                                               .rows = rows,
                                               .weights = row_weights};
        const kernels::RowRange all = {0, x.rows()};
        kernels::Swiglu(absl::MakeConstSpan(&network, 1), x, hidden,
                        {.y = partial, .rows = {&all, 1}},
                        &context.workspace.swiglu, context.pool);
        AddAll(context, partial, x.rows() * hidden, sum);
      });
}

// Gathers the routes of all rows, counts them and marks the experts that any
// row wants. The workspace has this rank's routes again on return.
absl::Status GatherRoutes(LayerContext& context, const RowSplit& split,
                          int layer, std::vector<char>& wanted) {
  const size_t chosen = context.spec.num_experts_per_tok;
  const size_t bytes = chosen * sizeof(int32_t);
  int32_t* ids = Grow(context.workspace.route_ids, split.rows() * chosen);
  RF_RETURN_IF_ERROR(GatherRows(
      context, split, bytes,
      [&](size_t i, char* record) {
        std::memcpy(record, ids + i * chosen, bytes);
      },
      [&](size_t row, const char* record) {
        std::memcpy(ids + row * chosen, record, bytes);
      }));
  RF_RETURN_IF_ERROR(CheckRoutes(context, split.rows()));
  NoteRoutes(context, layer, split.rows());
  wanted.assign(context.spec.n_routed_experts, 0);
  for (size_t i = 0; i < split.rows() * chosen; ++i) wanted[ids[i]] = 1;
  std::memmove(ids, ids + split.begin() * chosen, split.size() * bytes);
  return absl::OkStatus();
}

// Adds the feed-forward part to sum [own rows, D].
absl::Status AddFeedForward(LayerContext& context, const LayerWeights& weights,
                            const RowSplit& split, int layer,
                            const float* normed, float* sum) {
  Workspace& workspace = context.workspace;
  const size_t own = split.size();
  const kernels::Activations& x = workspace.x;
  const kernels::RowRange own_rows = {0, own};
  const absl::Span<const uint32_t> all_rows =
      ListRows(workspace, {&own_rows, 1});
  const auto& plans = context.plans;
  if (!weights.is_moe) {
    return AddNetwork(
        context, weights.dense.gate.form(),
        [&](int rank) -> size_t { return plans[rank].dense_columns.size(); },
        &weights.dense, all_rows, nullptr, x, sum);
  }
  const MoeWeights& moe = weights.moe;
  RouteRows(context, moe, normed, own);
  std::vector<char> wanted;
  RF_RETURN_IF_ERROR(GatherRoutes(context, split, layer, wanted));
  const int experts = context.spec.n_routed_experts;
  AssignRows(context, workspace.route_ids.data(), experts, {&own_rows, 1});
  RF_RETURN_IF_ERROR(AddNetwork(
      context, moe.shared.gate.form(),
      [&](int rank) -> size_t { return plans[rank].shared_columns.size(); },
      &moe.shared, all_rows, nullptr, x, sum));
  for (int e = 0; e < experts; ++e) {
    if (wanted[e] == 0) continue;
    const int giver = context.layout.Coordinates(layer, e)[0];
    const bool is_ours = context.plan.expert_coordinate == giver;
    const size_t begin = workspace.first_assigned[e];
    RF_RETURN_IF_ERROR(AddNetwork(
        context, moe.expert_form,
        [&](int rank) { return ExpertWidth(plans[rank], giver); },
        is_ours ? &moe.experts[context.layout.IndexOf(layer, giver, e)]
                : nullptr,
        absl::MakeConstSpan(workspace.assigned_rows.data() + begin,
                            workspace.first_assigned[e + 1] - begin),
        workspace.assigned_weights.data() + begin, x, sum));
  }
  return absl::OkStatus();
}

absl::Status RunGatheredLayer(LayerContext& context,
                              const LayerWeights& weights, const Batch& batch,
                              const RowSplit& split, int layer, float* x) {
  Workspace& workspace = context.workspace;
  const size_t own = split.size();
  const size_t hidden = context.spec.hidden_size;
  const float eps = static_cast<float>(context.spec.rms_norm_eps);
  float* normed = Grow(workspace.normed, own * hidden);
  float* sum = Grow(workspace.reduced, own * hidden);

  kernels::RmsNorm(x, own, hidden, weights.input_norm.data(), eps, normed,
                   LatentsForm(weights.attention), &workspace.x, context.pool);
  const kernels::Activations& query_x =
      MakeLatents(context, weights.attention, batch, split.begin(), own);
  RF_RETURN_IF_ERROR(GatherCacheRows(context, batch, split, layer));
  std::fill(sum, sum + own * hidden, 0.0f);
  RF_RETURN_IF_ERROR(AddAttention(context, weights.attention,
                                  OwnRows(context, batch, split), layer,
                                  query_x, sum));

  kernels::AddRmsNorm(sum, own, hidden, weights.post_attention_norm.data(), eps,
                      x, normed, FeedForwardForm(weights), &workspace.x,
                      context.pool);
  std::fill(sum, sum + own * hidden, 0.0f);
  RF_RETURN_IF_ERROR(
      AddFeedForward(context, weights, split, layer, normed, sum));
  AddAll(context, sum, own * hidden, x);
  return absl::OkStatus();
}

}  // namespace

uint64_t WeightGatherBytes(const cluster::ModelSpec& spec,
                           const cluster::MeshShape& mesh,
                           kernels::WeightForm form,
                           kernels::WeightForm expert_form) {
  const std::vector<cluster::ShardPlan> plans =
      cluster::PlanAllShards(spec, mesh);
  uint64_t largest = 0;
  const auto count = [&](size_t matrices, auto shape) {
    uint64_t bytes = 0;
    for (const cluster::ShardPlan& plan : plans) {
      for (size_t i = 0; i < matrices; ++i) {
        bytes += shape(plan, i).PaddedBytes();
      }
    }
    largest = std::max(largest, bytes);
  };
  count(4, [&](const cluster::ShardPlan& plan, size_t i) {
    return AttentionShape(spec, plan, form, i);
  });
  bool dense = false;
  bool moe = false;
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    (spec.IsMoeLayer(layer) ? moe : dense) = true;
  }
  if (dense) {
    count(3, [&](const cluster::ShardPlan& plan, size_t i) {
      return NetworkShape(spec, plan.dense_columns.size(), form, i);
    });
  }
  if (!moe) return largest;
  count(3, [&](const cluster::ShardPlan& plan, size_t i) {
    return NetworkShape(spec, plan.shared_columns.size(), form, i);
  });
  for (int coordinate = 0; coordinate < mesh.num_coordinates(); ++coordinate) {
    count(3, [&](const cluster::ShardPlan& plan, size_t i) {
      return NetworkShape(spec, ExpertWidth(plan, coordinate), expert_form, i);
    });
  }
  return largest;
}

absl::Status WeightGather::Forward(LayerContext& context,
                                   const StepPass& pass) const {
  return RunSplitLayers(context, pass,
                        [&](const LayerWeights& weights, const RowSplit& split,
                            int layer, float* x) {
                          return RunGatheredLayer(context, weights, pass.batch,
                                                  split, layer, x);
                        });
}

}  // namespace ringfleet::worker
