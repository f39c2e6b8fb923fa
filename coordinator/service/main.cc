// SPDX-License-Identifier: Apache-2.0
// ringfleet-coordinator: owns a fleet's requests and its membership.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/config/config.h"
#include "cluster/config/settings.h"
#include "cluster/process/build_info.h"
#include "cluster/process/fatal_signal.h"
#include "cluster/process/forced_exit.h"
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/standard_streams.h"
#include "cluster/process/status_macros.h"
#include "cluster/process/thread_limit.h"
#include "cluster/rpc/server.h"
#include "coordinator/service/coordinator_server.h"
#include "coordinator/service/http_flags.h"
#include "coordinator/service/setting_flags.h"
#include "coordinator/service/state_folder.h"

namespace ringfleet::coordinator {
namespace {

constexpr char kFooter[] = R"(
One coordinator and as many workers as the mesh has ranks make a fleet. Workers
register by themselves; the order of the starts does not matter.

Examples
  A fleet as cluster.yaml describes it (ringfleet up does this on all hosts):
    ringfleet-coordinator --cluster cluster.yaml

  By hand, two workers on this machine, each holding half of every layer:
    ringfleet-coordinator --model DIR --world 2 --listen 127.0.0.1:50051
    ringfleet-worker --rank 0 --listen 127.0.0.1:50052
    ringfleet-worker --rank 1 --listen 127.0.0.1:50053
    ringfleet status --coordinator 127.0.0.1:50051
    ringfleet submit --coordinator 127.0.0.1:50051 -p "def main("

  Such a fleet is named "ringfleet", also in a cluster file that describes it.

  Experts over 4 ranks, the columns inside each expert over 2:
    ringfleet-coordinator --model DIR --mesh 1x4x2

  With OpenAI's API for clients on this machine:
    ringfleet-coordinator --model DIR --http 127.0.0.1:8080

SIGTERM or SIGINT ends it: answers over HTTP may end within --drain, other jobs
fail with UNAVAILABLE, the workers stay and join the next coordinator. Exit: 0 ended by a signal, 1 other failure,
2 usage or bad input.
)";

struct Flags {
  std::string cluster;
  SettingFlags settings;
  int world = 0;
  std::string listen = "127.0.0.1:50051";
  std::string http;
  // Shorter than the time after which launch scripts kill a process.
  HttpFlags http_flags{"5s"};
  bool insecure = false;
  std::string port_file;
  std::string log_file;
  std::string log_level = "info";
};

absl::StatusOr<CoordinatorOptions> FromFlags(const Flags& flags) {
  CoordinatorOptions options;
  RF_ASSIGN_OR_RETURN(v1::FleetSettings settings, flags.settings.Read());
  if (!settings.has_model()) {
    return absl::InvalidArgumentError("no --model and no --cluster, want one");
  }
  if (!settings.has_mesh()) {
    cluster::SetMesh({.tensor = std::max(1, flags.world)}, &settings);
  }
  const int world_size = cluster::MeshOf(settings).world_size();
  if (flags.world != 0 && flags.world != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--world ", flags.world, ", want ", world_size,
                     " as --mesh ", flags.settings.Given("mesh"), " has"));
  }
  cluster::FillDefaults(&settings);
  RF_ASSIGN_OR_RETURN(options.fleet,
                      MakeFleetOptions(std::move(settings), "--"));
  options.fleet.name = "ringfleet";
  RF_ASSIGN_OR_RETURN(options.listen, cluster::ParseAddress(flags.listen));
  if (!flags.http.empty()) {
    RF_ASSIGN_OR_RETURN(options.http.emplace().listen,
                        cluster::ParseAddress(flags.http));
  }
  return options;
}

absl::StatusOr<CoordinatorOptions> FromClusterFile(const Flags& flags) {
  RF_ASSIGN_OR_RETURN(cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(flags.cluster));
  RF_ASSIGN_OR_RETURN(const v1::FleetSettings given, flags.settings.Read());
  config.settings.MergeFrom(given);
  CoordinatorOptions options;
  RF_ASSIGN_OR_RETURN(options.fleet,
                      MakeFleetOptions(config.settings, /*prefix=*/""));
  options.fleet.name = config.name;
  options.fleet.cluster_file = cluster::FormatClusterConfig(config);
  for (const cluster::WorkerConfig& worker : config.workers) {
    options.fleet.memory_gib.push_back(worker.memory_gib);
    options.fleet.read_gbps.push_back(worker.read_gbps);
  }
  // Without a home a fleet has no batches, unless state_dir names a folder.
  options.state.folder = StateFolder(config.name).value_or("");
  options.listen = {config.coordinator.host, config.coordinator.port};
  options.allow_insecure = config.security == cluster::SecurityMode::kInsecure;
  if (config.http.has_value()) {
    const cluster::HttpConfig& http = *config.http;
    options.http =
        HttpOptions{.listen = {http.host, http.port},
                    .alias = http.alias,
                    .access = {.api_key_file = http.api_key_file,
                               .tls_certificate_file = http.tls_cert,
                               .tls_key_file = http.tls_key,
                               .tls_client_ca_file = http.tls_client_ca,
                               .cors_origins = http.cors_origins}};
    if (http.request_timeout_s > 0) {
      options.http->request_timeout = absl::Seconds(http.request_timeout_s);
    }
  }
  return options;
}

