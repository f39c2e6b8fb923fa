// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/loaded_shard.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/dtype_names.h"
#include "cluster/model/mesh.h"
#include "cluster/model/shard_sizes.h"
#include "cluster/model/weights_difference.h"
#include "cluster/placement/placement.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "worker/loading/host.h"
#include "worker/loading/open_checkpoint.h"
#include "worker/loading/shard_loader.h"
#include "worker/model/kv_cache.h"
#include "worker/model/model.h"
#include "worker/strategies/weight_gather.h"

namespace ringfleet::worker {
namespace {

// Bytes of activations, buffers of the links, code and stacks.
constexpr uint64_t kOverheadBytes = 256ull << 20;
constexpr int kMaxSlots = 1024;
constexpr LoadOptions kReferenceOptions = {.form =
                                               kernels::WeightForm::kReference};

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return a + b < a ? std::numeric_limits<uint64_t>::max() : a + b;
}

absl::Status CheckDtype(v1::Dtype dtype) {
  if (dtype != v1::DTYPE_UNSPECIFIED && v1::Dtype_IsValid(dtype)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("load: dtype ", static_cast<int>(dtype), ", want ",
                   cluster::kWeightDtypeChoices));
}

LoadOptions LoadOptionsOf(v1::Dtype dtype, const cluster::ModelSpec& spec) {
  const cluster::WeightForms forms = cluster::FormsOf(dtype, spec);
  return {.form = forms.products,
          .expert_form = forms.experts,
          .native = forms.native};
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

absl::StatusOr<cluster::ExpertLayout> LayoutFor(
    const cluster::ModelSpec& spec, const cluster::ShardPlan& plan,
    const v1::ExpertLayout& wanted) {
  const int64_t layers = int64_t{spec.num_hidden_layers} + 1;  // And MTP.
  if (layers * spec.n_routed_experts > cluster::kMaxPlacementEntries) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load: ", spec.n_routed_experts, " experts in each of ", layers,
        " layers, want at most ", cluster::kMaxPlacementEntries, " in all"));
  }
  cluster::ExpertLayout layout(static_cast<int>(layers), spec.n_routed_experts,
                               plan.mesh.num_coordinates());
  RF_RETURN_IF_ERROR(layout.Merge(wanted));
  return layout;
}

// Sizes of a cache.
struct CacheFit {
  int context = 0;
  int blocks = 0;
};

// Returns the largest cache that fits beside the weights and has a use.
absl::StatusOr<CacheFit> FitCache(const cluster::ModelSpec& spec,
                                  const v1::LoadRequest& request,
                                  kernels::Dtype cache_dtype, bool mtp,
                                  uint64_t weight_bytes, uint64_t buffer_bytes,
                                  uint64_t limit) {
  const bool dense = request.dense_attention();
  const int64_t most = spec.MostPositions(dense);
  const int64_t context =
      request.context() == 0 ? most : int64_t{request.context()};
  if (context > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("context: ", context, " positions, want at most ", most,
                     " (", spec.MostPositionsCause(dense), ")"));
  }
  const int layers = spec.num_hidden_layers + (mtp ? 1 : 0);
  uint64_t block_bytes = KvCache::Bytes(cache_dtype, layers, spec.kv_lora_rank,
                                        spec.qk_rope_head_dim, /*blocks=*/1);
  if (request.reference()) {
    block_bytes +=
        KvCache::Bytes(kernels::Dtype::kF32, layers, spec.kv_lora_rank,
                       spec.qk_rope_head_dim, /*blocks=*/1);
  }
  // Block numbers are ints.
  int64_t blocks =
      std::min<int64_t>(request.slots() * kernels::CacheBlocks(context),
                        std::numeric_limits<int>::max());
  if (request.cache_positions() > 0) {
    blocks = std::min<int64_t>(
        blocks, request.cache_positions() / kernels::kCacheBlockPositions);
  }
  const int64_t least =
      request.context() == 0 ? 1 : kernels::CacheBlocks(context);
  if (blocks < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache_positions: ", request.cache_positions(), ", want at least ",
        least * kernels::kCacheBlockPositions, " for a sequence of ",
        request.context() == 0 ? 1 : context, " positions"));
  }
  const uint64_t needed = SaturatingAdd(weight_bytes, buffer_bytes);
  const uint64_t fit = needed > limit ? 0 : (limit - needed) / block_bytes;
  if (fit < static_cast<uint64_t>(least)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: weights of ", weight_bytes >> 20, " MiB, a cache of ",
        (least * block_bytes) >> 20, " MiB for a sequence of ",
        request.context() == 0 ? 1 : context, " positions and ",
        buffer_bytes >> 20, " MiB of buffers, want at most ", limit >> 20,
        " MiB on this host; try a smaller context or more hosts"));
  }
  blocks = static_cast<int64_t>(std::min<uint64_t>(blocks, fit));
  return CacheFit{.context = static_cast<int>(std::min<int64_t>(
                      context, blocks * static_cast<int64_t>(
                                            kernels::kCacheBlockPositions))),
                  .blocks = static_cast<int>(blocks)};
}

