// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/checkpoint/packing.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/checkpoint/manifest.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"
#include "coordinator/fleet/checkpoint_difference.h"
#include "kernels/mutex.h"
#include "protos/worker.grpc.pb.h"

namespace ringfleet::coordinator::cli {
namespace {

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
      // A worker that has not begun counts with the size of this one.
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

// The processes that do it.
struct Packers {
  std::vector<std::unique_ptr<v1::Worker::Stub>> stubs;
  // Those that see the same files, and have all of the model's: one group on
  // this machine, one for each host of a fleet that has them.
  std::vector<std::vector<int>> readers;
  // Files that each worker lacks, and the sources that have them.
  std::vector<std::string> missing;
  std::vector<v1::FileSource> sources;
};

// Connects, and asks who has the model's files.
absl::StatusOr<Packers> FindFiles(const PackingWork& work,
                                  std::vector<std::string> addresses) {
  Packers packers;
  std::map<std::string, std::vector<int>> by_host;
  for (int i = 0; i < work.workers; ++i) {
    packers.stubs.push_back(v1::Worker::NewStub(ConnectChannel(addresses[i])));
    v1::FindCheckpointRequest request;
    request.set_model_path(work.model);
    v1::FindCheckpointResponse found;
    InterruptibleCall call;
    RF_RETURN_IF_ERROR(
        Annotate(cluster::FromGrpc(packers.stubs[i]->FindCheckpoint(
                     call.context(), request, &found)),
                 absl::StrCat("worker ", i)));
    packers.missing.push_back(found.missing());
    if (!found.missing().empty()) continue;
    by_host[work.fleet.has_value() ? work.fleet->workers[i].host : ""]
        .push_back(i);
    if (!found.complete()) continue;
    v1::FileSource& source = packers.sources.emplace_back();
    source.set_name(absl::StrCat("worker ", i));
    source.set_address(std::move(addresses[i]));
  }
  for (auto& [host, workers] : by_host) {
    packers.readers.push_back(std::move(workers));
  }
  if (!packers.readers.empty()) return packers;
  return absl::NotFoundError(absl::StrCat(
      packers.missing[0],
      work.workers > 1 ? ", nor has any other worker the model" : ""));
}

// " on HOST", where there are several.
std::string OnHost(const PackingWork& work, int worker) {
  return work.fleet.has_value()
             ? absl::StrCat(" on ", work.fleet->workers[worker].host)
             : "";
}

absl::StatusOr<v1::LoadProgress> PackRank(const Packers& packers, int worker,
                                          const PackingWork& work, int rank,
                                          SharedProgress& progress) {
  v1::LoadRequest request;
  if (!packers.missing[worker].empty()) {
    request.mutable_sources()->Assign(packers.sources.begin(),
                                      packers.sources.end());
  }
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
  const auto reader = packers.stubs[worker]->Convert(call.context(), request);
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
                                             size_t parts, size_t part) {
  v1::DescribeCheckpointRequest request;
  request.set_model_path(work.model);
  request.set_parts(parts);
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

// Calls body(i) for each of `count` at the same time; the first error.
absl::Status OnEach(size_t count,
                    const std::function<absl::Status(size_t)>& body) {
  std::vector<absl::Status> results(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] { results[i] = body(i); });
  }
  for (std::thread& thread : threads) thread.join();
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  for (const absl::Status& result : results) RF_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

// Returns the facts that a group of readers sees. Each worker hashes a part.
absl::StatusOr<v1::CheckpointFacts> HashCheckpoint(
    const Packers& packers, const std::vector<int>& readers,
    const PackingWork& work) {
  std::vector<v1::CheckpointFacts> parts(readers.size());
  RF_RETURN_IF_ERROR(OnEach(readers.size(), [&](size_t i) -> absl::Status {
    RF_ASSIGN_OR_RETURN(parts[i], HashPart(*packers.stubs[readers[i]], work,
                                           readers.size(), i));
    return absl::OkStatus();
  }));
  v1::CheckpointFacts all = std::move(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    all.mutable_tensors()->MergeFrom(parts[i].tensors());
  }
  return all;
}

// Two hosts may have other files under the same path.
absl::Status CheckSameCheckpoint(const std::vector<v1::LoadProgress>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].fingerprint() == ranks[0].fingerprint()) continue;
    return absl::DataLossError(absl::StrCat(
        "rank ", rank, " has read another checkpoint: fingerprint ",
        ranks[rank].fingerprint(), ", rank 0 has ", ranks[0].fingerprint(),
        "; --check with a manifest names the tensor"));
  }
  return absl::OkStatus();
}

