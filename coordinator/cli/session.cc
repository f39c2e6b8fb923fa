// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/session.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/config/config.h"
#include "cluster/model/dtype_names.h"
#include "cluster/model/prefill_strategy.h"
#include "cluster/model/shard_plan.h"
#include "cluster/placement/placement.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/recording/trace_recorder.h"
#include "cluster/rpc/channel.h"
#include "cluster/rpc/server.h"
#include "cluster/transport/transport_kind.h"
#include "cluster/wire/op_descriptor.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/launch/fleet_json.h"
#include "coordinator/cli/value_checks.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kMaxLocal = 16;
constexpr std::chrono::seconds kDescribeTimeout{5};
// A channel shows that its connection has broken shortly after the calls do.
constexpr std::chrono::milliseconds kBreakTime{200};

// Whether a call failed with its connection. What gRPC says then names nobody;
// what the coordinator says of a worker does.
bool ConnectionBroke(grpc::Channel& channel) {
  return channel.WaitForStateChange(
      GRPC_CHANNEL_READY, std::chrono::system_clock::now() + kBreakTime);
}

// The table of the file that `option` names, if it names one.
template <typename Table>
absl::Status LoadTable(absl::string_view option, const std::string& path,
                       Table* table) {
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<Table> loaded = Table::Load(path);
  if (!loaded.ok()) {
    return absl::Status(
        loaded.status().code(),
        absl::StrCat("usage: ", option, " ", loaded.status().message()));
  }
  *table = *std::move(loaded);
  return absl::OkStatus();
}

}  // namespace

void AddSessionOptions(CLI::App& app, SessionOptions& options) {
  app.add_option("-m,--model", options.model,
                 "Folder of a checkpoint in the hub's format, or "
                 "synth:tiny, synth:r1-slice for random weights")
      ->check(Utf8Path());
  auto* cluster = app.add_option("--cluster", options.cluster,
                                 "Cluster file of a running fleet");
  app.add_option("--local", options.local,
                 "Start this many workers on this machine for this command")
      ->check(CLI::Range(1, kMaxLocal))
      ->excludes(cluster)
      ->capture_default_str();
  app.add_option(
         "--dtype", options.dtype,
         absl::StrCat("Weights in memory: ", cluster::kWeightDtypeChoices))
      ->excludes(cluster)
      ->capture_default_str();
  app.add_option("--cache-type", options.cache_type,
                 absl::StrCat("Latent cache: ", cluster::kCacheDtypeChoices,
                              " (default f32 with --dtype f32, else bf16)"))
      ->excludes(cluster);
  app.add_option("--wire", options.wire,
                 "Activations between workers: f32, bf16 or int8")
      ->excludes(cluster)
      ->capture_default_str();
  app.add_option("--prefill-strategy", options.prefill_strategy,
                 absl::StrCat("How workers share out a prompt's tokens: ",
                              cluster::kPrefillStrategyChoices,
                              "; auto: sequence_parallel from ",
                              cluster::kMinShardedRows, " tokens per worker"))
      ->excludes(cluster)
      ->capture_default_str();
  app.add_option("--transport", options.transport,
                 "Between local workers: grpc, or auto: what workers of one "
                 "host agree on")
      ->excludes(cluster)
      ->capture_default_str();
  app.add_option("--collectives", options.collectives,
                 "Which algorithm carries which collective between local "
                 "workers: a file that `collectives --calibrate` wrote")
      ->excludes(cluster);
  app.add_option("--tiles", options.tiles,
                 "How local workers cut products that are fused with an "
                 "exchange: a file that `collectives --tune` wrote")
      ->excludes(cluster);
  app.add_option("--cache-dir", options.cache_dir,
                 "Folder for the local workers' packed weights: the first "
                 "command writes them there, the next ones map them")
      ->excludes(cluster)
      ->check(Utf8Path());
  app.add_option("-t,--threads", options.threads,
                 "Threads per worker; 0: the cores divided by --local")
      ->excludes(cluster)
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("-c,--ctx-size", options.context,
                 "Positions per sequence; 0: the model's maximum, or what "
                 "memory holds")
      ->excludes(cluster)
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--mesh", options.mesh,
                 "DATAxEXPERTxTENSOR of the local workers, as in 1x2x1 "
                 "[1x1xN: every worker has a part of each expert]")
      ->excludes(cluster);
  app.add_option(
         "--expert-slots", options.expert_slots,
         "Experts that the places of the mesh's data and expert axes hold "
         "together in each layer; beyond the model's number, copies; "
         "0: no copies")
      ->excludes(cluster)
      ->check(CLI::Range(0, cluster::kMaxReplicas));
  app.add_option("--expert-capacity", options.expert_capacity,
                 "Tokens that a place takes in a layer, in fair shares, as in "
                 "2: what is beyond is dropped and counted; 0: nothing is")
      ->excludes(cluster)
      ->check(CLI::Range(0.0, 1024.0));
  AddTraceOption(app, options);
}