// Returns the bytes that a worker needs beside weights and cache. A float32
// reference gathers weights into memory of its own.
uint64_t BufferBytes(const LoadedShard& shard, v1::PrefillStrategy strategy) {
  const LoadOptions& options = shard.options;
  const cluster::MeshShape& mesh = shard.plan.mesh;
  if (strategy != v1::PREFILL_STRATEGY_WEIGHT_GATHER ||
      mesh.world_size() == 1) {
    return kOverheadBytes;
  }
  uint64_t bytes =
      WeightGatherBytes(shard.spec, mesh, options.form,
                        options.expert_form.value_or(options.form));
  if (shard.request.reference()) {
    bytes +=
        WeightGatherBytes(shard.spec, mesh, kernels::WeightForm::kReference,
                          kernels::WeightForm::kReference);
  }
  return kOverheadBytes + bytes;
}

// Returns the bytes that weights and cache of a shard may take together.
uint64_t LimitFor(const v1::LoadRequest& request, const LoadSettings& settings,
                  uint64_t held_bytes) {
  const uint64_t available =
      SaturatingAdd(settings.available_memory_bytes, held_bytes);
  if (settings.memory_limit_bytes != 0) {
    return std::min(available, settings.memory_limit_bytes);
  }
  if (request.memory_limit_bytes() != 0) {
    return std::min(available, request.memory_limit_bytes());
  }
  return available;
}

// Sets the shard's sizes of the cache that fits beside `weight_bytes`,
// `held_bytes` of which the worker holds already.
absl::Status SetCacheSizes(const v1::LoadRequest& request,
                           const LoadSettings& settings, uint64_t weight_bytes,
                           uint64_t held_bytes, LoadedShard* shard) {
  RF_ASSIGN_OR_RETURN(
      const CacheFit fit,
      FitCache(
          shard->spec, request, shard->cache_dtype,
          shard->spec.num_nextn_predict_layers > 0 && !request.without_mtp(),
          weight_bytes, BufferBytes(*shard, request.prefill_strategy()),
          LimitFor(request, settings, held_bytes)));
  shard->context = fit.context;
  shard->cache_blocks = fit.blocks;
  return absl::OkStatus();
}

// Returns options with the parts and the experts that the request asks for.
LoadOptions PlacedOptions(const LoadedShard& shard, LoadOptions options) {
  options.mtp = !shard.request.without_mtp();
  if (shard.request.layout().experts().layers_size() > 0) {
    options.experts = &shard.layout;
  }
  return options;
}

absl::StatusOr<int> SlotsOf(const v1::LoadRequest& request) {
  if (request.slots() < 1 || request.slots() > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load: ", request.slots(), " slots, want 1 to ", kMaxSlots));
  }
  return static_cast<int>(request.slots());
}

absl::StatusOr<cluster::ShardPlan> PlanFor(const cluster::ModelSpec& spec,
                                           const v1::ParallelLayout& layout) {
  const auto& mesh = layout.mesh();
  const uint64_t num_coordinates = uint64_t{mesh.data()} * mesh.expert();
  if (num_coordinates > cluster::kMaxWorkers ||
      num_coordinates * mesh.tensor() > cluster::kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load: mesh ", mesh.data(), "x", mesh.expert(), "x", mesh.tensor(),
        ", want at most ", cluster::kMaxWorkers, " ranks"));
  }
  return cluster::PlanShard(spec,
                            {.data = static_cast<int>(mesh.data()),
                             .expert = static_cast<int>(mesh.expert()),
                             .tensor = static_cast<int>(mesh.tensor())},
                            static_cast<int>(layout.rank()));
}

bool SameSlices(const cluster::ShardPlan& a, const cluster::ShardPlan& b) {
  return a.heads == b.heads && a.expert_columns == b.expert_columns &&
         a.shared_columns == b.shared_columns &&
         a.dense_columns == b.dense_columns && a.vocab == b.vocab;
}

