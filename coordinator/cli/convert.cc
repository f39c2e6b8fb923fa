// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/convert.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/config.h"
#include "cluster/file_reader.h"
#include "cluster/model_files.h"
#include "cluster/shard_plan.h"
#include "cluster/status.h"
#include "cluster/status_macros.h"
#include "cluster/weight_dtype.h"
#include "coordinator/checkpoint_difference.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/local_workers.h"
#include "coordinator/cli/manifest.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"
#include "kernels/mutex.h"
#include "protos/worker.grpc.pb.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kConvertFooter[] = R"(
Makes the packed weights of every rank of a layout, on this machine and ahead of
time, so that not even the first start of a fleet has to pack them. One file a
rank; what is there and sound is left alone. The folder is the --cache-dir, or
the cache_dir of the cluster file, with which the workers are started:

  FINGERPRINT-1x1x4-rank0-int8.packed   the weights of rank 0 of 4
  manifest.json                         dtype, shape and XXH3-64 of each tensor

A file fits one state of the checkpoint's files, one layout and one dtype, on any
processor. Copy rank R's file to the host of rank R, with the checkpoint's times
(rsync -t), which are part of what the file fits.

--local N works with N processes, each on its ranks; --world N with one. With
--check a checkpoint is read whole and compared with a manifest; the first tensor
that differs is named (exit code 4). A fleet's workers compare headers, sizes and
a sample of every file at each start, which costs no time but does not see every
byte.

Files are replaced only by newer ones of the same name. Delete any of them at any
time; `find DIR -name '*.packed' -mtime +30 -delete` drops what no worker has
used for 30 days.

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
  std::string dtype = "int8";
  uint32_t threads = 0;
  bool no_manifest = false;
  bool json = false;
};

// What is to be made, by how many workers.
struct PackingWork {
  std::string model;
  std::string folder;
  cluster::MeshShape mesh;
  v1::Dtype dtype = v1::DTYPE_INT8;
  int workers = 1;
  uint32_t threads = 1;  // Of each.
};

