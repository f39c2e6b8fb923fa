// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/targets.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::ringfleet::cluster::ClusterConfig;
using ::ringfleet::cluster::SecurityMode;
using ::ringfleet::cluster::WorkerConfig;

std::string Destination(const ClusterConfig& config, const std::string& host) {
  if (!UsesSsh(config)) return "local";
  if (!config.ssh.has_value() || config.ssh->user.empty()) return host;
  return absl::StrCat(config.ssh->user, "@", host);
}

std::string WorkerLine(const ClusterConfig& config, int rank) {
  const WorkerConfig& worker = config.workers[rank];
  const std::string destination = Destination(config, worker.host);
  const auto sharing =
      std::count_if(config.workers.begin(), config.workers.end(),
                    [&](const WorkerConfig& other) {
                      return Destination(config, other.host) == destination;
                    });
  const std::string threads = worker.threads > 0
                                  ? absl::StrCat(worker.threads)
                                  : absl::StrCat("cores/", sharing);
  const std::string numa =
      worker.numa_node >= 0 ? absl::StrCat(worker.numa_node) : "-";
  const std::string memory =
      worker.memory_gib > 0 ? absl::StrCat(worker.memory_gib) : "-";
  return absl::StrCat("target\t", rank, "\t", destination, "\t", worker.host,
                      "\t",
                      cluster::FormatAddress({worker.address, worker.port}),
                      "\t", threads, "\t", numa, "\t", memory, "\n");
}

// A line has no room for a path with control characters.
std::string PathField(const std::string& path) {
  const bool fits = std::none_of(path.begin(), path.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  return path.empty() || !fits ? "-" : path;
}

struct TargetsOptions {
  std::string cluster;
  std::string hosts;
  bool yaml = false;
  bool json = false;
};

// A number, or the text where it is none; null for "-".
Json JsonField(const std::string& text) {
  if (text == "-") return Json();
  double number = 0;
  return absl::SimpleAtod(text, &number) ? Json(number) : Json(text);
}

// The lines of FormatTargets as one document.
Json TargetsJson(absl::string_view lines) {
  Json document = {{"ssh_options", Json::array()}, {"targets", Json::array()}};
  std::string file;
  for (absl::string_view line :
       absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    const std::string& key = fields[0];
    if (key == "target") {
      document["targets"].push_back({{"label", fields[1]},
                                     {"destination", fields[2]},
                                     {"host", fields[3]},
                                     {"listen", fields[4]},
                                     {"threads", JsonField(fields[5])},
                                     {"numa_node", JsonField(fields[6])},
                                     {"memory_gib", JsonField(fields[7])}});
    } else if (key == "ssh_option") {
      document["ssh_options"].push_back(fields[1]);
    } else if (key == "insecure") {
      document[key] = fields[1] == "yes";
    } else if (key == "file") {
      absl::StrAppend(&file, line.substr(key.size() + 1), "\n");
    } else {
      document[key] = fields[1] == "-" ? Json() : Json(fields[1]);
    }
  }
  document["file"] = std::move(file);
  return document;
}

absl::Status Run(const TargetsOptions& options) {
  RF_ASSIGN_OR_RETURN(const ClusterConfig config,
                      cluster::LoadClusterConfig(options.cluster));
  if (options.yaml) return PrintText(cluster::FormatClusterConfig(config));
  RF_ASSIGN_OR_RETURN(const std::string lines,
                      FormatTargets(config, options.hosts));
  return options.json ? PrintJson(TargetsJson(lines)) : PrintText(lines);
}

}  // namespace

bool UsesSsh(const ClusterConfig& config) {
  return config.ssh.has_value() ||
         !cluster::IsLoopback(config.coordinator.host) ||
         std::any_of(config.workers.begin(), config.workers.end(),
                     [](const WorkerConfig& worker) {
                       return !cluster::IsLoopback(worker.host);
                     });
}

absl::StatusOr<std::string> FormatTargets(const ClusterConfig& config,
                                          absl::string_view hosts) {
  const int size = static_cast<int>(config.workers.size());
  std::pair<int, int> ranks = {0, -1};
  if (hosts != "coordinator") {
    RF_ASSIGN_OR_RETURN(ranks, cluster::ParseHostRange(hosts, size));
  }
  const std::string coordinator = cluster::FormatAddress(
      {config.coordinator.host, config.coordinator.port});
  const std::string& log_dir = config.settings.log_dir();
  const bool insecure = config.security == SecurityMode::kInsecure;
  std::string text = absl::StrCat(
      "fleet\t", config.name, "\npath\t", PathField(config.path), "\nlog_dir\t",
      log_dir.empty() ? "-" : log_dir, "\ninsecure\t", insecure ? "yes" : "no",
      "\ncoordinator\t", coordinator, "\n");
  if (config.ssh.has_value()) {
    if (config.ssh->port > 0) {
      absl::StrAppend(&text, "ssh_option\t-p\nssh_option\t", config.ssh->port,
                      "\n");
    }
    for (const std::string& option : config.ssh->options) {
      absl::StrAppend(&text, "ssh_option\t", option, "\n");
    }
  }
  for (int rank = ranks.first; rank <= ranks.second; ++rank) {
    absl::StrAppend(&text, WorkerLine(config, rank));
  }
  if (hosts.empty() || hosts == "coordinator") {
    absl::StrAppend(&text, "target\tcoordinator\t",
                    Destination(config, config.coordinator.host), "\t",
                    config.coordinator.host, "\t", coordinator, "\t-\t-\t-\n");
  }
  const std::string file = cluster::FormatClusterConfig(config);
  for (absl::string_view line : absl::StrSplit(file, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, "file\t", line, "\n");
  }
  return text;
}

void RegisterTargets(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<TargetsOptions>();
  CLI::App* verb = app.add_subcommand(
      "targets", "Print what a cluster file starts, one process a line");
  verb->group("Fleet");
  verb->add_option("--cluster", options->cluster, "the cluster file")
      ->required();
  verb->add_option("--hosts", options->hosts,
                   "ranks, both ends included (0-3, 2), or coordinator; "
                   "default: all");
  auto* yaml = verb->add_flag(
      "--yaml", options->yaml,
      "the file as understood: defaults filled in, paths absolute");
  verb->add_flag("--json", options->json, "the lines as one JSON document")
      ->excludes(yaml);
  verb->footer(R"(
Checks a cluster file without starting anything, and prints the input of the
launch scripts: fields separated by tabs, - where nothing is set.

Examples:
  ringfleet targets --cluster cluster.yaml
  ringfleet targets --cluster cluster.yaml --yaml
)");
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options] { return Run(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
