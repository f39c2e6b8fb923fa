// SPDX-License-Identifier: Apache-2.0
// ringfleet-coordinator: owns a fleet's requests and its membership.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/config/config.h"
#include "cluster/model/dtype_names.h"
#include "cluster/model/prefill_strategy.h"
#include "cluster/model/shard_plan.h"
#include "cluster/placement/placement.h"
#include "cluster/process/build_info.h"
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/standard_streams.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/server.h"
#include "cluster/transport/transport_kind.h"
#include "cluster/wire/op_descriptor.h"
#include "coordinator/service/coordinator_server.h"

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
    ringfleet call 127.0.0.1:50051 ringfleet.v1.Coordinator/DescribeCluster '{}'

  Experts over 4 ranks, the columns inside each expert over 2:
    ringfleet-coordinator --model DIR --mesh 1x4x2

SIGTERM or SIGINT ends it: running jobs fail with UNAVAILABLE, the workers stay
and join the next coordinator. Exit: 0 ended by a signal, 1 other failure,
2 usage or bad input.
)";

struct Flags {
  std::string cluster;
  std::string model;
  int world = 0;
  std::string mesh;
  int expert_slots = 0;
  double expert_capacity = 0;
  std::string listen = "127.0.0.1:50051";
  std::string dtype = "int8";
  std::string cache_type;
  std::string wire = "bf16";
  std::string prefill_strategy = "auto";
  std::string transport = "auto";
  std::string collectives;
  std::string tiles;
  uint32_t context = 0;
  std::optional<uint32_t> parallel;
  bool reference = false;
  std::string cache_dir;
  bool insecure = false;
  std::string port_file;
  std::string log_file;
  std::string log_level = "info";
};

absl::StatusOr<CoordinatorOptions> FromFlags(const Flags& flags) {
  CoordinatorOptions options;
  if (flags.model.empty()) {
    return absl::InvalidArgumentError("no --model and no --cluster, want one");
  }
  options.fleet.name = "ringfleet";
  options.fleet.model_dir = flags.model;
  if (!flags.mesh.empty()) {
    RF_ASSIGN_OR_RETURN(options.fleet.mesh, cluster::ParseMesh(flags.mesh));
    const int world_size = options.fleet.mesh.world_size();
    if (flags.world != 0 && flags.world != world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("--world ", flags.world, ", want ", world_size,
                       " as --mesh ", flags.mesh, " has"));
    }
  } else {
    options.fleet.mesh.tensor = flags.world == 0 ? 1 : flags.world;
  }
  options.fleet.expert_slots = flags.expert_slots;
  options.fleet.expert_capacity = flags.expert_capacity;
  RF_ASSIGN_OR_RETURN(options.fleet.dtype,
                      cluster::ParseWeightDtype(flags.dtype));
  if (!flags.cache_type.empty()) {
    RF_ASSIGN_OR_RETURN(options.fleet.cache_dtype,
                        cluster::ParseCacheDtype(flags.cache_type));
  }
  RF_ASSIGN_OR_RETURN(const cluster::Wire wire, cluster::ParseWire(flags.wire));
  options.fleet.wire = cluster::WireToProto(wire);
  RF_ASSIGN_OR_RETURN(options.fleet.prefill_strategy,
                      cluster::ParsePrefillStrategy(flags.prefill_strategy));
  RF_ASSIGN_OR_RETURN(options.fleet.transport,
                      cluster::ParseTransport(flags.transport));
  if (!flags.collectives.empty()) {
    RF_ASSIGN_OR_RETURN(options.fleet.collectives,
                        cluster::AlgorithmTable::Load(flags.collectives));
  }
  if (!flags.tiles.empty()) {
    RF_ASSIGN_OR_RETURN(options.fleet.tiles,
                        cluster::TileTable::Load(flags.tiles));
  }
  options.fleet.context = flags.context;
  options.fleet.slots = flags.parallel.value_or(options.fleet.slots);
  options.fleet.reference = flags.reference;
  options.fleet.shard_cache = flags.cache_dir;
  RF_ASSIGN_OR_RETURN(options.listen, cluster::ParseAddress(flags.listen));
  return options;
}

