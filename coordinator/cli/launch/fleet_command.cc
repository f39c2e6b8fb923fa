// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/fleet_command.h"

#include <cstdint>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/deadline.h"
#include "coordinator/cli/launch/config_change.h"

namespace ringfleet::coordinator::cli {
namespace {

void AddFleetCommand(CLI::App& verb, FleetCommand& options) {
  verb.add_option("--cluster", options.cluster, "Cluster file of the fleet")
      ->required();
  verb.add_option("--hosts", options.hosts,
                  "Inclusive range of ranks, 0-3 or 2 [all]");
  AddFormatOptions(verb, {"text", "json"}, &options.output);
  verb.add_option("--timeout", options.timeout_s, "Seconds to wait")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
}

}  // namespace

void RegisterFleetCommand(CLI::App& app, Invocation& invocation,
                          const char* name, const char* description,
                          const char* footer,
                          absl::Status (*run)(const FleetCommand&),
                          void (*add_more)(CLI::App&, FleetCommand&)) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->group("Fleet");
  verb->footer(footer);
  auto options = std::make_shared<FleetCommand>();
  AddFleetCommand(*verb, *options);
  if (add_more != nullptr) add_more(*verb, *options);
  verb->callback([options, run, &invocation] {
    invocation.json = options->output == "json";
    invocation.run = [options, run] { return run(*options); };
  });
}

absl::StatusOr<FleetLock> LockFleet(const cluster::ClusterConfig& config,
                                    const FleetCommand& options) {
  return FleetLock::Acquire(
      config.name, cluster::Deadline::After(absl::Seconds(options.timeout_s)));
}

absl::Status StopWhatFileLacks(const cluster::ClusterConfig& config,
                               const v1::ClusterState& running) {
  if (running.name() != config.name || ConfigChange(running, config).empty()) {
    return absl::OkStatus();
  }
  absl::StatusOr<cluster::ClusterConfig> started =
      cluster::ParseClusterConfig(running.cluster_file(), config.name, "/");
  if (!started.ok()) {
    std::fprintf(stderr,
                 "warning: fleet %s was started by another version; workers "
                 "that its file no longer has may still run\n",
                 config.name.c_str());
    return absl::OkStatus();
  }
  started->ssh = config.ssh;  // How hosts are reached, the file knows best.
  return RunLaunchScript("stop", *started, "", nullptr);
}

absl::Status PrintFleet(const Json& summary, const FleetCommand& options) {
  if (options.output == "json") return PrintJson(summary);
  std::string text =
      absl::StrFormat("%s, epoch %u\n", summary["state"].get<std::string>(),
                      summary["epoch"].get<uint64_t>());
  for (const Json& worker : summary["workers"]) {
    absl::StrAppendFormat(
        &text, "rank %d  %s  %s  pid %d\n", worker["rank"].get<int>(),
        worker["address"].get<std::string>(),
        worker["state"].get<std::string>(), worker["pid"].get<int64_t>());
  }
  return PrintText(text);
}

}  // namespace ringfleet::coordinator::cli
