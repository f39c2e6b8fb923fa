// SPDX-License-Identifier: Apache-2.0
// ringfleet-worker: the daemon that owns one rank's weights.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/build_info.h"
#include "cluster/process/fatal_signal.h"
#include "cluster/process/forced_exit.h"
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/standard_streams.h"
#include "cluster/process/status_macros.h"
#include "cluster/process/thread_limit.h"
#include "cluster/rpc/server.h"
#include "cluster/transport/link_transport.h"
#include "kernels/isa.h"
#include "worker/execution/flight_log.h"
#include "worker/loading/host.h"
#include "worker/service/host_service.h"
#include "worker/service/machine_resources.h"
#include "worker/service/membership_client.h"
#include "worker/service/parent_watch.h"
#include "worker/service/worker_service.h"

namespace ringfleet::worker {
namespace {

constexpr char kWorkerFooter[] = R"(
A worker owns one rank's slices of the weights and exchanges activations with
the other workers. It does nothing by itself: it registers at the coordinator,
which tells it what to load and whom to connect with. Workers and coordinator
may be started in any order, and a worker that is started again rejoins. With
--coordinator none it registers nowhere and waits for calls, such as those of
`ringfleet collectives`.

Examples:
  A fleet of two workers on this machine, by hand:
    ringfleet-coordinator --model DIR --world 2 &
    ringfleet-worker --rank 0 --listen 127.0.0.1:50052 &
    ringfleet-worker --rank 1 --listen 127.0.0.1:50053 &
  On a host of a trusted network:
    ringfleet-worker --rank 3 --listen 0.0.0.0:50052 --insecure \
        --advertise node3:50052 --coordinator node0:50051
  What it serves (gRPC reflection):
    ringfleet call 127.0.0.1:50052 list

Exit codes: 0 stopped by a signal, 1 failure, 2 usage or bad input, also an
address that needs --insecure, 3 refused by the coordinator as another build.)";

// Value in place of the coordinator's address: the worker does not register.
constexpr absl::string_view kNoCoordinator = "none";

// Files and sockets a rank needs: two streams to each of 15 peers, the
// control plane, a checkpoint's files (read a few at a time, here and by up to
// 32 calls of other hosts), and gRPC's own. Connections of others take no more
// than Acceptor::MaxDescriptors() leaves.
constexpr size_t kOpenFiles = 192;

// A step in progress reports why it ends within this time, and the last
// statuses reach their sockets within that.
constexpr absl::Duration kReportTime = absl::Milliseconds(300);
constexpr absl::Duration kFlushTime = absl::Milliseconds(100);

struct Options {
  int rank = -1;
  std::string listen = "127.0.0.1:50052";
  std::string advertise;
  std::string coordinator = "127.0.0.1:50051";
  std::string threads = "0";
  int numa_node = -1;
  std::string isa;
  double memory_gib = 0;
  std::string cache_dir;
  bool insecure = false;
  std::string log_file;
  std::string port_file;
  int parent_fd = -1;
};

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--rank", options.rank,
                 "Rank in the fleet, from 0; -1: any that is free")
      ->check(CLI::Range(-1, 255))
      ->capture_default_str();
  app.add_option("--listen", options.listen,
                 "HOST:PORT to serve on; port 0: any free one")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise,
                 "HOST:PORT where peers reach this worker; port 0: the "
                 "one that is listened on [--listen's]");
  app.add_option("--coordinator", options.coordinator,
                 "HOST:PORT of the coordinator; none: serve without one")
      ->capture_default_str();
  app.add_option("-t,--threads", options.threads,
                 "Threads of the kernels; 0: all CPUs this process may use; "
                 "cores/N: a part of them, as one of N workers. Workers of a "
                 "machine share what is not given as a number")
      ->capture_default_str();
  app.add_option("--numa-node", options.numa_node,
                 "Run on the CPUs of this NUMA node, with its memory "
                 "[all CPUs; memory of each node in turn where threads "
                 "take all CPUs of several]")
      ->check(CLI::Range(0, 1023));
  app.add_option("--isa", options.isa,
                 "Hold the kernels back to an instruction set: sse4, avx2, "
                 "avx_vnni, avx512, avx512_vnni, avx512_bf16 or amx "
                 "[the best]")
      ->envname("RINGFLEET_ISA");
  app.add_option("--memory-gib", options.memory_gib,
                 "Memory for weights and cache; 0: what is available")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--cache-dir", options.cache_dir,
                 "Keep the packed shard in this folder and map it on the next "
                 "start [the coordinator's --cache-dir]");
  app.add_flag("--insecure", options.insecure,
               "Allow addresses other than loopback, without encryption: "
               "anyone who reaches the port controls the worker");
  app.add_option("--log-file", options.log_file,
                 "Append the log here [stderr]");
  app.add_option("--port-file", options.port_file,
                 "Write the port that is listened on into this file");
  app.add_option("--parent-fd", options.parent_fd,
                 "Stop when the other end of this pipe closes (for programs "
                 "that start workers)");
}