// Returns the path of the manifest.
absl::StatusOr<std::string> KeepManifest(const Packers& packers,
                                         const PackingWork& work) {
  Progress bar;
  bar.Phase("hashing tensors");
  RF_ASSIGN_OR_RETURN(const v1::CheckpointFacts facts,
                      HashCheckpoint(packers, packers.readers[0], work));
  std::error_code error;  // The folder of a fleet's hosts may not be here.
  std::filesystem::create_directories(work.folder, error);
  if (error) return cluster::FileError(work.folder, error.value());
  std::string path = absl::StrCat(work.folder, "/manifest.json");
  RF_RETURN_IF_ERROR(WriteManifest(path, facts));
  return path;
}

}  // namespace

absl::StatusOr<PackingResult> Pack(const PackingWork& work,
                                   std::vector<std::string> addresses,
                                   bool manifest) {
  RF_ASSIGN_OR_RETURN(const Packers packers,
                      FindFiles(work, std::move(addresses)));
  const int world = work.mesh.world_size();
  std::vector<v1::LoadProgress> done(world);
  {
    SharedProgress progress(world);
    RF_RETURN_IF_ERROR(OnEach(work.workers, [&](size_t i) -> absl::Status {
      const int worker = static_cast<int>(i);
      for (int rank = worker; rank < world; rank += work.workers) {
        const auto packed = PackRank(packers, worker, work, rank, progress);
        if (!packed.ok()) {
          return Annotate(packed.status(),
                          absl::StrCat("rank ", rank, OnHost(work, worker)));
        }
        done[rank] = *packed;
      }
      return absl::OkStatus();
    }));
  }
  RF_RETURN_IF_ERROR(CheckSameCheckpoint(done));
  PackingResult result;
  for (const v1::LoadProgress& rank : done) {
    ++(rank.from_shard_cache() ? result.kept : result.packed);
    result.bytes += rank.resident_bytes();
  }
  if (manifest) {
    RF_ASSIGN_OR_RETURN(result.manifest, KeepManifest(packers, work));
  }
  return result;
}

absl::Status CheckCheckpoint(const PackingWork& work,
                             std::vector<std::string> addresses,
                             const std::string& path) {
  constexpr uint64_t kMaxManifest = uint64_t{1} << 30;
  RF_ASSIGN_OR_RETURN(const std::string text,
                      cluster::ReadSmallFile(path, kMaxManifest));
  const auto want = ParseManifest(text);
  if (!want.ok()) return Annotate(want.status(), path);
  RF_ASSIGN_OR_RETURN(const Packers packers,
                      FindFiles(work, std::move(addresses)));
  Progress bar;
  bar.Phase("hashing tensors");
  return OnEach(packers.readers.size(), [&](size_t i) -> absl::Status {
    const std::vector<int>& readers = packers.readers[i];
    RF_ASSIGN_OR_RETURN(v1::CheckpointFacts got,
                        HashCheckpoint(packers, readers, work));
    // Names of files may differ; tensors may not.
    got.clear_files();
    const std::string difference = FindDifference(*want, got);
    if (difference.empty()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(work.model, OnHost(work, readers[0]), " is not what ",
                     path, " describes: ", difference));
  });
}

}  // namespace ringfleet::coordinator::cli