// "mesh 1x2x1 rank 0"
std::string PlaceOf(const cluster::ShardPlan& plan) {
  return absl::StrCat("mesh ", plan.mesh.data, "x", plan.mesh.expert, "x",
                      plan.mesh.tensor, " rank ", plan.rank);
}

// Reports progress over several stages, at most every 100 ms.
class StagedProgress {
 public:
  StagedProgress(
      v1::LoadProgress* message, const cluster::Checkpoint& checkpoint,
      uint64_t bytes_total,
      absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report)
      : message_(message), checkpoint_(checkpoint), report_(report) {
    message_->set_bytes_total(bytes_total);
  }

  // Returns the callback for a loader. Valid as long as this object.
  auto Callback() {
    return [this](uint64_t done, uint64_t total) { return Tell(done, total); };
  }
  // Begins the next stage. The last one had `bytes`.
  void NextStage(uint64_t bytes) { stage_begin_ += bytes; }

  // Returns the last status of `report`. A load ends with its error.
  const absl::Status& stopped() const { return stopped_; }

 private:
  absl::Status Tell(uint64_t done, uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_report_ < std::chrono::milliseconds(100) && done < total) {
      return absl::OkStatus();
    }
    last_report_ = now;
    // A stage may turn out smaller than expected.
    message_->set_bytes_done(
        std::min(stage_begin_ + done, message_->bytes_total()));
    message_->set_bytes_fetched(checkpoint_.bytes_fetched() +
                                checkpoint_.other_bytes_fetched());
    stopped_ = report_(*message_);
    return stopped_;
  }
  v1::LoadProgress* const message_;
  const cluster::Checkpoint& checkpoint_;
  const absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report_;
  uint64_t stage_begin_ = 0;
  absl::Status stopped_;
  std::chrono::steady_clock::time_point last_report_;  // The clock's epoch.
};

// Fills in the weights, from a sound packed shard in the folder or else from
// the checkpoint. A load from the checkpoint first makes sure that the folder
// has room.
absl::Status LoadWeights(const cluster::Checkpoint& checkpoint,
                         const LoadOptions& options,
                         const std::optional<ShardCache>& cache,
                         uint64_t room_bytes, StagedProgress& progress,
                         LoadedShard* shard) {
  if (cache.has_value()) {
    const auto packed = cache->Open(*shard->pool, progress.Callback());
    RF_RETURN_IF_ERROR(progress.stopped());
    shard->cache_status = packed.status();
    if (packed.ok()) {
      auto weights = MapShard(**packed, checkpoint, shard->spec, shard->plan,
                              options, *shard->pool);
      if (weights.ok()) {
        shard->weights = *std::move(weights);
        shard->from_cache = true;
        return absl::OkStatus();
      }
      shard->cache_status = weights.status();
    }
    if (!absl::IsNotFound(shard->cache_status)) {
      // A shard of an older checkpoint is normal. A damaged one is reported.
      if (absl::IsDataLoss(shard->cache_status)) {
        shard->warning =
            absl::StrCat(shard->cache_status.message(), "; packed anew");
      }
      RF_LOG(kWarning, shard->cache_status.message(), "; packing anew");
    }
    if (room_bytes > 0) RF_RETURN_IF_ERROR(cache->CheckRoom(room_bytes));
  }
  RF_ASSIGN_OR_RETURN(shard->weights,
                      LoadShard(checkpoint, shard->spec, shard->plan, options,
                                *shard->pool, progress.Callback(),
                                cache.has_value() ? &shard->parts : nullptr));
  shard->unsaved = cache;
  return absl::OkStatus();
}

