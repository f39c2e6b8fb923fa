// SPDX-License-Identifier: Apache-2.0
// What the first collective after a pause takes beside those that follow each
// other: one_shot all_reduce of 28 KB between two blocking ranks over gRPC on
// loopback.
//
//   idle_bench [SECONDS [PAUSES]]   a pause is 60 s, and there are 3
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "cluster/group_communicator.h"
#include "kernels/check.h"
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

absl::Status Reduce(cluster::Communicator& communicator,
                    std::vector<float>& values) {
  return communicator.AllReduce(values, absl::MakeSpan(values), {},
                                /*check=*/0, Deadline::Infinite());
}

// Microseconds of one operation.
double Time(cluster::Communicator& communicator, std::vector<float>& values) {
  RF_CHECK(communicator.Barrier(Deadline::Infinite()).ok());
  const Clock::time_point start = Clock::now();
  RF_CHECK(Reduce(communicator, values).ok());
  return Micros(Clock::now() - start);
}

void Main(double seconds, int pauses) {
  testing::GrpcWorld world(2);
  Clock::time_point begins[2], ends[2];
  world.RunConnected([&](cluster::Transport& transport) {
    cluster::GroupCommunicator communicator(
        &transport, cluster::WorldGroup(2),
        cluster::AlgorithmTable::Only(cluster::Algorithm::kOneShot), nullptr);
    std::vector<float> values(kValues, 0.0f);
    const int rank = communicator.rank();
    for (int pause = 0; pause <= pauses; ++pause) {
      double first = 0;
      if (pause > 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        // Without a barrier, which would be what wakes everything.
        begins[rank] = Clock::now();
        RF_CHECK(Reduce(communicator, values).ok());
        ends[rank] = Clock::now();
        RF_CHECK(communicator.Barrier(Deadline::Infinite()).ok());
        // From when both were awake.
        first =
            Micros(std::max(ends[0], ends[1]) - std::max(begins[0], begins[1]));
      }
      std::vector<double> times;
      for (int i = 0; i < kIterations; ++i) {
        times.push_back(Time(communicator, values));
      }
      std::sort(times.begin(), times.end());
      const double median = times[kIterations / 2];
      if (rank != 0) continue;
      std::printf("pause %d: first %.0f us, then p50 %.0f us, ratio %.2f\n",
                  pause, first, median, first / median);
      std::fflush(stdout);
    }
  });
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) {
  ringfleet::perf::Main(argc > 1 ? std::atof(argv[1]) : 60,
                        argc > 2 ? std::atoi(argv[2]) : 3);
}
