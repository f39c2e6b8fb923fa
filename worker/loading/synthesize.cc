// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/synthesize.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "cluster/synthetic/synthetic_checkpoint.h"
#include "cluster/synthetic/synthetic_model.h"
#include "kernels/mutex.h"
#include "kernels/thread_pool.h"
#include "worker/loading/output_folder.h"

namespace ringfleet::worker {
namespace {

using cluster::CheckpointContents;
using cluster::SyntheticCheckpoint;

constexpr char kIndexName[] = "model.safetensors.index.json";

// Bytes that a thread makes before it writes. They fit its share of the L2
// cache, so they are copied to the file from there.
constexpr uint64_t kPieceBytes = 256 << 10;
// Pieces of a thread between two looks at whether to stop.
constexpr uint64_t kPiecesPerBatch = 16;

// All files, in the order of their writing. config.json is the last of
// SyntheticFileNames, the index comes before it.
std::vector<std::string> FileNames(const CheckpointContents& contents) {
  std::vector<std::string> names;
  for (const CheckpointContents::File& file : contents.files) {
    names.push_back(file.name);
  }
  const std::vector<std::string> texts = cluster::SyntheticFileNames();
  names.insert(names.end(), texts.begin(), texts.end());
  names.insert(names.end() - 1, kIndexName);
  return names;
}

std::string HashText(absl::string_view bytes) {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes.data(), bytes.size()));
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.digest), sizeof(digest.digest)));
}

// Bytes [begin, end) of a file, in pieces.
absl::Status WriteRange(const SyntheticCheckpoint& checkpoint, int file,
                        uint64_t begin, uint64_t end,
                        const OutputFolder& folder) {
  std::vector<char> piece(std::min(kPieceBytes, end - begin));
  for (uint64_t offset = begin; offset < end; offset += piece.size()) {
    const size_t size = std::min<uint64_t>(piece.size(), end - offset);
    RF_RETURN_IF_ERROR(checkpoint.Read(file, offset, size, piece.data()));
    RF_RETURN_IF_ERROR(folder.Write(offset, piece.data(), size));
  }
  return absl::OkStatus();
}

// Writes one file with all threads; `advance` hears of every batch.
absl::Status WriteFile(const SyntheticCheckpoint& checkpoint, int file,
                       kernels::ThreadPool& pool, OutputFolder& folder,
                       absl::FunctionRef<absl::Status(uint64_t)> advance) {
  const uint64_t size = checkpoint.contents().files[file].size;
  const uint64_t batch = kPieceBytes * kPiecesPerBatch * pool.threads();
  for (uint64_t begin = 0; begin < size; begin += batch) {
    const uint64_t end = std::min(size, begin + batch);
    const uint64_t pieces = (end - begin + kPieceBytes - 1) / kPieceBytes;
    Mutex mu;
    absl::Status failure;
    pool.ParallelFor(pieces, 1, [&](size_t first, size_t last) {
      const absl::Status status =
          WriteRange(checkpoint, file, begin + first * kPieceBytes,
                     std::min(end, begin + last * kPieceBytes), folder);
      MutexLock lock(&mu);
      if (failure.ok()) failure = status;
    });
    RF_RETURN_IF_ERROR(failure);
    RF_RETURN_IF_ERROR(advance(end - begin));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Synthesize(
    const v1::SynthesizeRequest& request, int default_threads,
    absl::FunctionRef<absl::Status(const v1::SynthesizeProgress&)> report) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<SyntheticCheckpoint> checkpoint,
                      SyntheticCheckpoint::Open(request.model()));
  if (request.folder().empty()) {
    return absl::InvalidArgumentError("no folder to write into");
  }
  const CheckpointContents& contents = checkpoint->contents();
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFolder> folder,
                      OutputFolder::Open(request.folder(), FileNames(contents),
                                         request.overwrite()));
  RF_RETURN_IF_ERROR(folder->CheckSpace(checkpoint->bytes()));

  kernels::ThreadPool pool(
      request.threads() != 0
          ? static_cast<int>(std::min<uint32_t>(request.threads(), 1024))
          : default_threads);
  v1::SynthesizeProgress progress;
  progress.set_parameters(checkpoint->parameters());
  progress.set_bytes_total(checkpoint->bytes());
  std::chrono::steady_clock::time_point last_report;  // The clock's epoch.
  const auto advance = [&](uint64_t bytes) -> absl::Status {
    progress.set_bytes_done(progress.bytes_done() + bytes);
    const auto now = std::chrono::steady_clock::now();
    if (now - last_report < std::chrono::milliseconds(100)) {
      return absl::OkStatus();
    }
    last_report = now;
    return report(progress);
  };
  RF_RETURN_IF_ERROR(advance(0));
  for (size_t i = 0; i < contents.files.size(); ++i) {
    RF_RETURN_IF_ERROR(folder->Begin(contents.files[i].name));
    RF_RETURN_IF_ERROR(
        WriteFile(*checkpoint, static_cast<int>(i), pool, *folder, advance));
    RF_RETURN_IF_ERROR(folder->Commit());
  }
  for (const std::string& name : cluster::SyntheticFileNames()) {
    if (name == "config.json") {
      RF_RETURN_IF_ERROR(folder->WriteText(kIndexName, *contents.index));
    }
    RF_ASSIGN_OR_RETURN(const std::string text,
                        cluster::SyntheticFile(checkpoint->model(), name));
    RF_RETURN_IF_ERROR(folder->WriteText(name, text));
  }
  progress.set_index_hash(HashText(*contents.index));
  progress.set_done(true);
  // Before the caller hears of it, but after the last chance to stop.
  RF_RETURN_IF_ERROR(folder->Finish());
  return report(progress);
}

}  // namespace ringfleet::worker
