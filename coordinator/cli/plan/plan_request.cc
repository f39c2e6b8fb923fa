// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/plan/plan_request.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/config/settings.h"
#include "cluster/model/published_sizes.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status_macros.h"
#include "cluster/synthetic/synthetic_model.h"
#include "cluster/wire/op_descriptor.h"
#include "coordinator/cli/plan/plan_fleet.h"
#include "coordinator/scheduling/scheduler.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int64_t kDefaultContext = 4096;
constexpr int64_t kMaxBatch = 1024;  // A worker's limit.

// Reads the spec of a folder, a config.json, or a synthetic model.
absl::StatusOr<cluster::ModelSpec> ReadSpec(const std::string& model) {
  std::error_code error;
  if (cluster::IsSyntheticModel(model) ||
      !std::filesystem::is_regular_file(model, error)) {
    return cluster::LoadModelSpec(model);
  }
  RF_ASSIGN_OR_RETURN(const std::string json,
                      cluster::ReadSmallFile(model, cluster::kMaxConfigBytes));
  absl::StatusOr<cluster::ModelSpec> spec = cluster::ParseModelSpec(json);
  if (!spec.ok()) return Annotate(spec.status(), model);
  return spec;
}

// Returns the bytes of a folder's safetensors files; 0 without any.
uint64_t FileBytes(const std::string& model) {
  std::error_code error;
  uint64_t bytes = 0;
  if (!std::filesystem::is_directory(model, error)) return 0;
  for (std::filesystem::directory_iterator it(model, error), end;
       !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".safetensors") continue;
    std::error_code unreadable;
    const uint64_t size = it->file_size(unreadable);
    if (!unreadable) bytes += size;
  }
  return bytes;
}

// Sets the types by flags, else by the fleet's file or the defaults.
absl::Status SetTypes(const PlanOptions& options,
                      const std::optional<cluster::ClusterConfig>& config,
                      PlanInput* input) {
  CostInputs& inputs = input->request.inputs;
  v1::FleetSettings settings =
      config.has_value() ? config->settings : cluster::DefaultSettings();
  RF_ASSIGN_OR_RETURN(const v1::FleetSettings given, options.settings.Read());
  settings.MergeFrom(given);
  input->dtype = settings.dtype();
  inputs.forms = cluster::FormsOf(settings.dtype(), inputs.spec);
  inputs.cache_dtype =
      cluster::CacheDtypeOf(settings.cache_type(), inputs.forms);
  RF_ASSIGN_OR_RETURN(inputs.wire, cluster::WireFromProto(settings.wire()));
  return absl::OkStatus();
}

absl::Status SetSizes(const PlanOptions& options, int configured_context,
                      PlanInput* input) {
  const int64_t most = input->request.inputs.spec.max_position_embeddings;
  int64_t context = std::min(kDefaultContext, most);
  if (configured_context > 0) context = configured_context;
  input->request.context = options.context.value_or(context);
  input->request.batch = options.batch.value_or(1);
  input->request.prefill_chunk = kPrefillChunk;
  if (input->request.context < 1 || input->request.context > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --context ", input->request.context,
                     ", want 1 to ", most, " (max_position_embeddings)"));
  }
  if (input->request.batch < 1 || input->request.batch > kMaxBatch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "usage: --batch ", input->request.batch, ", want 1 to ", kMaxBatch));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanInput> ReadPlanInput(const PlanOptions& options) {
  RF_ASSIGN_OR_RETURN(PlanFleet fleet, ReadPlanFleet(options));
  PlanInput input;
  input.model = options.model.empty() ? fleet.model : options.model;
  if (input.model.empty()) {
    return absl::InvalidArgumentError(
        "usage: give a model: --model DIR, config.json or synth:NAME");
  }
  RF_ASSIGN_OR_RETURN(input.request.inputs.spec, ReadSpec(input.model));
  input.assumptions = std::move(fleet.assumptions);
  input.request.inputs.hosts = std::move(fleet.hosts);
  input.request.inputs.network = fleet.network;
  RF_RETURN_IF_ERROR(SetTypes(options, fleet.config, &input));
  RF_RETURN_IF_ERROR(SetSizes(
      options, fleet.config.has_value() ? fleet.config->settings.context() : 0,
      &input));
  input.checkpoint_bytes = FileBytes(input.model);
  if (input.checkpoint_bytes == 0) {
    input.checkpoint_bytes =
        cluster::PublishedSizes(input.request.inputs.spec).all_bytes();
  }
  return input;
}

}  // namespace ringfleet::coordinator::cli