// An empty name leaves the choice to the kernels.
absl::Status ChooseIsa(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::ParseIsa(name));
  const std::vector<kernels::Isa> supported = kernels::SupportedIsas();
  if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--isa ", name, ": this processor has ",
                     kernels::IsaName(supported.back()), " at most"));
  }
  kernels::ForceIsa(isa);
  return absl::OkStatus();
}

// Returns the address under which others know a worker that listens on
// `listen`; the port may be 0.
absl::StatusOr<cluster::ServerAddress> KnownAddress(
    const Options& options, const cluster::ServerAddress& listen) {
  const bool advertised = !options.advertise.empty();
  cluster::ServerAddress known = listen;
  if (advertised) {
    RF_ASSIGN_OR_RETURN(known, cluster::ParseAddress(options.advertise));
  }
  if (options.coordinator == kNoCoordinator) return known;
  RF_ASSIGN_OR_RETURN(const cluster::ServerAddress coordinator,
                      cluster::ParseAddress(options.coordinator));
  if (cluster::IsWildcard(known.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        advertised ? "--advertise " : "--listen ",
        cluster::FormatAddress(known),
        ": no address that others can dial, want --advertise HOST:PORT with "
        "this host's own"));
  }
  // An advertised address may be the end of a tunnel.
  if (!advertised && cluster::IsLoopback(known.host) &&
      cluster::IsAnotherMachine(coordinator.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", cluster::FormatAddress(known),
                     ": an address of this machine only, but the coordinator ",
                     options.coordinator,
                     " is on another; want --listen HOST:PORT with "
                     "this host's own"));
  }
  return known;
}

