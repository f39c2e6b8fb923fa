// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/checkpoint/convert.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/config/config.h"
#include "cluster/config/settings.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/checkpoint/packing.h"
#include "coordinator/cli/host_workers.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/local_workers.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/targets.h"
#include "coordinator/cli/value_checks.h"
#include "coordinator/service/setting_flags.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kConvertFooter[] = R"(
Packs the weights of every rank of a layout ahead of time, so that even the first
start of a fleet finds them packed. Writes one file for each rank, and keeps sound
files that are there. The folder is --cache-dir, or cache_dir of the cluster file;
workers are started with the same folder:

  FINGERPRINT-1x1x4-rank0-int8.packed   the weights of rank 0 of 4
  manifest.json                         dtype, shape and XXH3-64 of each tensor

--cluster packs each rank on its own host. It starts the workers of the file, which
must not run yet, and stops them. A host without the model's files fetches its part
from hosts that have them. The manifest is written on this machine. If all hosts are
this machine, `convert` packs in a process of its own; the fleet may run meanwhile.

--local N packs N ranks on this machine with N processes, --world N with one. A file
fits one layout, one dtype and one state of the checkpoint's files, on any processor.
The state includes the files' times: if you copy a packed file to another host, copy
the checkpoint with its times, too (rsync -t).

--check reads the whole checkpoint and compares it with a manifest, with --cluster on
every host that has the checkpoint. It names the first tensor that differs (exit code
4). At each start the workers of a fleet compare headers, sizes and a sample of every
file, which costs no time but does not see every byte.

Files are replaced only by newer ones of the same name. You may delete any of them at
any time; `find DIR -name '*.packed' -mtime +30 -delete` deletes files that no worker
has used for 30 days.

Examples:
  ringfleet convert --model DIR --local 2 --cache-dir /var/cache/ringfleet
  ringfleet convert --cluster pool.yaml
  ringfleet convert --model DIR --check /var/cache/ringfleet/manifest.json
)";

struct ConvertOptions {
  std::string model;
  std::string cluster;
  int local = 0;
  int world = 0;
  std::string cache_dir;
  std::string check;
  SettingFlags settings;  // dtype.
  uint32_t threads = 0;
  bool no_manifest = false;
  bool json = false;
};

absl::StatusOr<PackingWork> PlanWork(const ConvertOptions& options) {
  PackingWork work;
  std::string folder = options.cache_dir;
  std::string model = options.model;
  work.workers = std::max(1, options.local);
  work.mesh.tensor = std::max({1, options.local, options.world});
  RF_ASSIGN_OR_RETURN(v1::FleetSettings settings, options.settings.Read());
  cluster::FillDefaults(&settings);
  work.dtype = settings.dtype();
  if (!options.cluster.empty()) {
    RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                        cluster::LoadClusterConfig(options.cluster));
    model = config.settings.model();
    work.dtype = config.settings.dtype();
    work.mesh = cluster::MeshOf(config.settings);
    if (folder.empty()) folder = config.settings.cache_dir();
    if (UsesSsh(config)) {
      work.workers = work.mesh.world_size();
      work.fleet = config;
    }
  }
  if (model.empty()) {
    return absl::InvalidArgumentError(
        "usage: no model, want --model DIR or --cluster FILE");
  }
  if (folder.empty() && options.check.empty()) {
    return absl::InvalidArgumentError(
        "usage: no folder, want --cache-dir DIR, or cache_dir in the cluster "
        "file");
  }
  work.model = cluster::AbsoluteModel(model);
  std::error_code error;  // With one, the path stays as it is.
  if (!folder.empty()) work.folder = std::filesystem::absolute(folder, error);
  if (error) work.folder = folder;
  work.threads = options.threads;
  if (work.threads == 0 && !work.fleet.has_value()) {
    work.threads = LocalWorkers::ThreadsOfEach(work.workers);
  }
  return work;
}

// Does the command's work, once there are workers.
absl::StatusOr<PackingResult> UseWorkers(const ConvertOptions& options,
                                         const PackingWork& work,
                                         std::vector<std::string> addresses) {
  if (options.check.empty()) {
    return Pack(work, std::move(addresses), !options.no_manifest);
  }
  RF_RETURN_IF_ERROR(
      CheckCheckpoint(work, std::move(addresses), options.check));
  return PackingResult();
}

