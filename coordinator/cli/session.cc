// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/session.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/config/settings.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/recording/trace_recorder.h"
#include "cluster/rpc/channel.h"
#include "coordinator/cli/fleet_json.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kMaxLocal = 16;
constexpr std::chrono::seconds kDescribeTimeout{5};
// Time for the answer of a coordinator that need not be there.
constexpr std::chrono::seconds kAnswerTimeout{2};
// A channel shows that its connection has broken shortly after the calls do.
constexpr std::chrono::milliseconds kBreakTime{200};

// True if a call failed with its connection. gRPC's message names nobody then,
// unlike the coordinator's message about a worker.
bool ConnectionBroke(grpc::Channel& channel) {
  return channel.WaitForStateChange(
      GRPC_CHANNEL_READY, std::chrono::system_clock::now() + kBreakTime);
}

// Returns true if the host refused the connection.
bool NothingListens(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (absl::StrContains(status.error_message(), "Connection refused") ||
          absl::StrContains(status.error_message(), "FD shutdown"));
}

// Tells what the model asks for and will not get. An unreadable file is for
// others to report.
void ShowIgnoredDefaults(const std::string& model) {
  const auto defaults = cluster::LoadGenerationDefaults(model);
  if (!defaults.ok()) return;
  for (const std::string& setting : defaults->ignored) {
    std::fprintf(stderr,
                 "generation_config.json: %s is not supported, ignored\n",
                 setting.c_str());
  }
}

}  // namespace

FleetFlags AddSessionOptions(CLI::App& app, SessionOptions& options,
                             bool with_threads) {
  // A model beside a running fleet must be that fleet's.
  options.flags.Add(app, "model");
  const FleetFlags fleet = AddFleetChoice(app, options.fleet);
  app.add_option(
         "--local", options.local,
         "Start this many workers on this machine for this command. One "
         "that dies starts again")
      ->check(CLI::Range(1, kMaxLocal))
      ->excludes(fleet.cluster)
      ->excludes(fleet.coordinator)
      ->capture_default_str();
  options.flags.AddAll(
      app,
      {"model", "parallel", "reference", "state_dir", "state_days", "state_gib",
       with_threads ? "" : "threads"},
      {fleet.cluster, fleet.coordinator});
  AddTraceOption(app, options);
  return fleet;
}

CLI::Option* AddTraceOption(CLI::App& app, SessionOptions& options) {
  return app.add_option(
      "--trace", options.trace,
      absl::StrCat("Write a timeline of all workers, other jobs included, as "
                   "JSON for ui.perfetto.dev and perf/overlap: the latest ",
                   cluster::TraceRecorder::kDefaultEvents,
                   " events of each worker"));
}

std::shared_ptr<grpc::Channel> ConnectChannel(const std::string& address) {
  grpc::ChannelArguments arguments = cluster::DirectArguments();
  arguments.SetMaxReceiveMessageSize(cluster::kMaxMessageBytes);
  std::shared_ptr<grpc::Channel> channel =
      cluster::OpenChannel(address, arguments);
  cluster::AwaitConnection(*channel);  // Without one, the calls say why.
  return channel;
}

absl::StatusOr<v1::ClusterState> DescribeFleet(const std::string& address) {
  const auto stub = v1::Coordinator::NewStub(ConnectChannel(address));
  InterruptibleCall call;
  call.context()->set_deadline(std::chrono::system_clock::now() +
                               kAnswerTimeout);
  v1::ClusterState state;
  RF_RETURN_IF_ERROR(cluster::FromGrpc(stub->DescribeCluster(
      call.context(), v1::DescribeClusterRequest(), &state)));
  return state;
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(
    const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session());
  RF_RETURN_IF_ERROR(session->trace_.Open(options.trace));
  const bool runs = options.fleet.given() || options.local == 0;
  RF_RETURN_IF_ERROR(runs ? session->Connect(options)
                          : session->StartLocally(options));
  const absl::Status traced = session->trace_.Start(*session->stub_);
  if (!traced.ok()) return session->Finish(traced);
  return session;
}