absl::StatusOr<CoordinatorOptions> FromClusterFile(const Flags& flags) {
  RF_ASSIGN_OR_RETURN(cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(flags.cluster));
  config.parallel = static_cast<int>(
      flags.parallel.value_or(static_cast<uint32_t>(config.parallel)));
  config.reference |= flags.reference;
  CoordinatorOptions options;
  options.fleet.name = config.name;
  options.fleet.model_dir = config.model;
  options.fleet.mesh = {config.mesh.data, config.mesh.expert,
                        config.mesh.tensor};
  options.fleet.expert_slots = config.experts.slots;
  options.fleet.expert_capacity = config.experts.capacity;
  options.fleet.rebalance_interval = absl::Seconds(config.experts.interval_s);
  options.fleet.rebalance_threshold = config.experts.threshold;
  options.fleet.dtype = config.dtype;
  options.fleet.cache_dtype = config.cache_dtype;
  options.fleet.wire = cluster::WireToProto(config.wire);
  options.fleet.prefill_strategy = config.prefill_strategy;
  options.fleet.transport = config.transport;
  if (!config.collectives.empty()) {
    RF_ASSIGN_OR_RETURN(options.fleet.collectives,
                        cluster::AlgorithmTable::Load(config.collectives));
  }
  if (!config.tiles.empty()) {
    RF_ASSIGN_OR_RETURN(options.fleet.tiles,
                        cluster::TileTable::Load(config.tiles));
  }
  options.fleet.context = config.context;
  options.fleet.slots = config.parallel;
  options.fleet.reference = config.reference;
  options.fleet.cluster_file = cluster::FormatClusterConfig(config);
  options.fleet.shard_cache = config.cache_dir;
  for (const cluster::WorkerConfig& worker : config.workers) {
    options.fleet.memory_gib.push_back(worker.memory_gib);
    options.fleet.read_gbps.push_back(worker.read_gbps);
  }
  options.listen = {config.coordinator.host, config.coordinator.port};
  options.allow_insecure = config.security == cluster::SecurityMode::kInsecure;
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
  // Every job that waits or runs has a connection of its caller's.
  cluster::RaiseOpenFileLimit();
  RF_ASSIGN_OR_RETURN(CoordinatorOptions options, flags.cluster.empty()
                                                      ? FromFlags(flags)
                                                      : FromClusterFile(flags));
  options.allow_insecure |= flags.insecure;
  RF_ASSIGN_OR_RETURN(const auto server,
                      CoordinatorServer::Start(std::move(options)));
  if (!flags.port_file.empty()) {
    RF_RETURN_IF_ERROR(cluster::WritePortFile(flags.port_file, server->port()));
  }
  const int signal = cluster::WaitForSignal();
  RF_LOG(kInfo, "stopping on signal ", signal);
  server->Shutdown();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  cluster::ConfigureGrpcProcess();
  cluster::BlockTerminationSignals();
  std::signal(SIGPIPE, SIG_IGN);  // Nobody reads the log: jobs go on.
  std::signal(SIGXFSZ, SIG_IGN);  // A limit on files' sizes is an error.
  CLI::App app("Owns the requests and the membership of a ringfleet.",
               "ringfleet-coordinator");
  Flags flags;
  app.set_version_flag("--version", cluster::GetBuildInfo().version());
  app.footer(kFooter);
  auto* by_file =
      app.add_option("--cluster", flags.cluster, "cluster.yaml of the fleet");
  const auto by_hand = [by_file](CLI::Option* option) {
    return option->excludes(by_file);
  };
  by_hand(app.add_option("--model", flags.model,
                         "Model folder, the same path on all hosts, or "
                         "synth:PRESET for random weights; workers without "
                         "the folder fetch their part from others"));
  by_hand(app.add_option("--world", flags.world,
                         "Number of workers, split by tensor (default 1)"))
      ->check(CLI::Range(1, cluster::kMaxWorkers));
  by_hand(app.add_option("--mesh", flags.mesh, "DATAxEXPERTxTENSOR"));
  by_hand(app.add_option(
              "--expert-slots", flags.expert_slots,
              "Experts that all places of the mesh's data and "
              "expert axes hold together, in each layer: beyond the model's "
              "number, copies; 0: no copies"))
      ->check(CLI::Range(0, cluster::kMaxReplicas));
  by_hand(app.add_option("--expert-capacity", flags.expert_capacity,
                         "Tokens that a place takes in a layer, in fair "
                         "shares, as in 2: what is beyond is dropped and "
                         "counted; 0: nothing is"))
      ->check(CLI::Range(0.0, 1024.0));
  by_hand(app.add_option("--listen", flags.listen,
                         "HOST:PORT; port 0 takes any free one"))
      ->capture_default_str();
  by_hand(app.add_option("--dtype", flags.dtype, "Weights in memory"))
      ->check(CLI::IsMember(cluster::WeightDtypeNames()))
      ->capture_default_str();
  by_hand(app.add_option("--cache-type", flags.cache_type,
                         "Latent cache (default f32 with --dtype f32, else "
                         "bf16)"))
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  by_hand(app.add_option("--wire", flags.wire, "Activations between ranks"))
      ->check(CLI::IsMember({"f32", "bf16", "int8"}))
      ->capture_default_str();
  by_hand(app.add_option("--prefill-strategy", flags.prefill_strategy,
                         absl::StrCat("How ranks share out a prompt's tokens: ",
                                      cluster::kPrefillStrategyChoices)))
      ->capture_default_str();
  by_hand(app.add_option("--transport", flags.transport,
                         "Between ranks: grpc, or auto: what ranks of one host "
                         "agree on"))
      ->capture_default_str();
  by_hand(app.add_option("--collectives", flags.collectives,
                         "Algorithms of collectives, a file that ringfleet "
                         "collectives --calibrate wrote"));
  by_hand(app.add_option("--tiles", flags.tiles,
                         "Cuts of products that are fused with an exchange, a "
                         "file that ringfleet collectives --tune wrote"));
  by_hand(app.add_option("-c,--ctx-size", flags.context,
                         "Positions per sequence; 0: as many as fit"))
      ->capture_default_str();
  by_hand(app.add_option("--cache-dir", flags.cache_dir,
                         "Folder on each worker's disk for packed shards, "
                         "which the next start maps"));
  app.add_option("--parallel", flags.parallel,
                 "Sequences at a time (default what the cluster file says, "
                 "else 4)")
      ->check(CLI::Range(1, cluster::kMaxParallel));
  app.add_flag("--reference", flags.reference,
               "Workers also hold a float32 copy, for score --reference");
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