absl::StatusOr<PackingResult> ConvertHere(const ConvertOptions& options,
                                          const PackingWork& work) {
  RF_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalWorkers> local,
      LocalWorkers::Create(work.workers, static_cast<int>(work.threads)));
  absl::StatusOr<PackingResult> result =
      [&]() -> absl::StatusOr<PackingResult> {
    RF_RETURN_IF_ERROR(local->Spawn({"--coordinator", "none"}));
    RF_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                        local->WaitAddresses());
    RF_ASSIGN_OR_RETURN(const PackingResult done,
                        UseWorkers(options, work, addresses));
    RF_RETURN_IF_ERROR(local->Stop());
    return done;
  }();
  if (result.ok()) return result;
  absl::Status status = result.status();
  // A worker that has ended explains more than its broken connection.
  if (absl::IsUnavailable(status)) {
    const absl::Status ended = local->CheckRunning();
    if (!ended.ok()) status = ended;
  }
  local->Explain(status);
  return status;
}

absl::StatusOr<PackingResult> ConvertOnHosts(const ConvertOptions& options,
                                             const PackingWork& work) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<HostWorkers> hosts,
                      HostWorkers::Start(options.cluster, *work.fleet));
  RF_ASSIGN_OR_RETURN(
      const PackingResult result,
      UseWorkers(options, work, HostWorkers::Addresses(*work.fleet)));
  RF_RETURN_IF_ERROR(hosts->Stop());
  return result;
}

absl::Status Run(const ConvertOptions& options) {
  RF_ASSIGN_OR_RETURN(const PackingWork work, PlanWork(options));
  const auto begun = std::chrono::steady_clock::now();
  const absl::StatusOr<PackingResult> result =
      work.fleet.has_value() ? ConvertOnHosts(options, work)
                             : ConvertHere(options, work);
  if (!result.ok()) return Annotate(result.status(), "convert");
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun)
          .count();
  if (options.json) {
    return PrintJson({{"model", work.model},
                      {"path", work.folder},
                      {"check", options.check},
                      {"packed", result->packed},
                      {"kept", result->kept},
                      {"bytes", result->bytes},
                      {"manifest", result->manifest},
                      {"seconds", seconds}});
  }
  if (!options.check.empty()) {
    return PrintText(
        absl::StrCat(work.model, ": as ", options.check, " describes it\n"));
  }
  return PrintText(absl::StrFormat(
      "%s: %d shards packed, %d there already, %s in %.1f s%s%s\n", work.folder,
      result->packed, result->kept, HumanBytes(result->bytes), seconds,
      result->manifest.empty() ? "" : "; manifest: ", result->manifest));
}

}  // namespace

void RegisterConvert(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "convert", "Pack the weights of a layout ahead of time");
  verb->group("Tools");
  verb->footer(kConvertFooter);
  auto options = std::make_shared<ConvertOptions>();
  auto* cluster = verb->add_option("--cluster", options->cluster,
                                   "The layout, model, dtype and folder of "
                                   "this cluster file, on its hosts");
  verb->add_option("-m,--model", options->model,
                   "Folder of a checkpoint in the hub's format, or synth:NAME")
      ->excludes(cluster)
      ->check(Utf8Path());
  verb->add_option("--local", options->local,
                   "Number of ranks, packed by as many processes")
      ->check(CLI::Range(1, cluster::kMaxWorkers))
      ->excludes(cluster);
  verb->add_option("--world", options->world,
                   "Number of ranks, packed one after the other")
      ->check(CLI::Range(1, cluster::kMaxWorkers))
      ->excludes(cluster)
      ->excludes("--local");
  verb->add_option("--cache-dir", options->cache_dir, "Folder to write into")
      ->check(Utf8Path());
  options->settings.Add(*verb, "dtype")->excludes(cluster);
  verb->add_option("--check", options->check,
                   "Write nothing: compare the checkpoint with this manifest");
  verb->add_flag("--no-manifest", options->no_manifest,
                 "Write no manifest: hashing reads the whole checkpoint");
  verb->add_option("-t,--threads", options->threads,
                   "Threads per process; 0: the cores divided by --local")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->add_flag("--json", options->json, "One JSON document on stdout");
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options] { return Run(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
