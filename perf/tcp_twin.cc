// SPDX-License-Identifier: Apache-2.0
// The raw-TCP twin of the collectives: the schedules of twin_schedules.h on
// plain sockets, timed as the collectives are. What they cost above it is the
// price of gRPC, of the checksum and of the frames. Prints one JSON object a
// line:
//
//   {"op","algo","transport","poll","world","bytes","p50_us","p99_us","wrong"}
//
// `bytes` counts the whole vector of float32, `wrong` the elements that differ
// from the expected ones, over all ranks.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "perf/iteration_times.h"
#include "perf/tcp_mesh.h"
#include "perf/twin_schedules.h"

namespace ringfleet::perf {
namespace {

const std::map<std::string, TwinOp> kOps = {
    {"all_reduce", TwinOp::kAllReduce},
    {"all_gather", TwinOp::kAllGather},
    {"reduce_scatter", TwinOp::kReduceScatter}};

struct Options {
  std::vector<std::string> ops = {"all_reduce", "all_gather", "reduce_scatter"};
  std::vector<std::string> algos = {"one_shot", "two_shot", "ring",
                                    "bidirectional_ring"};
  std::vector<size_t> bytes = {4, 14336, 28672, 1835008, 7340032};
  int world = 2;
  std::string poll = "spin";
  size_t chunk_bytes = 256 << 10;
  int send_buffer_kib = 256;
  int iterations = 0;
  bool no_barrier = false;
  int rank = -1;
  std::vector<std::string> addresses;
};

Waiting WaitingOf(const Options& options) {
  if (options.poll == "block") return Waiting::kBlock;
  // Ranks on hosts of their own have cores of their own.
  const bool share =
      options.rank < 0 &&
      options.world > static_cast<int>(std::thread::hardware_concurrency());
  return share ? Waiting::kYield : Waiting::kSpin;
}

// Elements of the result of `op` that are not the expected ones.
size_t CountWrong(const TcpMesh& mesh, TwinOp op,
                  const std::vector<float>& output) {
  const auto begin = [&](int r) {
    return SegmentBegin(output.size(), r, mesh.size());
  };
  size_t wrong = 0;
  for (int r = 0; r < mesh.size(); ++r) {
    if (op == TwinOp::kReduceScatter && r != mesh.rank()) continue;
    for (size_t i = begin(r); i < begin(r + 1); ++i) {
      wrong += output[i] != (op == TwinOp::kAllGather
                                 ? Contribution(r, i)
                                 : SumOfContributions(mesh.size(), i));
    }
  }
  return wrong;
}

// Adds the values of all ranks up on rank 0.
void SumOnRankZero(TcpMesh& mesh, std::vector<double>& values) {
  const size_t bytes = values.size() * sizeof(double);
  if (mesh.rank() != 0) {
    mesh.Send(0, values.data(), bytes);
    mesh.Run();
    return;
  }
  for (int r = 1; r < mesh.size(); ++r) {
    std::vector<double> received(values.size());
    mesh.Receive(r, received.data(), bytes);
    mesh.Run();
    std::transform(values.begin(), values.end(), received.begin(),
                   values.begin(), std::plus<>());
  }
}

void Measure(TcpMesh& mesh, const Options& options, const std::string& op,
             const std::string& algo, size_t bytes) {
  using Clock = std::chrono::steady_clock;
  TwinCollective collective(mesh, kOps.at(op), algo, bytes / sizeof(float),
                            options.chunk_bytes / sizeof(float));
  for (size_t i = 0; i < collective.input().size(); ++i) {
    collective.input()[i] = Contribution(mesh.rank(), i);
  }
  IterationCounts counts = IterationsFor(bytes);
  if (options.iterations > 0) counts.timed = options.iterations;

  mesh.Barrier();
  for (int i = 0; i < counts.warm_up; ++i) collective.Run();
  std::vector<double> times;
  for (int i = 0; i < counts.timed; ++i) {
    if (!options.no_barrier) mesh.Barrier();
    const Clock::time_point start = Clock::now();
    collective.Run();
    times.push_back(
        std::chrono::duration<double, std::micro>(Clock::now() - start)
            .count() /
        mesh.size());
  }
  // What is checked is the result of one more run.
  collective.ClearOutput();
  collective.Run();
  times.push_back(CountWrong(mesh, kOps.at(op), collective.output()));
  SumOnRankZero(mesh, times);
  if (mesh.rank() != 0) return;
  const double wrong = times.back();
  times.pop_back();
  std::printf(
      "{\"op\":\"%s\",\"algo\":\"%s\",\"transport\":\"raw_tcp\","
      "\"poll\":\"%s\",\"world\":%d,\"bytes\":%zu,\"p50_us\":%.2f,"
      "\"p99_us\":%.2f,\"wrong\":%.0f}\n",
      op.c_str(), algo.c_str(), options.poll.c_str(), mesh.size(), bytes,
      Percentile(times, 0.5), Percentile(times, 0.99), wrong);
  std::fflush(stdout);
  if (wrong > 0) std::exit(1);
}

int RunRank(int rank, int listener, const std::vector<std::string>& addresses,
            const Options& options) {
  TcpMesh mesh(rank, listener, addresses,
               {.waiting = WaitingOf(options),
                .send_buffer_bytes = options.send_buffer_kib << 10});
  for (const std::string& op : options.ops) {
    for (const std::string& algo : options.algos) {
      if (!TwinCollective::Exists(kOps.at(op), algo)) continue;
      for (const size_t bytes : options.bytes) {
        Measure(mesh, options, op, algo, bytes);
      }
    }
  }
  mesh.Barrier();
  return 0;
}

// Runs all ranks on loopback, each in a process of its own.
int RunWorld(const Options& options) {
  std::vector<int> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < options.world; ++rank) {
    listeners.push_back(Listen("127.0.0.1:0"));
    addresses.push_back(ListeningAddress(listeners.back()));
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.world; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      std::perror("tcp_twin: fork");
      return 1;
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int r = 0; r < options.world; ++r) {
        if (r != rank) close(listeners[r]);
      }
      std::exit(RunRank(rank, listeners[rank], addresses, options));
    }
    children.push_back(child);
  }
  for (const int listener : listeners) close(listener);
  int code = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) code = 1;
  }
  return code;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Times collectives over plain TCP sockets.");
  app.add_option("--op", options.ops, "[all that there are]")
      ->delimiter(',')
      ->check(CLI::IsMember(kOps));
  app.add_option("--algo", options.algos, "[all that an operation has]")
      ->delimiter(',')
      ->check(CLI::IsMember(options.algos));
  app.add_option("--bytes", options.bytes, "Of the whole vector")
      ->delimiter(',')
      ->check(CLI::Range(size_t{4}, size_t{1} << 40))
      ->capture_default_str();
  app.add_option("--world", options.world, "Processes on loopback")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--poll", options.poll,
                 "spin (yielding when there are more ranks than cores) or "
                 "block")
      ->check(CLI::IsMember({"spin", "block"}))
      ->capture_default_str();
  app.add_option("--chunk-bytes", options.chunk_bytes,
                 "Of a message of a ring or of a two_shot's second phase")
      ->check(CLI::Range(size_t{4}, size_t{1} << 30))
      ->capture_default_str();
  app.add_option(
         "--send-buffer-kib", options.send_buffer_kib,
         "Of every socket; 0: as the kernel finds fit, for links with a "
         "delay")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--iterations", options.iterations,
                 "Timed ones of every size [1000 to 64 KiB, 100 above]");
  app.add_flag("--no-barrier", options.no_barrier,
               "Iterations follow each other at once");
  CLI::Option* const addresses =
      app.add_option("--addresses", options.addresses,
                     "HOST:PORT of every rank, to run one rank only")
          ->delimiter(',');
  app.add_option("--rank", options.rank, "The rank to run, with --addresses")
      ->needs(addresses);
  CLI11_PARSE(app, argc, argv);

  if (options.rank < 0) return RunWorld(options);
  if (options.rank >= static_cast<int>(options.addresses.size())) {
    std::fprintf(stderr, "tcp_twin: rank %d has no address\n", options.rank);
    return 2;
  }
  return RunRank(options.rank, Listen(options.addresses[options.rank]),
                 options.addresses, options);
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) { return ringfleet::perf::Main(argc, argv); }
