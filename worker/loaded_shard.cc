// SPDX-License-Identifier: Apache-2.0
#include "worker/loaded_shard.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "cluster/cache_dtype.h"
#include "cluster/safetensors.h"
#include "cluster/status_macros.h"
#include "cluster/weight_dtype.h"
#include "worker/host.h"
#include "worker/kv_cache.h"
#include "worker/model.h"
#include "worker/shard_loader.h"

namespace ringfleet::worker {
namespace {

// Activations, buffers of the links, code and stacks: what a worker needs
// beside weights and cache.
constexpr uint64_t kOverheadBytes = 256ull << 20;
constexpr int kMaxSlots = 1024;

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return a + b < a ? std::numeric_limits<uint64_t>::max() : a + b;
}

absl::StatusOr<LoadOptions> MakeLoadOptions(v1::Dtype dtype) {
  LoadOptions options;
  switch (dtype) {
    case v1::DTYPE_F32:
      options.form = kernels::WeightForm::kF32;
      return options;
    case v1::DTYPE_BF16:
      options.form = kernels::WeightForm::kBf16;
      return options;
    case v1::DTYPE_INT8:
      options.form = kernels::WeightForm::kInt8;
      return options;
    case v1::DTYPE_INT4:
      options.form = kernels::WeightForm::kInt4;
      return options;
    case v1::DTYPE_INT4_EXPERTS:
      options.form = kernels::WeightForm::kInt8;
      options.expert_form = kernels::WeightForm::kInt4;
      return options;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("load: dtype ", static_cast<int>(dtype), ", want ",
                       cluster::kWeightDtypeChoices));
  }
}

absl::StatusOr<kernels::Dtype> CacheDtypeFor(v1::CacheDtype dtype,
                                             kernels::WeightForm weights) {
  switch (dtype) {
    case v1::CACHE_DTYPE_UNSPECIFIED:
      return weights == kernels::WeightForm::kF32 ? kernels::Dtype::kF32
                                                  : kernels::Dtype::kBf16;
    case v1::CACHE_DTYPE_F32:
      return kernels::Dtype::kF32;
    case v1::CACHE_DTYPE_BF16:
      return kernels::Dtype::kBf16;
    case v1::CACHE_DTYPE_INT8:
      return kernels::Dtype::kInt8;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("load: cache dtype ", static_cast<int>(dtype), ", want ",
                       cluster::kCacheDtypeChoices));
  }
}