// Writes the shard to the folder. A failure becomes a warning, unless the load
// was stopped.
absl::Status Save(StagedProgress& progress, LoadedShard* shard) {
  shard->cache_status =
      shard->unsaved->Write(shard->parts, *shard->pool, progress.Callback());
  shard->unsaved.reset();
  RF_RETURN_IF_ERROR(progress.stopped());
  if (shard->cache_status.ok()) return absl::OkStatus();
  shard->warning = absl::StrCat("the packed shard is not kept: ",
                                shard->cache_status.message());
  RF_LOG(kWarning, shard->warning);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedLoad> PlanLoad(const v1::LoadRequest& request,
                                     const LoadSettings& settings) {
  PlannedLoad planned;
  planned.shard = std::make_unique<LoadedShard>();
  LoadedShard& shard = *planned.shard;
  RF_RETURN_IF_ERROR(CheckDtype(request.dtype()));
  shard.request = request;
  RF_ASSIGN_OR_RETURN(shard.slots, SlotsOf(request));
  planned.never_cancelled = std::make_unique<cluster::CancellableCalls>();
  RF_ASSIGN_OR_RETURN(planned.opened,
                      OpenCheckpointFor(request, settings.coordinator,
                                        settings.fetching == nullptr
                                            ? planned.never_cancelled.get()
                                            : settings.fetching));
  const cluster::Checkpoint& checkpoint = *planned.opened.checkpoint;
  shard.spec = planned.opened.spec;
  shard.options = LoadOptionsOf(request.dtype(), shard.spec);
  RF_ASSIGN_OR_RETURN(shard.cache_dtype,
                      CacheDtypeFor(request.cache_dtype(), shard.options.form));
  shard.fingerprint = planned.opened.fingerprint;
  shard.file_state = checkpoint.FileState();
  RF_ASSIGN_OR_RETURN(shard.plan, PlanFor(shard.spec, request.layout()));
  RF_ASSIGN_OR_RETURN(shard.layout, LayoutFor(shard.spec, shard.plan,
                                              request.layout().experts()));
  planned.packed_bytes = ShardBytes(
      shard.spec, shard.plan, PlacedOptions(shard, shard.options), &checkpoint);
  planned.weight_bytes = planned.packed_bytes;
  if (request.reference()) {
    planned.weight_bytes = SaturatingAdd(
        planned.weight_bytes,
        ShardBytes(shard.spec, shard.plan,
                   PlacedOptions(shard, kReferenceOptions), &checkpoint));
  }
  RF_RETURN_IF_ERROR(SetCacheSizes(request, settings, planned.weight_bytes,
                                   settings.held_bytes, &shard));
  return planned;
}

absl::StatusOr<std::unique_ptr<LoadedShard>> LoadPlanned(
    const v1::LoadRequest& request, const LoadSettings& settings,
    PlannedLoad planned,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report) {
  std::unique_ptr<LoadedShard> shard = std::move(planned.shard);
  const OpenedCheckpoint opened = std::move(planned.opened);
  const cluster::Checkpoint* const checkpoint = opened.checkpoint.get();
  const uint64_t packed_bytes = planned.packed_bytes;
  const uint64_t weight_bytes = planned.weight_bytes;
  const LoadOptions options = PlacedOptions(*shard, shard->options);
  // The memory may be another one than when the load was planned.
  RF_RETURN_IF_ERROR(SetCacheSizes(request, settings, weight_bytes,
                                   /*held_bytes=*/0, shard.get()));

  v1::LoadProgress progress;
  progress.set_fingerprint(shard->fingerprint);
  progress.set_context(shard->context);
  progress.set_cache_blocks(shard->cache_blocks);
  progress.set_resident_bytes(weight_bytes);
  RF_RETURN_IF_ERROR(report(progress));

  const int threads =
      request.threads() != 0
          ? static_cast<int>(std::min<uint32_t>(request.threads(), 1024))
          : settings.threads;
  shard->pool =
      std::make_unique<kernels::ThreadPool>(threads, OneCpuEach(threads));
  const std::string& folder = settings.shard_cache.empty()
                                  ? request.shard_cache()
                                  : settings.shard_cache;
  std::optional<ShardCache> cache;
  if (!folder.empty()) {
    cache = ShardCache::Of(folder, *checkpoint, shard->fingerprint, shard->plan,
                           options);
  }
  const bool may_save = cache.has_value() && request.await_shard_cache();
  StagedProgress on_progress(
      &progress, *checkpoint,
      may_save ? SaturatingAdd(weight_bytes, packed_bytes) : weight_bytes,
      report);
  RF_RETURN_IF_ERROR(LoadWeights(*checkpoint, options, cache,
                                 settings.only_packs ? packed_bytes : 0,
                                 on_progress, shard.get()));
  on_progress.NextStage(packed_bytes);
  if (may_save) {
    if (shard->unsaved.has_value()) {
      RF_RETURN_IF_ERROR(Save(on_progress, shard.get()));
    }
    on_progress.NextStage(packed_bytes);
  }
  shard->resident_bytes = shard->weights.bytes;
  if (request.reference()) {
    RF_ASSIGN_OR_RETURN(shard->reference,
                        LoadShard(*checkpoint, shard->spec, shard->plan,
                                  PlacedOptions(*shard, kReferenceOptions),
                                  *shard->pool, on_progress.Callback()));
    shard->resident_bytes += shard->reference->bytes;
  }
  shard->tensor_bytes_read = checkpoint->bytes_read();
  shard->other_bytes_read = checkpoint->other_bytes_read();
  shard->tensor_bytes_fetched = checkpoint->bytes_fetched();
  shard->other_bytes_fetched = checkpoint->other_bytes_fetched();
  if (!opened.fetching.empty()) {
    shard->warning = absl::StrCat(
        shard->warning, shard->warning.empty() ? "" : "; ", opened.fetching);
  }
  return shard;
}

absl::StatusOr<std::unique_ptr<LoadedShard>> LoadShardFor(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report) {
  RF_ASSIGN_OR_RETURN(PlannedLoad planned, PlanLoad(request, settings));
  return LoadPlanned(request, settings, std::move(planned), report);
}

absl::StatusOr<std::string> KeepShard(const v1::LoadRequest& request,
                                      const LoadSettings& settings,
                                      const PlannedLoad& planned,
                                      LoadedShard* shard) {
  std::string difference = cluster::WeightsDifference(request, shard->request);
  if (!difference.empty()) return difference;
  if (request.await_shard_cache() && shard->unsaved.has_value()) {
    return "its packed shard has to be written";
  }
  const cluster::ShardPlan& plan = planned.shard->plan;
  if (!SameSlices(plan, shard->plan)) {
    return absl::StrCat(PlaceOf(plan), ", held ", PlaceOf(shard->plan));
  }
  const cluster::ExpertLayout& layout = planned.shard->layout;
  if (layout.num_layers() != shard->layout.num_layers()) {
    return absl::StrCat(layout.num_layers(), " layers, held ",
                        shard->layout.num_layers());
  }
  for (int layer = 0; layer < layout.num_layers(); ++layer) {
    if (!HasExperts(shard->weights, layer)) continue;
    if (layout.Held(layer, plan.expert_coordinate) !=
        shard->layout.Held(layer, shard->plan.expert_coordinate)) {
      return absl::StrCat("other experts in layer ", layer);
    }
  }
  if (planned.shard->fingerprint != shard->fingerprint) {
    return absl::StrCat("the checkpoint's fingerprint ",
                        planned.shard->fingerprint, ", held ",
                        shard->fingerprint);
  }
  if (planned.shard->file_state != shard->file_state) {
    return "the checkpoint's files were written since";
  }
  RF_RETURN_IF_ERROR(SetCacheSizes(request, settings, shard->resident_bytes,
                                   /*held_bytes=*/shard->resident_bytes,
                                   shard));
  shard->slots = planned.shard->slots;
  shard->plan = plan;
  shard->layout = layout;
  shard->request = request;
  shard->tensor_bytes_read = shard->other_bytes_read = 0;
  shard->tensor_bytes_fetched = shard->other_bytes_fetched = 0;
  shard->from_cache = false;
  shard->kept = true;
  shard->warning.clear();
  return "";
}

absl::Status PackShard(
    const v1::LoadRequest& request, const LoadSettings& settings,
    absl::FunctionRef<absl::Status(const v1::LoadProgress&)> report) {
  v1::LoadRequest packing = request;
  packing.set_context(1);
  packing.clear_cache_positions();
  packing.set_slots(1);
  packing.set_reference(false);
  packing.set_await_shard_cache(true);
  const std::string& folder = settings.shard_cache.empty()
                                  ? packing.shard_cache()
                                  : settings.shard_cache;
  if (folder.empty()) {
    return absl::InvalidArgumentError("no folder for packed shards");
  }
  // Checked before the checkpoint is read.
  RF_RETURN_IF_ERROR(ShardCache::MakeFolder(folder));
  LoadSettings packs = settings;
  packs.only_packs = true;
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedShard> shard,
                      LoadShardFor(packing, packs, report));
  RF_RETURN_IF_ERROR(shard->cache_status);
  return report(DoneMessage(*shard));
}

v1::LoadProgress DoneMessage(const LoadedShard& shard) {
  v1::LoadProgress done;
  done.set_fingerprint(shard.fingerprint);
  done.set_context(shard.context);
  done.set_cache_blocks(shard.cache_blocks);
  done.set_resident_bytes(shard.resident_bytes);
  done.set_tensor_bytes_read(shard.tensor_bytes_read);
  done.set_other_bytes_read(shard.other_bytes_read);
  done.set_bytes_fetched(shard.tensor_bytes_fetched +
                         shard.other_bytes_fetched);
  done.set_tensor_bytes_fetched(shard.tensor_bytes_fetched);
  done.set_from_shard_cache(shard.from_cache);
  done.set_warning(shard.warning);
  done.set_kept(shard.kept);
  done.set_done(true);
  return done;
}

}  // namespace ringfleet::worker