absl::Status Run(const Options& options) {
  RF_RETURN_IF_ERROR(
      cluster::InitLog(options.log_file, cluster::LogLevel::kInfo));
  cluster::SetLogName(options.rank < 0 ? std::string("worker ?")
                                       : absl::StrCat("worker ", options.rank));
  cluster::ForcedExit forced_exit;  // Outlives the server.
  cluster::RaiseOpenFileLimit();
  cluster::KeepFreedMemory();
  RF_RETURN_IF_ERROR(cluster::CheckOpenFiles(kOpenFiles));
  RF_ASSIGN_OR_RETURN(const ThreadCount thread_count,
                      ParseThreads(options.threads));
  const int machine_cpus = cluster::AvailableCpus();
  if (options.numa_node >= 0) {
    RF_RETURN_IF_ERROR(BindToNumaNode(options.numa_node));
  }
  RF_RETURN_IF_ERROR(ChooseIsa(options.isa));
  RF_ASSIGN_OR_RETURN(const cluster::ServerAddress listen,
                      cluster::ParseAddress(options.listen));
  RF_ASSIGN_OR_RETURN(cluster::ServerAddress known,
                      KnownAddress(options, listen));
  const int own_cpus = cluster::AvailableCpus();
  const int threads = ThreadsOf(thread_count, machine_cpus, own_cpus);
  RF_RETURN_IF_ERROR(cluster::CheckThreads(cluster::WorkerThreads(threads)));
  // Fewer threads may run on one node, beside what they write first.
  if (options.numa_node < 0 && threads >= own_cpus) {
    SpreadOverNumaNodes();
  }
  const auto memory_bytes =
      static_cast<uint64_t>(options.memory_gib * (1ull << 30));

  FlightLog flight(options.log_file);
  cluster::CollectiveEndpoint endpoint(
      {.recorder = &flight.recorder(), .round_trips = &flight.round_trips()});
  WorkerService service(&endpoint, &flight, threads, memory_bytes,
                        options.cache_dir, options.coordinator);
  HostService host_service(
      threads, memory_bytes,
      options.log_file.empty()
          ? ""
          : std::filesystem::absolute(options.log_file).parent_path());
  RF_ASSIGN_OR_RETURN(
      const std::unique_ptr<cluster::DaemonServer> server,
      cluster::DaemonServer::Start(
          listen, options.insecure, [&](grpc::ServerBuilder& builder) {
            endpoint.Register(builder);
            builder.RegisterService(&service);
            builder.RegisterService(&service.checkpoint_files());
            builder.RegisterService(&host_service);
          }));
  endpoint.Start();
  if (known.port == 0) known.port = server->port();
  const std::string address = cluster::FormatAddress(known);
  RF_LOG(kInfo, "listening on port ", server->port(), ", known as ", address,
         ", ", threads, " threads");
  v1::RegisterRequest registration;
  registration.set_rank(options.rank);
  registration.set_address(address);
  *registration.mutable_build() = cluster::GetBuildInfo();
  registration.set_pid(getpid());
  DescribeMachine(thread_count.number > 0 ? 0 : threads, &registration);

  absl::Status refused;
  if (!options.port_file.empty()) {
    refused = cluster::WritePortFile(options.port_file, server->port());
  }
  if (refused.ok()) {
    std::optional<MembershipClient> membership;
    if (options.coordinator != kNoCoordinator) {
      membership.emplace(
          options.coordinator, registration,
          MembershipClient::Hooks{
              .begin_registration =
                  [&service](v1::RegisterRequest* request) {
                    service.BeginRegistration(request);
                  },
              .end_registration =
                  [&service](const std::string& coordinator_id) {
                    service.EndRegistration(coordinator_id);
                  },
              .add_figures =
                  [&service](uint32_t rank, v1::HeartbeatRequest* heartbeat) {
                    service.AddFigures(/*with_experts=*/rank == 0, heartbeat);
                  },
              .on_refused =
                  [&refused](const absl::Status& status) {
                    refused = status;
                    kill(getpid(), SIGTERM);
                  }});
      service.SetOnRunEnd([&membership] { membership->BeatNow(); });
    }
    const ParentWatch parent(options.parent_fd);
    const int signal = cluster::WaitForSignal();
    RF_LOG(kInfo, "stopping on ", strsignal(signal));
    forced_exit.After(cluster::kLongestEnd);
    service.SetOnRunEnd(nullptr);
  }
  service.Abort(absl::UnavailableError("the worker was stopped"));
  endpoint.StopLinks();
  service.calls().WaitNone(cluster::Deadline::After(kReportTime));
  server->Shutdown(kFlushTime);
  endpoint.Shutdown();
  return refused;
}

int Main(int argc, char** argv) {
  cluster::EndWithoutResources("ringfleet-worker");
  cluster::ConfigureGrpcProcess();
  cluster::BlockTerminationSignals();
  std::signal(SIGPIPE, SIG_IGN);  // Nobody reads the log: work goes on.
  std::signal(SIGXFSZ, SIG_IGN);  // A limit on files' sizes is an error.
  cluster::ExplainCrashes("ringfleet-worker");
  CLI::App app("Owns one rank's weights in a ringfleet", "ringfleet-worker");
  app.footer(kWorkerFooter);
  app.set_version_flag("--version", cluster::GetBuildInfo().version());
  Options options;
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "ringfleet-worker: usage: %s\n", error.what());
    return 2;
  }
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "ringfleet-worker: %s\n",
               std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status)      ? 2
         : absl::IsFailedPrecondition(status) ? 3
                                              : 1;
}

}  // namespace
}  // namespace ringfleet::worker

RF_OPEN_STANDARD_STREAMS_FIRST();

int main(int argc, char** argv) { return ringfleet::worker::Main(argc, argv); }