cluster::LogLevel ParseLogLevel(const std::string& text) {
  if (text == "debug") return cluster::LogLevel::kDebug;
  if (text == "warning") return cluster::LogLevel::kWarning;
  if (text == "error") return cluster::LogLevel::kError;
  return cluster::LogLevel::kInfo;
}

absl::Status Run(const Flags& flags) {
  cluster::SetLogName("coordinator");
  RF_RETURN_IF_ERROR(
      cluster::InitLog(flags.log_file, ParseLogLevel(flags.log_level)));
  cluster::ForcedExit forced_exit;  // Outlives the server.
  // Every job that waits or runs has a connection of its caller's.
  cluster::RaiseOpenFileLimit();
  RF_ASSIGN_OR_RETURN(CoordinatorOptions options, flags.cluster.empty()
                                                      ? FromFlags(flags)
                                                      : FromClusterFile(flags));
  options.allow_insecure |= flags.insecure;
  if (options.fleet.settings.has_state_dir()) {
    options.state = {.folder = options.fleet.settings.state_dir(),
                     .required = true};
  }
  RF_ASSIGN_OR_RETURN(const absl::Duration drain, flags.http_flags.Drain());
  if (options.http.has_value()) {
    RF_RETURN_IF_ERROR(flags.http_flags.Read(&*options.http));
    options.http->allow_insecure = options.allow_insecure;
  }
  RF_RETURN_IF_ERROR(cluster::CheckThreads(
      cluster::CoordinatorThreads(options.fleet.mesh.world_size()) +
      (options.http.has_value() ? HttpFace::kThreads : 0) +
      (options.state.folder.empty() ? 0 : CoordinatorServer::kStoreThreads)));
  RF_ASSIGN_OR_RETURN(const auto server,
                      CoordinatorServer::Start(std::move(options)));
  if (!flags.port_file.empty()) {
    RF_RETURN_IF_ERROR(cluster::WritePortFile(flags.port_file, server->port()));
  }
  const int signal = cluster::WaitForSignal();
  RF_LOG(kInfo, "stopping on signal ", signal);
  forced_exit.After(drain + cluster::kLongestEnd);
  server->DrainHttp(cluster::Deadline::After(drain));
  server->Shutdown();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  cluster::EndWithoutResources("ringfleet-coordinator");
  cluster::ConfigureGrpcProcess();
  cluster::BlockTerminationSignals();
  std::signal(SIGPIPE, SIG_IGN);  // Nobody reads the log: jobs go on.
  std::signal(SIGXFSZ, SIG_IGN);  // A limit on files' sizes is an error.
  cluster::ExplainCrashes("ringfleet-coordinator");
  CLI::App app("Owns the requests and the membership of a ringfleet.",
               "ringfleet-coordinator");
  Flags flags;
  app.set_version_flag("--version", cluster::GetBuildInfo().version());
  app.footer(kFooter);
  auto* by_file =
      app.add_option("--cluster", flags.cluster, "cluster.yaml of the fleet");
  // Workers have a setting of their own for their threads.
  flags.settings.AddAll(app, /*except=*/{"threads"}, {by_file});
  app.add_option("--world", flags.world,
                 "Number of workers, split by tensor (default 1)")
      ->check(CLI::Range(1, cluster::kMaxWorkers))
      ->excludes(by_file);
  app.add_option("--listen", flags.listen,
                 "HOST:PORT; port 0 takes any free one")
      ->capture_default_str()
      ->excludes(by_file);
  app.add_option("--http", flags.http,
                 "HOST:PORT of OpenAI's API; port 0 takes any free one [none]")
      ->excludes(by_file);
  flags.http_flags.Add(app, {by_file});
  app.add_flag("--insecure", flags.insecure,
               "Allow listening on addresses that are not loopback");
  app.add_option("--port-file", flags.port_file,
                 "Write the port there once it is listened on");
  app.add_option("--log-file", flags.log_file, "Append there, not on stderr");
  app.add_option("--log-level", flags.log_level, "Least level that is logged")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  absl::Status status;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // Help, version.
    status = absl::InvalidArgumentError(absl::StrCat(
        "usage: ", error.what(), " (see ringfleet-coordinator --help)"));
  }
  if (status.ok()) status = Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "ringfleet-coordinator: %s\n",
               std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ||
                 status.code() == absl::StatusCode::kNotFound
             ? 2
             : 1;
}

}  // namespace
}  // namespace ringfleet::coordinator

RF_OPEN_STANDARD_STREAMS_FIRST();

int main(int argc, char** argv) {
  return ringfleet::coordinator::Main(argc, argv);
}
