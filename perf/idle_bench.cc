// SPDX-License-Identifier: Apache-2.0
// Times the first collective after a pause beside those that follow each other:
// one_shot all_reduce of 28 KB between two blocking ranks on loopback. An
// exchange over a plain socket shows the cost of waking by itself.
//
//   idle_bench [SECONDS [PAUSES]]   a pause is 60 s, and there are 3
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "cluster/collectives/group_communicator.h"
#include "cluster/rpc/server.h"
#include "kernels/check.h"
#include "kernels/reduce.h"
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

// The two ends of a TCP connection over loopback.
std::array<int, 2> Connection() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET,
                         .sin_addr = {htonl(INADDR_LOOPBACK)}};
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  RF_CHECK(bind(listener, where, size) == 0);
  RF_CHECK(listen(listener, 1) == 0);
  RF_CHECK(getsockname(listener, where, &size) == 0);
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  RF_CHECK(connect(one, where, size) == 0);
  const int other = accept(listener, nullptr, nullptr);
  RF_CHECK(other >= 0);
  close(listener);
  const int on = 1;
  for (const int end : {one, other}) {
    RF_CHECK(setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  return {one, other};
}

// Sends `bytes` to the other end and receives as many. The buffers of the
// connection hold them, so that both ends may send first.
void Swap(int end, const char* sent, char* received, size_t bytes) {
  RF_CHECK(send(end, sent, bytes, 0) == static_cast<ssize_t>(bytes));
  RF_CHECK(recv(end, received, bytes, MSG_WAITALL) ==
           static_cast<ssize_t>(bytes));
}

void MeasureSockets(double seconds, int pauses) {
  const std::array<int, 2> ends = Connection();
  Ranks ranks;
  const auto run = [&](int rank) {
    std::vector<float> values(kValues, 0.0f);
    std::vector<char> received(kValues * sizeof(float));
    Measure(
        "plain sockets", seconds, pauses, rank, ranks,
        [&] {
          Swap(ends[rank], reinterpret_cast<const char*>(values.data()),
               received.data(), received.size());
          kernels::AddF32(received.data(), kValues, values.data(),
                          values.data());
        },
        [&] { Swap(ends[rank], "", received.data(), 1); });
    close(ends[rank]);
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
