// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/logs.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cluster/config/config.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/launcher.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kLogsFooter[] = R"(
Reads the log of each process on its host: rank-R.log and coordinator.log in the
fleet's state folder or log_dir, and the full log before it. Each line begins with
[RANK HOST]. The lines of one host follow those of the other; with --follow new
lines of all hosts come as they are written, until Ctrl-C.

Examples:
  ringfleet logs --cluster cluster.yaml --since 10m
  ringfleet logs --cluster cluster.yaml --hosts 0-3 --follow
  ringfleet logs --cluster cluster.yaml --hosts coordinator
)";

// Ten years: longer times are typing errors.
constexpr absl::Duration kLongestSince = absl::Hours(24 * 3653);

struct LogsOptions {
  std::string cluster;
  std::string hosts;
  std::string since;
  bool follow = false;
};

absl::Status RunLogs(const LogsOptions& options) {
  RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                      cluster::LoadClusterConfig(options.cluster));
  absl::Duration since = absl::InfiniteDuration();
  if (!options.since.empty() &&
      (!absl::ParseDuration(options.since, &since) ||
       since < absl::ZeroDuration() || since > kLongestSince)) {
    return absl::InvalidArgumentError(
        absl::StrCat("logs: --since \"", options.since,
                     "\", want a time like 90s, 10m or 2h30m"));
  }
  return ReadLogs(config, options.hosts, since, options.follow, PrintText);
}

}  // namespace

void RegisterLogs(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("logs", "Print the logs of a fleet");
  verb->group("Fleet");
  verb->footer(kLogsFooter);
  auto options = std::make_shared<LogsOptions>();
  verb->add_option("--cluster", options->cluster, "Cluster file of the fleet")
      ->required();
  verb->add_option("--hosts", options->hosts,
                   "Inclusive range of ranks, 0-3 or 2, or coordinator [all]");
  verb->add_option("--since", options->since,
                   "Only lines of this time, such as 10m [all]");
  verb->add_flag("-f,--follow", options->follow, "Go on with new lines");
  verb->callback([options, &invocation] {
    invocation.run = [options] { return RunLogs(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
