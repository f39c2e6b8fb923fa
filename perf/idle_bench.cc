// SPDX-License-Identifier: Apache-2.0
// What the first collective after a pause takes beside those that follow each
// other: one_shot all_reduce of 28 KB between two blocking ranks on loopback,
// over gRPC and over plain sockets, which show what waking costs by itself.
//
//   idle_bench [SECONDS [PAUSES]]   a pause is 60 s, and there are 3
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cluster/collectives/group_communicator.h"
#include "cluster/rpc/server.h"
#include "kernels/check.h"
#include "perf/tcp_mesh.h"
#include "perf/twin_schedules.h"
#include "tests/testing/grpc_world.h"

namespace ringfleet::perf {
namespace {

using cluster::Deadline;

constexpr int kIterations = 1000;
constexpr size_t kValues = 7168;

using Clock = std::chrono::steady_clock;

double Micros(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// Microseconds of one call.
double Time(const std::function<void()>& operation) {
  const Clock::time_point start = Clock::now();
  operation();
  return Micros(Clock::now() - start);
}

// When the two ranks entered an operation and left it.
struct Ranks {
  Clock::time_point begins[2], ends[2];
};

// What one rank does; the other does the same at the same time.
void Measure(const char* name, double seconds, int pauses, int rank,
             Ranks& ranks, const std::function<void()>& reduce,
             const std::function<void()>& barrier) {
  for (int pause = 0; pause <= pauses; ++pause) {
    double first = 0;
    if (pause > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      // Without a barrier, which would be what wakes everything.
      ranks.begins[rank] = Clock::now();
      reduce();
      ranks.ends[rank] = Clock::now();
      barrier();
      // From when both were awake.
      first = Micros(std::max(ranks.ends[0], ranks.ends[1]) -
                     std::max(ranks.begins[0], ranks.begins[1]));
    }
    std::vector<double> times;
    for (int i = 0; i < kIterations; ++i) {
      barrier();
      times.push_back(Time(reduce));
    }
    std::sort(times.begin(), times.end());
    const double median = times[kIterations / 2];
    if (rank != 0 || pause == 0) continue;
    std::printf("%-13s pause %d: first %.0f us, then p50 %.0f us, ratio %.2f\n",
                name, pause, first, median, first / median);
    std::fflush(stdout);
  }
}

void MeasureGrpc(double seconds, int pauses) {
  testing::GrpcWorld world(2);
  Ranks ranks;
  world.RunConnected([&](cluster::Transport& transport) {
    cluster::GroupCommunicator communicator(
        &transport, cluster::WorldGroup(2),
        cluster::AlgorithmTable::Only(cluster::Algorithm::kOneShot), nullptr);
    std::vector<float> values(kValues, 0.0f);
    Measure(
        "gRPC", seconds, pauses, communicator.rank(), ranks,
        [&] {
          RF_CHECK(communicator
                       .AllReduce(values, absl::MakeSpan(values), {},
                                  /*check=*/0, Deadline::Infinite())
                       .ok());
        },
        [&] { RF_CHECK(communicator.Barrier(Deadline::Infinite()).ok()); });
  });
}

void MeasureSockets(double seconds, int pauses) {
  const int listeners[] = {Listen("127.0.0.1:0"), Listen("127.0.0.1:0")};
  const std::vector<std::string> addresses = {ListeningAddress(listeners[0]),
                                              ListeningAddress(listeners[1])};
  Ranks ranks;
  const auto run = [&](int rank) {
    TcpMesh mesh(rank, listeners[rank], addresses,
                 {.waiting = Waiting::kBlock});
    TwinCollective reduce(mesh, TwinOp::kAllReduce, "one_shot", kValues,
                          kValues);
    Measure(
        "plain sockets", seconds, pauses, rank, ranks, [&] { reduce.Run(); },
        [&] { mesh.Barrier(); });
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) {
  ringfleet::cluster::ConfigureGrpcProcess();
  const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  const int pauses = argc > 2 ? std::atoi(argv[2]) : 3;
  ringfleet::perf::MeasureGrpc(seconds, pauses);
  ringfleet::perf::MeasureSockets(seconds, pauses);
}
