// SPDX-License-Identifier: Apache-2.0
#include "coordinator/coordinator_server.h"

#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/build_info.h"
#include "cluster/config.h"
#include "cluster/log.h"
#include "cluster/shard_plan.h"
#include "cluster/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// For the last statuses to reach their sockets.
constexpr absl::Duration kFlushTime = absl::Milliseconds(100);

// A score of a long text goes beyond gRPC's 4 MiB default.
constexpr int kMaxMessageBytes = 64 << 20;

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
  if (options.slots < 1) {
    return absl::InvalidArgumentError("slots 0, want 1 or more");
  }
  if (options.context > static_cast<uint32_t>(spec.max_position_embeddings)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "context ", options.context, ", want at most ",
        spec.max_position_embeddings, " (max_position_embeddings)"));
  }
  return absl::OkStatus();
}

}  // namespace

CoordinatorServer::CoordinatorServer(CoordinatorOptions options,
                                     std::unique_ptr<ServedModel> model)
    : options_(std::move(options)),
      model_(std::move(model)),
      fleet_(options_.fleet, cluster::GetBuildInfo()),
      coordinator_service_(model_.get(), &fleet_, options_.fleet.reference),
      membership_service_(&fleet_) {
  // Workers are told of it only if all its files are there.
  files_service_.Serve(options_.fleet.model_dir);
}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    CoordinatorOptions options) {
  RF_ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> model,
                      ServedModel::Load(options.fleet.model_dir));
  RF_RETURN_IF_ERROR(Check(options.fleet, model->spec()));
  auto coordinator = std::unique_ptr<CoordinatorServer>(
      new CoordinatorServer(std::move(options), std::move(model)));
  RF_ASSIGN_OR_RETURN(
      coordinator->server_,
      cluster::DaemonServer::Start(
          coordinator->options_.listen, coordinator->options_.allow_insecure,
          [&coordinator](grpc::ServerBuilder& builder) {
            builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
            builder.RegisterService(&coordinator->coordinator_service_);
            builder.RegisterService(&coordinator->membership_service_);
            builder.RegisterService(&coordinator->files_service_);
          }));
  RF_LOG(kInfo, "listening on ",
         cluster::FormatAddress(
             {coordinator->options_.listen.host, coordinator->port()}));
  return coordinator;
}

CoordinatorServer::~CoordinatorServer() { Shutdown(); }

void CoordinatorServer::Shutdown() {
  fleet_.Shutdown();
  const auto deadline = cluster::Deadline::After(options_.shutdown_grace);
  coordinator_service_.calls().WaitNone(deadline);
  membership_service_.calls().WaitNone(deadline);
  if (server_ != nullptr) server_->Shutdown(kFlushTime);
}

}  // namespace ringfleet::coordinator
