// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/describe_checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/process/status_macros.h"
#include "kernels/dtype.h"
#include "kernels/mutex.h"
#include "kernels/thread_pool.h"

namespace ringfleet::worker {
namespace {

using cluster::Checkpoint;
using cluster::TensorInfo;

// Tensors of a message. So many keep it far below gRPC's 4 MiB.
constexpr size_t kTensorsPerMessage = 1024;
// Tensors of a message if they are hashed. So few show the caller progress, and
// let a cancelled call end.
constexpr size_t kHashedPerMessage = 64;

// Fills in the hashes of `tensors`, all of them or none.
absl::Status HashAll(const Checkpoint& checkpoint, kernels::ThreadPool& pool,
                     const std::vector<const TensorInfo*>& tensors,
                     v1::CheckpointFacts* facts) {
  Mutex mu;
  absl::Status failure;
  pool.ParallelFor(tensors.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const absl::StatusOr<uint64_t> hash = checkpoint.Hash(*tensors[i]);
      if (hash.ok()) {
        facts->mutable_tensors(static_cast<int>(i))->set_hash(*hash);
        continue;
      }
      MutexLock lock(&mu);
      if (failure.ok()) failure = hash.status();
      return;
    }
  });
  return failure;
}

v1::CheckpointFacts FilesMessage(
    const std::vector<Checkpoint::FileFacts>& files) {
  v1::CheckpointFacts facts;
  for (const Checkpoint::FileFacts& file : files) {
    v1::CheckpointFile* message = facts.add_files();
    message->set_name(file.name);
    message->set_bytes(file.bytes);
    message->set_header_hash(file.header_hash);
    for (const auto& [offset, hash] : file.pages) {
      message->add_page_offsets(offset);
      message->add_page_hashes(hash);
    }
  }
  return facts;
}

}  // namespace

absl::Status DescribeCheckpoint(
    const v1::DescribeCheckpointRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::CheckpointFacts&)> send) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                      cluster::OpenCheckpoint(request.model_path()));
  RF_ASSIGN_OR_RETURN(const std::vector<Checkpoint::FileFacts> files,
                      checkpoint->Describe());
  RF_RETURN_IF_ERROR(send(FilesMessage(files)));
  std::map<std::string, uint64_t> hashed;  // By the fingerprint.
  for (const Checkpoint::FileFacts& file : files) {
    hashed.insert(file.tensors.begin(), file.tensors.end());
  }
  kernels::ThreadPool pool(
      request.threads() != 0
          ? static_cast<int>(std::min<uint32_t>(request.threads(), 1024))
          : default_threads);
  const std::vector<std::string> names = checkpoint->Names();
  const bool hashes = request.parts() > 0;
  const size_t limit = hashes ? kHashedPerMessage : kTensorsPerMessage;
  v1::CheckpointFacts facts;
  std::vector<const TensorInfo*> tensors;
  const auto flush = [&]() -> absl::Status {
    if (tensors.empty()) return absl::OkStatus();
    if (hashes) RF_RETURN_IF_ERROR(HashAll(*checkpoint, pool, tensors, &facts));
    const absl::Status status = send(facts);
    facts.Clear();
    tensors.clear();
    return status;
  };
  for (size_t i = 0; i < names.size(); ++i) {
    if (hashes && i % request.parts() != request.part()) continue;
    const auto info = checkpoint->Find(names[i]);
    if (!info.ok()) continue;  // Its dtype is never loaded.
    const TensorInfo& tensor = **info;
    v1::CheckpointTensor* message = facts.add_tensors();
    message->set_name(tensor.name);
    message->set_dtype(std::string(kernels::DtypeName(tensor.dtype)));
    message->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    message->set_file(tensor.file);
    message->set_offset(tensor.offset);
    message->set_bytes(tensor.bytes);
    if (const auto it = hashed.find(tensor.name); it != hashed.end()) {
      message->set_hash(it->second);
    }
    tensors.push_back(&tensor);
    if (tensors.size() == limit) RF_RETURN_IF_ERROR(flush());
  }
  return flush();
}

}  // namespace ringfleet::worker
