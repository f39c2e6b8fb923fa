// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model.h"

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "kernels/products/matmul.h"
#include "kernels/products/rms_norm.h"
#include "worker/fused/gather.h"
#include "worker/model/decoder_layer.h"

namespace ringfleet::worker {
namespace {

// Most rows of a data group in a step: more than any plan has, one row of every
// slot included.
constexpr uint64_t kMostGroupRows = uint64_t{1} << 15;

kernels::RopeParameters MakeRopeParameters(const cluster::ModelSpec& spec) {
  kernels::RopeParameters parameters;
  parameters.dim = spec.qk_rope_head_dim;
  parameters.theta = spec.rope_theta;
  if (spec.rope_scaling.has_value()) {
    const cluster::YarnSpec& yarn = *spec.rope_scaling;
    parameters.yarn = true;
    parameters.factor = yarn.factor;
    parameters.original_max_position_embeddings =
        yarn.original_max_position_embeddings;
    parameters.beta_fast = yarn.beta_fast;
    parameters.beta_slow = yarn.beta_slow;
    parameters.mscale = yarn.mscale;
    parameters.mscale_all_dim = yarn.mscale_all_dim;
    parameters.attention_factor = yarn.attention_factor;
    parameters.truncate = yarn.truncate;
  }
  return parameters;
}

}  // namespace

Model::Model(const cluster::ModelSpec& spec, const cluster::ShardPlan& plan,
             const cluster::ExpertLayout& layout, const Weights& weights,
             kernels::ThreadPool& pool, KvCache& cache,
             TimedCommunicator& communicator, TimedCommunicator* data_axis,
             const ModelSettings& settings)
    : spec_(spec),
      plan_(plan),
      plans_(cluster::PlanAllShards(spec, plan.mesh)),
      layout_(layout),
      weights_(weights),
      rope_(MakeRopeParameters(spec)),
      softmax_scale_(static_cast<float>(spec.SoftmaxScale())),
      pool_(pool),
      cache_(cache),
      communicator_(communicator),
      data_axis_(data_axis),
      settings_(settings),
      expert_counts_(spec.num_hidden_layers),
      dropped_counts_(spec.num_hidden_layers) {
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    if (spec.IsMoeLayer(layer)) {
      expert_counts_[layer].resize(spec.n_routed_experts);
    }
  }
}

int Model::CacheLayers(const cluster::ModelSpec& spec, const Weights& weights) {
  return spec.num_hidden_layers + static_cast<int>(weights.mtp.size());
}

LayerContext Model::MakeContext() {
  return {.spec = spec_,
          .plan = plan_,
          .plans = plans_,
          .layout = layout_,
          .rope = rope_,
          .softmax_scale = softmax_scale_,
          .pool = pool_,
          .cache = cache_,
          .communicator = communicator_,
          .data_axis = data_axis_,
          .group_rows = group_rows_,
          .wire = settings_.wire,
          .tiles = settings_.tiles,
          .fuse_rows = settings_.fuse_rows,
          .expert_capacity = settings_.expert_capacity,
          .reproducible = settings_.reproducible,
          .workspace = workspace_,
          .trace = communicator_.trace()};
}

absl::Status Model::ShareRowCounts(size_t rows) {
  group_rows_.group = plan_.data_group;
  if (data_axis_ == nullptr) {
    group_rows_.offsets.assign({0, rows});
    return absl::OkStatus();
  }
  const uint64_t own = rows;
  RF_RETURN_IF_ERROR(
      GatherRecords(*data_axis_, absl::MakeConstSpan(&own, 1), &row_counts_));
  group_rows_.offsets.assign(1, 0);
  for (const uint64_t count : row_counts_) {
    if (count > kMostGroupRows) {
      return absl::DataLossError(absl::StrCat(
          "data group ", group_rows_.offsets.size() - 1, " has ", count,
          " rows in a step, want at most ", kMostGroupRows));
    }
    group_rows_.offsets.push_back(group_rows_.offsets.back() + count);
  }
  return absl::OkStatus();
}

absl::Status Model::Forward(const StepStrategy& strategy, const Batch& batch,
                            absl::Span<const uint32_t> wanted,
                            std::optional<StepObserver> observer,
                            float* hidden) {
  RF_RETURN_IF_ERROR(ShareRowCounts(batch.rows()));
  if (group_rows_.all() == 0) return absl::OkStatus();
  LayerContext context = MakeContext();
  context.expert_counts = &expert_counts_;
  context.dropped_counts = &dropped_counts_;
  RF_RETURN_IF_ERROR(strategy.Forward(context, {.weights = weights_,
                                                .batch = batch,
                                                .wanted = wanted,
                                                .observer = observer,
                                                .hidden = hidden}));
  bytes_read_ += context.bytes_read;
  return absl::OkStatus();
}

absl::Status Model::ForwardMtp(const Batch& next, const float* hidden,
                               float* out) {
  RF_CHECK(has_mtp());
  const MtpWeights& mtp = weights_.mtp[0];
  const size_t size = spec_.hidden_size;
  const size_t rows = next.rows();
  RF_RETURN_IF_ERROR(ShareRowCounts(rows));
  const float eps = static_cast<float>(spec_.rms_norm_eps);
  LayerContext context = MakeContext();
  const auto scope =
      cluster::TraceScope::Layer(context.trace, spec_.num_hidden_layers);
  if (rows == 0) {
    RF_RETURN_IF_ERROR(DecoderLayer(context, mtp.layer, next,
                                    spec_.num_hidden_layers, nullptr));
    bytes_read_ += context.bytes_read;
    return absl::OkStatus();
  }
  float* concat = Grow(mtp_concat_, rows * 2 * size);
  EmbedRows(weights_, next.ids, 2 * size, concat);
  kernels::RmsNorm(concat, rows, size, 2 * size, mtp.enorm.data(), eps, concat,
                   2 * size, pool_);
  kernels::RmsNorm(hidden, rows, size, size, mtp.hnorm.data(), eps,
                   concat + size, 2 * size, pool_);
  float* x = Grow(workspace_.residual, rows * size);
  workspace_.x.Assign(kernels::ActivationFormFor(mtp.eh_proj.form()), concat,
                      rows, 2 * size, 2 * size, pool_);
  kernels::MatMul(mtp.eh_proj, workspace_.x, x, pool_);
  RF_RETURN_IF_ERROR(
      DecoderLayer(context, mtp.layer, next, spec_.num_hidden_layers, x));
  bytes_read_ += mtp.eh_proj.bytes() + context.bytes_read;
  kernels::RmsNorm(x, rows, size, size, mtp.head_norm.data(), eps, out, size,
                   pool_);
  return absl::OkStatus();
}

void Model::Logits(const float* hidden, size_t rows, float* logits) {
  const cluster::TraceScope scope(communicator_.trace(), "head");
  bytes_read_ += weights_.head.bytes();
  workspace_.x.Assign(kernels::ActivationFormFor(weights_.head.form()), hidden,
                      rows, spec_.hidden_size, spec_.hidden_size, pool_);
  kernels::MatMul(weights_.head, workspace_.x, logits, pool_);
}

}  // namespace ringfleet::worker