absl::StatusOr<PackingWork> PlanWork(const ConvertOptions& options) {
  PackingWork work;
  std::string folder = options.cache_dir;
  std::string model = options.model;
  work.workers = std::max(1, options.local);
  work.mesh.tensor = std::max({1, options.local, options.world});
  const auto dtype = cluster::ParseWeightDtype(options.dtype);
  if (!dtype.ok()) return Annotate(dtype.status(), "usage: --dtype");
  work.dtype = *dtype;
  if (!options.cluster.empty()) {
    RF_ASSIGN_OR_RETURN(const cluster::ClusterConfig config,
                        cluster::LoadClusterConfig(options.cluster));
    model = config.model;
    work.dtype = config.dtype;
    work.mesh = {config.mesh.data, config.mesh.expert, config.mesh.tensor};
    if (folder.empty()) folder = config.cache_dir;
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
  work.threads =
      options.threads != 0
          ? options.threads
          : std::max(1u, std::thread::hardware_concurrency() / work.workers);
  return work;
}

// Adds up what several workers are at.
class SharedProgress {
 public:
  explicit SharedProgress(size_t parts) : done_(parts), total_(parts) {}

  void Set(size_t part, uint64_t done, uint64_t total) {
    MutexLock lock(&mu_);
    done_[part] = done;
    total_[part] = total;
    uint64_t sum = 0;
    uint64_t sum_total = 0;
    for (size_t i = 0; i < done_.size(); ++i) {
      sum += done_[i];
      // What has not begun is taken to be as large as this.
      sum_total += total_[i] != 0 ? total_[i] : total;
    }
    bar_.Bytes("packing", sum, sum_total);
  }

 private:
  Mutex mu_;
  std::vector<uint64_t> done_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> total_ ABSL_GUARDED_BY(mu_);
  Progress bar_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<v1::LoadProgress> PackRank(v1::Worker::Stub& stub,
                                          const PackingWork& work, int rank,
                                          SharedProgress& progress) {
  v1::LoadRequest request;
  request.set_model_path(work.model);
  request.set_dtype(work.dtype);
  request.mutable_layout()->set_rank(rank);
  v1::Mesh* mesh = request.mutable_layout()->mutable_mesh();
  mesh->set_data(work.mesh.data);
  mesh->set_expert(work.mesh.expert);
  mesh->set_tensor(work.mesh.tensor);
  request.set_threads(work.threads);
  request.set_shard_cache(work.folder);
  InterruptibleCall call;
  const auto reader = stub.Convert(call.context(), request);
  v1::LoadProgress message;
  while (reader->Read(&message)) {
    if (message.done()) continue;
    progress.Set(rank, message.bytes_done(), message.bytes_total());
  }
  RF_RETURN_IF_ERROR(cluster::FromGrpc(reader->Finish()));
  if (!message.done()) {
    return absl::InternalError("ended without a message of its end");
  }
  return message;
}

// The hashes of one worker's part of the tensors, and the files.
absl::StatusOr<v1::CheckpointFacts> HashPart(v1::Worker::Stub& stub,
                                             const PackingWork& work,
                                             int part) {
  v1::DescribeCheckpointRequest request;
  request.set_model_path(work.model);
  request.set_parts(work.workers);
  request.set_part(part);
  request.set_threads(work.threads);
  InterruptibleCall call;
  const auto reader = stub.DescribeCheckpoint(call.context(), request);
  v1::CheckpointFacts all;
  v1::CheckpointFacts facts;
  while (reader->Read(&facts)) all.MergeFrom(facts);
  RF_RETURN_IF_ERROR(cluster::FromGrpc(reader->Finish()));
  return all;
}

// Calls body(worker) for each worker at the same time; the first error.
absl::Status OnEachWorker(int workers,
                          const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> results(workers);
  std::vector<std::thread> threads;
  for (int i = 0; i < workers; ++i) {
    threads.emplace_back([&, i] { results[i] = body(i); });
  }
  for (std::thread& thread : threads) thread.join();
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  for (const absl::Status& result : results) RF_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

using Stubs = std::vector<std::unique_ptr<v1::Worker::Stub>>;

absl::StatusOr<v1::CheckpointFacts> HashCheckpoint(const Stubs& stubs,
                                                   const PackingWork& work) {
  std::vector<v1::CheckpointFacts> parts(work.workers);
  Progress bar;
  bar.Phase("hashing tensors");
  RF_RETURN_IF_ERROR(OnEachWorker(work.workers, [&](int i) -> absl::Status {
    RF_ASSIGN_OR_RETURN(parts[i], HashPart(*stubs[i], work, i));
    return absl::OkStatus();
  }));
  v1::CheckpointFacts all = parts[0];
  for (int i = 1; i < work.workers; ++i) {
    all.mutable_tensors()->MergeFrom(parts[i].tensors());
  }
  return all;
}

absl::Status CheckManifest(const Stubs& stubs, const PackingWork& work,
                           const std::string& path) {
  constexpr uint64_t kMaxManifest = uint64_t{1} << 30;
  RF_ASSIGN_OR_RETURN(const std::string text,
                      cluster::ReadSmallFile(path, kMaxManifest));
  const auto want = ParseManifest(text);
  if (!want.ok()) return Annotate(want.status(), path);
  RF_ASSIGN_OR_RETURN(v1::CheckpointFacts got, HashCheckpoint(stubs, work));
  // Names of files may differ; tensors may not.
  got.clear_files();
  const std::string difference = FindDifference(*want, got);
  if (difference.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(work.model, " is not what ", path,
                                          " describes: ", difference));
}

struct Result {
  int packed = 0;
  int kept = 0;
  uint64_t bytes = 0;  // Of all ranks' weights.
};

absl::StatusOr<Result> Convert(const Stubs& stubs, const PackingWork& work,
                               bool manifest) {
  const int world = work.mesh.world_size();
  std::vector<v1::LoadProgress> done(world);
  {
    SharedProgress progress(world);
    RF_RETURN_IF_ERROR(
        OnEachWorker(work.workers, [&](int worker) -> absl::Status {
          for (int rank = worker; rank < world; rank += work.workers) {
            const auto packed = PackRank(*stubs[worker], work, rank, progress);
            if (!packed.ok()) {
              return Annotate(packed.status(), absl::StrCat("rank ", rank));
            }
            done[rank] = *packed;
          }
          return absl::OkStatus();
        }));
  }
  Result result;
  for (const v1::LoadProgress& rank : done) {
    ++(rank.from_shard_cache() ? result.kept : result.packed);
    result.bytes += rank.resident_bytes();
  }
  if (manifest) {
    RF_ASSIGN_OR_RETURN(const v1::CheckpointFacts facts,
                        HashCheckpoint(stubs, work));
    RF_RETURN_IF_ERROR(
        WriteManifest(absl::StrCat(work.folder, "/manifest.json"), facts));
  }
  return result;
}

absl::Status Run(const ConvertOptions& options) {
  RF_ASSIGN_OR_RETURN(const PackingWork work, PlanWork(options));
  const auto begun = std::chrono::steady_clock::now();
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<LocalWorkers> local,
                      LocalWorkers::Create(work.workers));
  Result result;
  absl::Status status = [&]() -> absl::Status {
    RF_RETURN_IF_ERROR(local->Spawn({"--coordinator", "none"}));
    RF_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                        local->WaitAddresses());
    Stubs stubs;
    for (const std::string& address : addresses) {
      stubs.push_back(v1::Worker::NewStub(ConnectChannel(address)));
    }
    if (!options.check.empty()) {
      return CheckManifest(stubs, work, options.check);
    }
    RF_ASSIGN_OR_RETURN(result, Convert(stubs, work, !options.no_manifest));
    return local->Stop();
  }();
  if (!status.ok()) {
    // A worker that has ended explains more than its broken connection.
    if (absl::IsUnavailable(status)) {
      const absl::Status ended = local->CheckRunning();
      if (!ended.ok()) status = ended;
    }
    local->Explain(status);
    return Annotate(status, "convert");
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun)
          .count();
  if (options.json) {
    return PrintJson({{"model", work.model},
                      {"path", work.folder},
                      {"check", options.check},
                      {"packed", result.packed},
                      {"kept", result.kept},
                      {"bytes", result.bytes},
                      {"seconds", seconds}});
  }
  if (!options.check.empty()) {
    return PrintText(
        absl::StrCat(work.model, ": as ", options.check, " describes it\n"));
  }
  return PrintText(absl::StrFormat(
      "%s: %d shards packed, %d there already, %.2f GB in %.1f s\n",
      work.folder, result.packed, result.kept,
      static_cast<double>(result.bytes) / 1e9, seconds));
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
                                   "this cluster file");
  verb->add_option("-m,--model", options->model,
                   "Folder of a checkpoint in the hub's format, or synth:NAME")
      ->excludes(cluster);
  verb->add_option("--local", options->local,
                   "For this many ranks, with as many processes")
      ->check(CLI::Range(1, cluster::kMaxWorkers))
      ->excludes(cluster);
  verb->add_option("--world", options->world,
                   "For this many ranks, one after the other")
      ->check(CLI::Range(1, cluster::kMaxWorkers))
      ->excludes(cluster)
      ->excludes("--local");
  verb->add_option("--cache-dir", options->cache_dir, "Folder to write into");
  verb->add_option(
          "--dtype", options->dtype,
          absl::StrCat("Weights in memory: ", cluster::kWeightDtypeChoices))
      ->excludes(cluster)
      ->capture_default_str();
  verb->add_option("--check", options->check,
                   "Write nothing: compare the checkpoint with this manifest");
  verb->add_flag("--no-manifest", options->no_manifest,
                 "Do not hash the tensors, which reads the whole checkpoint");
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
