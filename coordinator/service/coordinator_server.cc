// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/coordinator_server.h"

#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/config/config.h"
#include "cluster/model/shard_plan.h"
#include "cluster/model/shard_sizes.h"
#include "cluster/process/build_info.h"
#include "cluster/process/log.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "cluster/rpc/listening_sockets.h"
#include "coordinator/service/load_notices.h"

namespace ringfleet::coordinator {
namespace {

// A connection without a call for this long is closed, so that strangers who
// speak HTTP/2 do not keep callers out. A client that polls must not meet it,
// so it is no interval that people choose.
constexpr int kMaxIdleMs = 23'000;
// The last statuses reach their sockets in this time.
constexpr absl::Duration kFlushTime = absl::Milliseconds(100);

// Refuses settings that make a row's bits depend on the rows beside it.
absl::Status CheckReproducible(const v1::FleetSettings& settings) {
  if (settings.experts().capacity() > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expert capacity ", settings.experts().capacity(),
        " of a reproducible fleet, want none: which tokens are dropped depends "
        "on the others of a step"));
  }
  if (settings.experts().rebalance() == v1::EXPERT_REBALANCE_AUTO) {
    return absl::InvalidArgumentError(
        "experts rebalance auto of a reproducible fleet, want off: experts "
        "that move change bits");
  }
  if (settings.prefill_strategy() == v1::PREFILL_STRATEGY_WEIGHT_GATHER) {
    return absl::InvalidArgumentError(
        "prefill strategy weight_gather of a reproducible fleet, want another: "
        "it adds in another order than decodes");
  }
  return absl::OkStatus();
}

absl::Status Check(const FleetOptions& options,
                   const cluster::ModelSpec& spec) {
  const cluster::MeshShape& mesh = options.mesh;
  if (mesh.data < 1 || mesh.expert < 1 || mesh.tensor < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh ", mesh.data, "x", mesh.expert, "x", mesh.tensor,
                     ", want 1 or more on each axis"));
  }
  if (mesh.world_size() > cluster::kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh of ", mesh.world_size(), " ranks, want at most ",
                     cluster::kMaxWorkers));
  }
  // Ranks' own checks would come only after all of them have registered.
  RF_RETURN_IF_ERROR(cluster::PlanShard(spec, mesh, /*rank=*/0).status());
  if (mesh.data > 1 && options.settings.prefill_strategy() ==
                           v1::PREFILL_STRATEGY_WEIGHT_GATHER) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefill strategy weight_gather with mesh data ", mesh.data,
        ", want another, or data 1: a data group lacks the experts of others"));
  }
  if (options.settings.reproducible()) {
    RF_RETURN_IF_ERROR(CheckReproducible(options.settings));
  }
  if (options.settings.parallel() < 1) {
    return absl::InvalidArgumentError("slots 0, want 1 or more");
  }
  const bool dense = options.settings.attention() == v1::ATTENTION_FORM_DENSE;
  const int most = spec.MostPositions(dense);
  if (options.settings.context() > static_cast<uint32_t>(most)) {
    return absl::InvalidArgumentError(
        absl::StrCat("context: ", options.settings.context(), ", want at most ",
                     most, " (", spec.MostPositionsCause(dense), ")"));
  }
  return absl::OkStatus();
}

// Limits requests to the positions where dense attention equals the sparse one
// of the model.
void LimitPositions(const cluster::ModelSpec& spec, FleetOptions* options) {
  if (options->settings.attention() == v1::ATTENTION_FORM_DENSE) return;
  if (spec.MostPositions(false) == spec.MostPositions(true)) return;
  options->most_prompt_ids = spec.MostPositions(false);
  options->most_prompt_ids_cause = std::string(spec.MostPositionsCause(false));
}