CLI::Option* AddTraceOption(CLI::App& app, SessionOptions& options) {
  return app.add_option(
      "--trace", options.trace,
      absl::StrCat("Write what every worker computes, sends, receives and "
                   "waits for meanwhile, of other jobs too, as JSON for "
                   "ui.perfetto.dev and perf/overlap: the latest ",
                   cluster::TraceRecorder::kDefaultEvents, " events of each"));
}

std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address) {
  grpc::ChannelArguments arguments = cluster::DirectArguments();
  arguments.SetMaxReceiveMessageSize(cluster::kMaxMessageBytes);
  std::shared_ptr<grpc::Channel> channel =
      cluster::OpenChannel(address, arguments);
  cluster::AwaitConnection(*channel);  // Without one, the calls say why.
  return channel;
}

absl::StatusOr<std::string> CoordinatorAddress(
    const std::string& cluster_file) {
  RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(cluster_file));
  return cluster::FormatAddress(
      {config.coordinator.host, config.coordinator.port});
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(
    const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session());
  RF_RETURN_IF_ERROR(session->trace_.Open(options.trace));
  RF_RETURN_IF_ERROR(options.cluster.empty() ? session->StartLocally(options)
                                             : session->Connect(options));
  const absl::Status traced = session->trace_.Start(*session->stub_);
  if (!traced.ok()) return session->Finish(traced);
  return session;
}

absl::Status Session::Connect(const SessionOptions& options) {
  RF_ASSIGN_OR_RETURN(address_, CoordinatorAddress(options.cluster));
  channel_ = ConnectChannel(address_);
  stub_ = v1::Coordinator::NewStub(channel_);
  InterruptibleCall call;
  call.context()->set_deadline(std::chrono::system_clock::now() +
                               kDescribeTimeout);
  v1::ClusterState state;
  const grpc::Status status = stub_->DescribeCluster(
      call.context(), v1::DescribeClusterRequest(), &state);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("coordinator: no answer from ", address_, " (",
                     status.error_message(), "); is the fleet up?"));
  }
  if (!options.model.empty() &&
      !cluster::IsSameModel(options.model, state.model())) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --model ", options.model, ", but the fleet ",
                     state.name(), " serves ", state.model()));
  }
  const bool waits =
      state.state() != v1::FLEET_STATE_READY &&
      (state.state() != v1::FLEET_STATE_FAILED || !IsWhole(state));
  if (options.runs_jobs && waits) {
    // A user who sees nothing would take it for a hang.
    std::fprintf(stderr, "fleet %s is %s%s%s: waiting until it is ready\n",
                 state.name().c_str(), FleetStateName(state.state()).c_str(),
                 state.error().empty() ? "" : ", ", state.error().c_str());
  }
  return absl::OkStatus();
}