absl::Status Session::Connect(const SessionOptions& options) {
  RF_ASSIGN_OR_RETURN(const FleetPlace place, FindFleet(options.fleet));
  address_ = place.address;
  channel_ = ConnectChannel(address_);
  stub_ = v1::Coordinator::NewStub(channel_);
  InterruptibleCall call;
  call.context()->set_deadline(std::chrono::system_clock::now() +
                               kDescribeTimeout);
  v1::ClusterState state;
  const grpc::Status status = stub_->DescribeCluster(
      call.context(), v1::DescribeClusterRequest(), &state);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (NothingListens(status)) {
    return absl::UnavailableError(absl::StrCat(
        "coordinator: nothing listens on ", address_,
        place.config.has_value()
            ? absl::StrCat("; `ringfleet up --cluster ", options.fleet.cluster,
                           "` starts the fleet")
            : ""));
  }
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat("coordinator: no answer from ",
                                               address_, " (",
                                               status.error_message(), ")"));
  }
  if (place.config.has_value()) {
    RF_RETURN_IF_ERROR(CheckIsOfFile(state, *place.config));
  }
  const std::string model = options.flags.Given("model");
  if (!model.empty() && !cluster::IsSameModel(model, state.model())) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --model ", model, ", but the fleet ", state.name(),
                     " serves ", state.model()));
  }
  if (options.samples) ShowIgnoredDefaults(state.model());
  const bool waits =
      state.state() != v1::FLEET_STATE_READY &&
      (state.state() != v1::FLEET_STATE_FAILED || !IsWhole(state));
  if (options.runs_jobs && waits) {
    // A user who sees nothing would take it for a hang.
    std::fprintf(
        stderr, "fleet %s is %s%s%s: waiting until it is ready\n",
        OneLine(state.name()).c_str(), FleetStateName(state.state()).c_str(),
        state.error().empty() ? "" : ", ", OneLine(state.error()).c_str());
  }
  return absl::OkStatus();
}

absl::Status Session::StartLocally(const SessionOptions& options) {
  RF_ASSIGN_OR_RETURN(v1::FleetSettings settings, options.flags.Read());
  if (!settings.has_model()) {
    return absl::InvalidArgumentError(
        "usage: no model, want --model DIR, --cluster FILE or --coordinator "
        "HOST:PORT");
  }
  if (!settings.has_mesh()) {
    cluster::SetMesh({.tensor = options.local}, &settings);
  }
  const int world_size = cluster::MeshOf(settings).world_size();
  if (world_size != options.local) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --mesh ", options.flags.Given("mesh"), " has ",
                     world_size, " ranks, want --local ", world_size,
                     " beside it, not ", options.local));
  }
  // Workers run with this process's working directory, but say it once.
  settings.set_model(cluster::AbsoluteModel(settings.model()));
  if (settings.has_cache_dir()) {
    std::error_code error;  // With one, the path stays as it is.
    const std::filesystem::path folder =
        std::filesystem::absolute(settings.cache_dir(), error);
    if (!error) settings.set_cache_dir(folder);
  }
  if (options.samples) ShowIgnoredDefaults(settings.model());
  settings.set_parallel(1);
  settings.MergeFrom(options.settings);
  cluster::FillDefaults(&settings);
  RF_ASSIGN_OR_RETURN(FleetOptions fleet,
                      MakeFleetOptions(std::move(settings), "usage: --"));
  fleet.name = "local";
  // The workers end with the command.
  fleet.await_shard_cache = fleet.settings.has_cache_dir();
  RF_ASSIGN_OR_RETURN(
      local_, LocalFleet::Start(std::move(fleet), options.http, options.state));
  channel_ = ConnectChannel(local_->address());
  stub_ = v1::Coordinator::NewStub(channel_);
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

bool Session::AwaitConnection(absl::Duration time) {
  return cluster::AwaitConnection(*channel_, time);
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