// Sums up values of ranks for each coordinate. Ranks of a coordinate wait for
// each other, so the least value counts for each of them. Empty if a value is
// unknown.
std::vector<double> OfCoordinates(const std::vector<double>& by_rank,
                                  const cluster::MeshShape& mesh) {
  if (by_rank.size() != static_cast<size_t>(mesh.world_size())) return {};
  std::vector<double> sums;
  for (int coordinate = 0; coordinate < mesh.num_coordinates(); ++coordinate) {
    const auto first = by_rank.begin() + coordinate * mesh.tensor;
    sums.push_back(*std::min_element(first, first + mesh.tensor) * mesh.tensor);
    if (sums.back() <= 0) return {};
  }
  return sums;
}

// Fills in what follows from the model and the mesh.
absl::Status PlaceExperts(const cluster::ModelSpec& spec,
                          FleetOptions* options) {
  ExpertFacts& facts = options->experts;
  const auto slots = static_cast<int>(options->settings.experts().slots());
  for (int layer = 0; layer < spec.num_hidden_layers; ++layer) {
    if (spec.IsMoeLayer(layer)) facts.layers.push_back(layer);
  }
  facts.num_layers = spec.num_hidden_layers + 1;
  facts.mtp =
      spec.num_nextn_predict_layers > 0 && !options->settings.without_mtp();
  facts.num_experts = spec.n_routed_experts;
  facts.num_groups = std::max(spec.n_group, 1);
  facts.num_coordinates = options->mesh.num_coordinates();
  const kernels::WeightForm form =
      cluster::FormsOf(options->settings.dtype(), spec).experts;
  for (int i = 0; i < options->mesh.tensor; ++i) {
    const auto columns = static_cast<size_t>(
        cluster::SplitExpert(spec, options->mesh.tensor, i).size());
    const size_t hidden = spec.hidden_size;
    facts.expert_bytes +=
        2 * kernels::WeightMatrix::Bytes(form, columns, hidden) +
        kernels::WeightMatrix::Bytes(form, hidden, columns);
  }
  if (facts.layers.empty()) {
    if (slots == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "expert slots ", slots, ", want none: ", options->settings.model(),
        " has no experts"));
  }
  facts.coordinate_memory = OfCoordinates(options->memory_gib, options->mesh);
  for (const double gbps : OfCoordinates(options->read_gbps, options->mesh)) {
    facts.coordinate_speeds.push_back(static_cast<float>(gbps));
  }
  RF_ASSIGN_OR_RETURN(
      facts.coordinate_replicas,
      DealReplicas(slots == 0 ? facts.num_experts : slots, facts.num_experts,
                   facts.num_coordinates, facts.coordinate_memory));
  RF_ASSIGN_OR_RETURN(options->layout, InitialLayout(facts));
  return absl::OkStatus();
}

}  // namespace

CoordinatorServer::CoordinatorServer(CoordinatorOptions options,
                                     std::unique_ptr<ServedModel> model)
    : options_(std::move(options)),
      model_(std::move(model)),
      fleet_(options_.fleet, cluster::GetBuildInfo()),
      coordinator_service_(model_.get(), &fleet_, options_.fleet.settings),
      membership_service_(&fleet_) {
  // Workers are told of it only if all its files are there.
  files_service_.Serve(options_.fleet.settings.model());
}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    CoordinatorOptions options) {
  RF_ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> model,
                      ServedModel::Load(options.fleet.settings.model()));
  RF_RETURN_IF_ERROR(Check(options.fleet, model->spec()));
  LimitPositions(model->spec(), &options.fleet);
  RF_RETURN_IF_ERROR(PlaceExperts(model->spec(), &options.fleet));
  auto coordinator = std::unique_ptr<CoordinatorServer>(
      new CoordinatorServer(std::move(options), std::move(model)));
  // Whoever cannot listen takes no store from another process.
  RF_RETURN_IF_ERROR(
      cluster::ListeningSockets::Open(coordinator->options_.listen).status());
  if (coordinator->options_.http.has_value()) {
    RF_RETURN_IF_ERROR(
        cluster::ListeningSockets::Open(coordinator->options_.http->listen)
            .status());
  }
  RF_RETURN_IF_ERROR(coordinator->OpenStore());
  for (const std::string& notice : coordinator->notices()) {
    RF_LOG(kWarning, notice);
  }
  RF_ASSIGN_OR_RETURN(
      coordinator->server_,
      cluster::DaemonServer::Start(
          coordinator->options_.listen, coordinator->options_.allow_insecure,
          [&coordinator](grpc::ServerBuilder& builder) {
            builder.SetMaxReceiveMessageSize(cluster::kMaxMessageBytes);
            builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                                       kMaxIdleMs);
            builder.RegisterService(&coordinator->coordinator_service_);
            builder.RegisterService(&coordinator->membership_service_);
            builder.RegisterService(&coordinator->files_service_);
          }));
  RF_LOG(kInfo, "listening on ",
         cluster::FormatAddress(
             {coordinator->options_.listen.host, coordinator->port()}));
  if (coordinator->options_.http.has_value()) {
    HttpOptions http = *coordinator->options_.http;
    http.routes = coordinator->batch_endpoints_.get();
    RF_ASSIGN_OR_RETURN(
        coordinator->http_,
        HttpFace::Start(http, coordinator->model_.get(),
                        coordinator->options_.fleet.settings.model(),
                        &coordinator->coordinator_service_.jobs()));
  }
  return coordinator;
}