absl::Status Session::StartLocally(const SessionOptions& options) {
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        "usage: no model, want --model DIR or --cluster FILE");
  }
  const absl::StatusOr<v1::Dtype> dtype =
      cluster::ParseWeightDtype(options.dtype);
  if (!dtype.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --", dtype.status().message()));
  }
  v1::CacheDtype cache_dtype = v1::CACHE_DTYPE_UNSPECIFIED;
  if (!options.cache_type.empty()) {
    const absl::StatusOr<v1::CacheDtype> parsed =
        cluster::ParseCacheDtype(options.cache_type);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("usage: ", parsed.status().message()));
    }
    cache_dtype = *parsed;
  }
  const absl::StatusOr<cluster::Wire> wire = cluster::ParseWire(options.wire);
  if (!wire.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --", wire.status().message()));
  }
  const absl::StatusOr<v1::PrefillStrategy> prefill_strategy =
      cluster::ParsePrefillStrategy(options.prefill_strategy);
  if (!prefill_strategy.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --", prefill_strategy.status().message()));
  }
  const absl::StatusOr<v1::TransportKind> transport =
      cluster::ParseTransport(options.transport);
  if (!transport.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --", transport.status().message()));
  }
  FleetOptions fleet;
  fleet.name = "local";
  // Workers run with this process's working directory, but say it once.
  fleet.model_dir = cluster::AbsoluteModel(options.model);
  fleet.mesh = {.data = 1, .expert = 1, .tensor = options.local};
  if (!options.mesh.empty()) {
    const absl::StatusOr<cluster::MeshShape> mesh =
        cluster::ParseMesh(options.mesh);
    if (!mesh.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("usage: ", mesh.status().message()));
    }
    if (mesh->world_size() != options.local) {
      return absl::InvalidArgumentError(
          absl::StrCat("usage: --mesh ", options.mesh, " has ",
                       mesh->world_size(), " ranks, want --local ",
                       mesh->world_size(), " beside it, not ", options.local));
    }
    fleet.mesh = *mesh;
  }
  fleet.expert_slots = options.expert_slots;
  fleet.expert_capacity = options.expert_capacity;
  fleet.dtype = *dtype;
  fleet.cache_dtype = cache_dtype;
  fleet.wire = cluster::WireToProto(*wire);
  fleet.prefill_strategy = *prefill_strategy;
  fleet.transport = *transport;
  RF_RETURN_IF_ERROR(
      LoadTable("--collectives", options.collectives, &fleet.collectives));
  RF_RETURN_IF_ERROR(LoadTable("--tiles", options.tiles, &fleet.tiles));
  if (!options.cache_dir.empty()) {
    std::error_code error;  // With one, the path stays as it is.
    fleet.shard_cache = std::filesystem::absolute(options.cache_dir, error);
    if (error) fleet.shard_cache = options.cache_dir;
    // The workers end with the command.
    fleet.await_shard_cache = true;
  }
  fleet.context = options.context;
  fleet.threads = options.threads;
  fleet.slots = options.slots;
  fleet.reference = options.reference;
  RF_ASSIGN_OR_RETURN(local_, LocalFleet::Start(std::move(fleet)));
  stub_ = v1::Coordinator::NewStub(ConnectChannel(local_->address()));
  return absl::OkStatus();
}

absl::Status Session::Finish(absl::Status status) {
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (status.ok()) status = trace_.Finish();
  if (local_ == nullptr) {
    return absl::IsUnavailable(status) && ConnectionBroke(*channel_)
               ? Annotate(status, absl::StrCat("coordinator ", address_))
               : status;
  }
  if (status.ok()) status = local_->Stop();
  if (!status.ok()) local_->Explain(status);
  return status;
}

absl::Status Session::Finish(absl::Status status, Invocation& invocation,
                             absl::FunctionRef<absl::Status()> print) {
  const bool whole = status.ok();
  absl::Status ended = Finish(std::move(status));
  if (!whole || absl::IsCancelled(ended)) return ended;
  RF_RETURN_IF_ERROR(print());
  invocation.json = false;
  return ended;
}

}  // namespace ringfleet::coordinator::cli