// Positions per slot that fit beside the weights, at most `wanted`.
absl::StatusOr<int> FitContext(const cluster::ModelSpec& spec,
                               const v1::LoadRequest& request,
                               kernels::Dtype cache_dtype, bool mtp,
                               uint64_t weight_bytes, uint64_t limit) {
  const int wanted =
      request.context() == 0
          ? spec.max_position_embeddings
          : static_cast<int>(std::min<uint32_t>(request.context(), 1u << 30));
  if (wanted > spec.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "context of ", wanted, " positions, want at most ",
        spec.max_position_embeddings, " (max_position_embeddings)"));
  }
  const auto cache_bytes = [&](int context) {
    const int layers = spec.num_hidden_layers + (mtp ? 1 : 0);
    const int slots = static_cast<int>(request.slots());
    uint64_t bytes = KvCache::Bytes(cache_dtype, layers, spec.kv_lora_rank,
                                    spec.qk_rope_head_dim, slots, context);
    if (request.reference()) {
      bytes += KvCache::Bytes(kernels::Dtype::kF32, layers, spec.kv_lora_rank,
                              spec.qk_rope_head_dim, slots, context);
    }
    return bytes;
  };
  const auto fits = [&](int context) {
    return SaturatingAdd(weight_bytes, kOverheadBytes + cache_bytes(context)) <=
           limit;
  };
  if (fits(wanted)) return wanted;
  if (request.context() != 0 || !fits(1)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: weights of ", weight_bytes >> 20, " MiB, a cache of ",
        cache_bytes(wanted) >> 20, " MiB for ", request.slots(), " x ", wanted,
        " positions and ", kOverheadBytes >> 20,
        " MiB of buffers, want at most ", limit >> 20,
        " MiB on this host; try a smaller context or more hosts"));
  }
  int low = 1;
  int high = wanted;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedShard>> LoadShardFor(
    const v1::LoadRequest& request, int default_threads,
    uint64_t own_limit_bytes, uint64_t available_memory_bytes,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report) {
  auto shard = std::make_unique<LoadedShard>();
  RF_ASSIGN_OR_RETURN(const LoadOptions options,
                      MakeLoadOptions(request.dtype()));
  RF_ASSIGN_OR_RETURN(shard->cache_dtype,
                      CacheDtypeFor(request.cache_dtype(), options.form));
  if (request.slots() < 1 || request.slots() > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load: ", request.slots(), " slots, want 1 to ", kMaxSlots));
  }
  RF_ASSIGN_OR_RETURN(shard->spec,
                      cluster::LoadModelSpec(request.model_path()));
  const v1::Mesh& mesh = request.layout().mesh();
  RF_ASSIGN_OR_RETURN(
      shard->plan,
      cluster::PlanShard(shard->spec,
                         {.data = static_cast<int>(mesh.data()),
                          .expert = static_cast<int>(mesh.expert()),
                          .tensor = static_cast<int>(mesh.tensor())},
                         static_cast<int>(request.layout().rank())));
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::Checkpoint> checkpoint,
                      cluster::Checkpoint::Open(request.model_path()));
  RF_ASSIGN_OR_RETURN(shard->fingerprint, checkpoint->Fingerprint());

  const LoadOptions reference_options = {.form = kernels::WeightForm::kF32};
  uint64_t weight_bytes =
      ShardBytes(shard->spec, shard->plan, options, checkpoint.get());
  if (request.reference()) {
    weight_bytes = SaturatingAdd(
        weight_bytes, ShardBytes(shard->spec, shard->plan, reference_options,
                                 checkpoint.get()));
  }
  uint64_t limit = available_memory_bytes;
  if (own_limit_bytes != 0) {
    limit = std::min(limit, own_limit_bytes);
  } else if (request.memory_limit_bytes() != 0) {
    limit = std::min(limit, request.memory_limit_bytes());
  }
  shard->slots = static_cast<int>(request.slots());
  RF_ASSIGN_OR_RETURN(shard->context,
                      FitContext(shard->spec, request, shard->cache_dtype,
                                 shard->spec.num_nextn_predict_layers > 0,
                                 weight_bytes, limit));

  v1::LoadProgress progress;
  progress.set_fingerprint(shard->fingerprint);
  progress.set_context(shard->context);
  progress.set_resident_bytes(weight_bytes);
  RF_RETURN_IF_ERROR(report(progress));

  const int threads =
      request.threads() != 0
          ? static_cast<int>(std::min<uint32_t>(request.threads(), 1024))
          : default_threads;
  shard->pool =
      std::make_unique<kernels::ThreadPool>(threads, OneCpuEach(threads));
  const int copies = request.reference() ? 2 : 1;
  int copies_done = 0;
  std::chrono::steady_clock::time_point last_report;  // The clock's epoch.
  const auto on_progress = [&](uint64_t done, uint64_t total) -> absl::Status {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_report < std::chrono::milliseconds(100) && done < total) {
      return absl::OkStatus();
    }
    last_report = now;
    progress.set_bytes_done(copies_done * total + done);
    progress.set_bytes_total(copies * total);
    return report(progress);
  };
  RF_ASSIGN_OR_RETURN(shard->weights,
                      LoadShard(*checkpoint, shard->spec, shard->plan, options,
                                *shard->pool, on_progress));
  shard->resident_bytes = shard->weights.bytes;
  if (request.reference()) {
    copies_done = 1;
    RF_ASSIGN_OR_RETURN(
        shard->reference,
        LoadShard(*checkpoint, shard->spec, shard->plan, reference_options,
                  *shard->pool, on_progress));
    shard->resident_bytes += shard->reference->bytes;
  }
  return shard;
}

}  // namespace ringfleet::worker
