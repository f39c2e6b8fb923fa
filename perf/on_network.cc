// SPDX-License-Identifier: Apache-2.0
// Runs a program once on every host of a test network (namespaces with a rate
// and a delay, see tests/testing/test_network.h), for figures over a link that
// this machine does not have. The scripts of this folder start it:
//
//   on_network --gbit 1 --delay-us 200 -- SCRIPT {rank} {listen} {reached}
//
//   {rank}     the number of the host
//   {listen}   where the host's program listens, at one port on every host
//   {reached}  where others reach each host; a relay's address, where there is
//              a delay
//
// Prints the output of the programs, host by host. Needs root.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/testing/process.h"
#include "tests/testing/relay_mesh.h"
#include "tests/testing/test_network.h"

namespace ringfleet::perf {
namespace {

using testing::Process;
using testing::RelayProcess;
using testing::TestNetwork;

struct Options {
  testing::TestNetworkOptions network;
  int64_t delay_us = 0;
  int port = 5000;
  double timeout = 600;  // Seconds.
  std::vector<std::string> command;
};

int Run(const Options& options) {
  const absl::Status available = TestNetwork::Available();
  if (!available.ok()) {
    std::fprintf(stderr, "on_network: %s\n",
                 std::string(available.message()).c_str());
    return 1;
  }
  const TestNetwork network(options.network);
  std::vector<std::string> direct, reached;
  std::vector<std::unique_ptr<RelayProcess>> relays;
  for (int host = 0; host < network.hosts(); ++host) {
    const std::string address = network.Address(host) + ":";
    direct.push_back(address + std::to_string(options.port));
    reached.push_back(direct.back());
    if (options.delay_us == 0) continue;
    relays.push_back(std::make_unique<RelayProcess>(
        RelayProcess::Options{.routes = {{address + "0", direct.back()}},
                              .delay = absl::Microseconds(options.delay_us),
                              .launcher = network.Command(host, {})}));
    reached.back() = relays.back()->addresses()[0];
  }

  std::string folder =
      (std::filesystem::temp_directory_path() / "on_network.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  std::vector<std::unique_ptr<Process>> processes;
  for (int host = 0; host < network.hosts(); ++host) {
    std::vector<std::string> command;
    for (const std::string& part : options.command) {
      command.push_back(absl::StrReplaceAll(
          part, {{"{rank}", std::to_string(host)},
                 {"{listen}", direct[host]},
                 {"{reached}", absl::StrJoin(reached, ",")}}));
    }
    processes.push_back(std::make_unique<Process>(testing::ProcessOptions{
        .command = network.Command(host, command),
        .capture = folder + "/" + std::to_string(host)}));
  }
  // Without one host the others may wait for ever.
  const auto failed = [](const std::unique_ptr<Process>& process) {
    return process->Wait(0).value_or(0) != 0;
  };
  const auto runs = [](const std::unique_ptr<Process>& process) {
    return process->Running();
  };
  testing::WaitUntil(options.timeout, [&] {
    return absl::c_any_of(processes, failed) ||
           absl::c_none_of(processes, runs);
  });
  int code = 0;
  for (int host = 0; host < network.hosts(); ++host) {
    Process& process = *processes[host];
    const auto ended = process.Wait(0);
    std::fputs(process.output().c_str(), stdout);
    std::fputs(process.errors().c_str(), stderr);
    if (ended == 0) continue;
    std::fprintf(stderr, "on_network: host %d: %s\n", host,
                 ended.has_value()
                     ? ("exit code " + std::to_string(*ended)).c_str()
                     : "was still running");
    code = 1;
  }
  processes.clear();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return code;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Runs a program on every host of a test network.");
  app.add_option("--hosts", options.network.hosts)
      ->check(CLI::Range(1, 250))
      ->capture_default_str();
  app.add_option("--gbit", options.network.gbit_per_second,
                 "Of every link, each way; 0: not limited")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--burst-bytes", options.network.burst_bytes,
                 "That may pass at once [128 us of the rate]");
  app.add_option("--delay-us", options.delay_us, "Each way")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--port", options.port, "Of {listen}")->capture_default_str();
  app.add_option("--timeout", options.timeout, "Seconds")
      ->capture_default_str();
  app.add_option("command", options.command, "After --: a path and arguments")
      ->required();
  CLI11_PARSE(app, argc, argv);
  return Run(options);
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) { return ringfleet::perf::Main(argc, argv); }
