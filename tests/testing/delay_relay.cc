// SPDX-License-Identifier: Apache-2.0
// The relay of relay.h as a program. Prints "listening HOST:PORT" for every
// route, then carries until it is killed; with --self-test measures what the
// relay itself adds.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/relay.h"
#include "tests/testing/sockets.h"

namespace ringfleet::testing {
namespace {

constexpr int kRoundTrips = 2000;
constexpr int kWarmUp = 100;

// Runs `body` in a child process, which dies with this one.
pid_t InChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  _exit(0);
}

// Sends every byte of every connection back, one connection after the other.
void Echo(const Socket& listener) {
  for (;;) {
    const Socket socket = AcceptFrom(listener);
    char byte;
    while (read(socket.fd(), &byte, 1) == 1 &&
           write(socket.fd(), &byte, 1) == 1) {
    }
  }
}

// Microseconds of one byte to and fro.
double RoundTrip(const Socket& socket) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  char byte = 0;
  if (write(socket.fd(), &byte, 1) != 1 || read(socket.fd(), &byte, 1) != 1) {
    std::perror("delay_relay: round trip");
    std::exit(1);
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start)
      .count();
}

double Median(std::vector<double>& times) {
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

int SelfTest(RelayOptions options) {
  const Socket listener = BoundSocket("127.0.0.1:0", SOCK_STREAM);
  options.routes = {{"127.0.0.1:0", LocalAddress(listener)}};
  const double delay = static_cast<double>(options.delay.count());
  Relay relay(std::move(options));

  // In turns, so that what else runs here takes from both.
  const auto echo = [&] { Echo(listener); };
  const pid_t children[] = {InChild(echo), InChild(echo),
                            InChild([&] { relay.Run(); })};
  const Socket direct_way = ConnectTo(LocalAddress(listener));
  const Socket relayed_way = ConnectTo(relay.addresses()[0]);
  std::vector<double> direct_times, relayed_times;
  for (int i = -kWarmUp; i < kRoundTrips; ++i) {
    const double direct = RoundTrip(direct_way);
    const double relayed = RoundTrip(relayed_way);
    if (i < 0) continue;
    direct_times.push_back(direct);
    relayed_times.push_back(relayed);
  }
  const double direct = Median(direct_times);
  const double relayed = Median(relayed_times);
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  std::printf(
      "{\"delay_us\":%.0f,\"direct_round_trip_p50_us\":%.1f,"
      "\"relayed_round_trip_p50_us\":%.1f,\"added_one_way_us\":%.1f}\n",
      delay, direct, relayed, (relayed - direct) / 2 - delay);
  return 0;
}

int Main(int argc, char** argv) {
  std::vector<std::string> listen, to;
  RelayOptions options;
  int64_t delay_us = 0;
  size_t buffer_mib = options.buffer_bytes >> 20;
  bool self_test = false;
  CLI::App app("Carries TCP connections, each byte a fixed time late.");
  app.add_option("--listen", listen, "HOST:PORT of a route, may be repeated");
  app.add_option("--to", to, "HOST:PORT that the route of this place leads to");
  app.add_option("--delay-us", delay_us, "Each way")
      ->check(CLI::Range(0, 60'000'000))
      ->capture_default_str();
  app.add_option("--buffer-mib", buffer_mib,
                 "Of one direction of a connection; beyond it the sender waits")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--self-test", self_test,
               "Print the round trip of a byte with and without the relay");
  CLI11_PARSE(app, argc, argv);
  if (!self_test && (listen.empty() || listen.size() != to.size())) {
    std::fprintf(stderr, "delay_relay: want as many --listen as --to\n");
    return 2;
  }

  options.delay = std::chrono::microseconds(delay_us);
  options.buffer_bytes = buffer_mib << 20;
  if (self_test) return SelfTest(std::move(options));
  for (size_t i = 0; i < listen.size(); ++i) {
    options.routes.push_back({listen[i], to[i]});
  }
  Relay relay(std::move(options));
  for (const std::string& address : relay.addresses()) {
    std::printf("listening %s\n", address.c_str());
  }
  std::fflush(stdout);
  relay.Run();
}

}  // namespace
}  // namespace ringfleet::testing

int main(int argc, char** argv) { return ringfleet::testing::Main(argc, argv); }