CoordinatorServer::~CoordinatorServer() { Shutdown(); }

absl::Status CoordinatorServer::OpenStore() {
  const StateOptions& state = options_.state;
  if (state.folder.empty()) return absl::OkStatus();
  StoreOptions options;
  options.folder = state.folder;
  options.description = absl::StrCat("fleet ", options_.fleet.name);
  // Batches that a folder has must not seem to be lost.
  const bool required =
      state.required ||
      access(absl::StrCat(state.folder, "/state.db").c_str(), F_OK) == 0;
  absl::StatusOr<std::unique_ptr<Store>> store =
      Store::Open(std::move(options));
  if (!store.ok()) {
    if (required) return Annotate(store.status(), "state_dir");
    RF_LOG(kWarning, "no batches: ", store.status().message());
    coordinator_service_.batches().SetMissing(store.status());
    return absl::OkStatus();
  }
  store_ = *std::move(store);
  const v1::FleetSettings& settings = options_.fleet.settings;
  BatchRunnerOptions runner;
  runner.store = store_.get();
  runner.model = model_.get();
  runner.jobs = &coordinator_service_.jobs();
  runner.served_name = ServedName(
      options_.http.has_value() ? options_.http->alias : "", settings.model());
  if (options_.http.has_value()) {
    runner.default_max_tokens = options_.http->default_max_tokens;
  }
  runner.keep_time = absl::Hours(24) * settings.state_days();
  runner.keep_bytes = int64_t{settings.state_gib()} << 30;
  // Slots stay busy while outcomes are committed.
  runner.window = size_t{2} * options_.fleet.mesh.data * settings.parallel();
  batches_ = Batches::Start(runner);
  coordinator_service_.batches().Set(batches_.get());
  batch_endpoints_ = std::make_unique<BatchEndpoints>(batches_.get());
  detached_ = std::make_unique<DetachedJobs>(
      store_.get(), [this] { return fleet_.has_ended(); });
  coordinator_service_.KeepDetached(detached_.get());
  RF_LOG(kInfo, "batches are kept in ", state.folder);
  return absl::OkStatus();
}

void CoordinatorServer::DrainHttp(cluster::Deadline deadline) {
  if (http_ == nullptr || http_->Drain(deadline)) return;
  RF_LOG(kWarning, "http: answers still run, they end with an error");
}

void CoordinatorServer::Shutdown() {
  fleet_.Shutdown();
  const auto deadline = cluster::Deadline::After(options_.shutdown_grace);
  if (http_ != nullptr) {
    http_->Drain(deadline);  // Answers whose jobs have failed say so.
    http_->Stop(deadline.Remaining());
  }
  coordinator_service_.calls().WaitNone(deadline);
  membership_service_.calls().WaitNone(deadline);
  if (server_ != nullptr) server_->Shutdown(kFlushTime);
  if (store_ == nullptr) return;
  detached_->Stop();
  store_->Stop();
}

}  // namespace ringfleet::coordinator
