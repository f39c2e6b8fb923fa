// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/checkpoint_files_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/checkpoint_files.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/wire/crc32c.h"

namespace ringfleet::cluster {
namespace {

// The bytes of a request's ranges put together. INVALID_ARGUMENT when they
// are too many, or not in a file of `file_bytes`.
absl::StatusOr<uint64_t> CheckRanges(const v1::ReadFileRequest& request,
                                     uint64_t file_bytes) {
  uint64_t total = 0;
  if (request.size() == 0 || request.count() == 0 ||
      __builtin_mul_overflow(request.size(), request.count(), &total) ||
      total > kMaxServedBytes || request.from() > total) {
    return absl::InvalidArgumentError(absl::StrCat(
        request.file(), ": ", request.count(), " ranges of ", request.size(),
        " bytes from byte ", request.from(), " of them on, want 1 to ",
        kMaxServedBytes, " bytes in all"));
  }
  uint64_t end = 0;
  if (__builtin_mul_overflow(request.stride(), request.count() - 1, &end) ||
      __builtin_add_overflow(end, request.size(), &end) ||
      __builtin_add_overflow(end, request.offset(), &end) || end > file_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        request.file(), ": ", request.count(), " ranges of ", request.size(),
        " bytes, ", request.stride(), " apart, from ", request.offset(),
        ", want them within ", file_bytes));
  }
  return total;
}

}  // namespace

struct CheckpointFilesService::Listing {
  struct File {
    std::string name;
    FileReader::Identity identity;
  };
  std::string folder;
  std::string fingerprint;
  std::vector<File> files;

  std::string Path(const File& file) const {
    return absl::StrCat(folder, "/", file.name);
  }
  // The file as it was listed. DATA_LOSS when it has changed.
  absl::StatusOr<FileReader> Open(const File& file) const {
    RF_ASSIGN_OR_RETURN(FileReader reader, FileReader::Open(Path(file)));
    if (reader.identity() == file.identity) return reader;
    return absl::DataLossError(absl::StrCat(
        reader.path(), ": changed after it was listed (", file.identity.size,
        " bytes then, ", reader.size(), " now)"));
  }
  bool Unchanged() const {
    return std::all_of(files.begin(), files.end(),
                       [this](const File& file) { return Open(file).ok(); });
  }
};

void CheckpointFilesService::Serve(const std::string& folder) {
  MutexLock lock(&mu_);
  folder_ = folder;
}

absl::StatusOr<std::shared_ptr<const CheckpointFilesService::Listing>>
CheckpointFilesService::MakeListing(const std::string& folder) {
  auto listing = std::make_shared<Listing>();
  listing->folder = folder;
  RF_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      ListCheckpointFiles(folder));
  for (const std::string& name : names) {
    RF_ASSIGN_OR_RETURN(const FileReader file,
                        FileReader::Open(absl::StrCat(folder, "/", name)));
    listing->files.push_back({name, file.identity()});
  }
  // A file of this name may be a link to anything. Each file is checked to be
  // what its name says before a byte of it leaves.
  RF_RETURN_IF_ERROR(LoadModelSpec(folder).status());
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                      OpenCheckpoint(folder));
  RF_ASSIGN_OR_RETURN(listing->fingerprint, checkpoint->Fingerprint());
  for (const Listing::File& file : listing->files) {
    RF_RETURN_IF_ERROR(listing->Open(file).status());
  }
  return listing;
}

absl::StatusOr<std::shared_ptr<const CheckpointFilesService::Listing>>
CheckpointFilesService::FindListing(const std::string& folder) {
  std::shared_ptr<const Listing> last;
  {
    MutexLock lock(&mu_);
    while (listing_now_) changed_.Wait(&mu_);
    if (folder_ != folder || folder.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "files of ", folder, ": ",
          folder_.empty() ? "none are" : absl::StrCat(folder_, " is"),
          " served here"));
    }
    listing_now_ = true;
    last = listing_;
  }
  absl::StatusOr<std::shared_ptr<const Listing>> listing =
      last != nullptr && last->folder == folder && last->Unchanged()
          ? last
          : MakeListing(folder);
  MutexLock lock(&mu_);
  listing_now_ = false;
  listing_ = listing.ok() ? *listing : nullptr;
  changed_.NotifyAll();
  return listing;
}

grpc::Status CheckpointFilesService::List(grpc::ServerContext*,
                                          const v1::ListFilesRequest* request,
                                          v1::ListFilesResponse* response) {
  const auto listing = FindListing(request->model());
  if (!listing.ok()) return ToGrpc(listing.status());
  response->set_fingerprint((*listing)->fingerprint);
  for (const Listing::File& file : (*listing)->files) {
    v1::ServedFile* served = response->add_files();
    served->set_name(file.name);
    served->set_bytes(file.identity.size);
    served->set_modified_ns(file.identity.modified_ns);
  }
  return grpc::Status::OK;
}

grpc::Status CheckpointFilesService::Read(
    grpc::ServerContext*, const v1::ReadFileRequest* request,
    grpc::ServerWriter<v1::FileChunk>* writer) {
  {
    MutexLock lock(&mu_);
    if (calls_ == kMaxCalls) {
      return ToGrpc(absl::ResourceExhaustedError(
          absl::StrCat(kMaxCalls, " calls read from here, want fewer")));
    }
    ++calls_;
  }
  const auto end = absl::MakeCleanup([this] {
    MutexLock lock(&mu_);
    --calls_;
  });
  return ToGrpc(ReadRanges(*request, writer));
}

absl::Status CheckpointFilesService::ReadRanges(
    const v1::ReadFileRequest& request,
    grpc::ServerWriter<v1::FileChunk>* writer) {
  std::shared_ptr<const Listing> listing;
  {
    MutexLock lock(&mu_);
    listing = listing_;
    if (listing == nullptr || listing->folder != folder_ ||
        listing->fingerprint != request.fingerprint()) {
      return absl::FailedPreconditionError(
          absl::StrCat(request.file(), ": checkpoint ", request.fingerprint(),
                       " is not served here"));
    }
  }
  const auto file = std::find_if(
      listing->files.begin(), listing->files.end(),
      [&](const Listing::File& f) { return f.name == request.file(); });
  if (file == listing->files.end()) {
    return absl::NotFoundError(absl::StrCat("no file \"", request.file(),
                                            "\" in the checkpoint ",
                                            listing->folder));
  }
  RF_ASSIGN_OR_RETURN(const uint64_t total,
                      CheckRanges(request, file->identity.size));
  RF_ASSIGN_OR_RETURN(const FileReader reader, listing->Open(*file));
  v1::FileChunk chunk;
  for (uint64_t at = request.from(); at < total;) {
    std::string& data = *chunk.mutable_data();
    data.resize(std::min(kServedChunkBytes, total - at));
    for (uint64_t done = 0; done < data.size();) {
      const uint64_t range = (at + done) / request.size();
      const uint64_t begin = (at + done) % request.size();
      const uint64_t size =
          std::min(request.size() - begin, data.size() - done);
      RF_RETURN_IF_ERROR(
          reader.Read(request.offset() + range * request.stride() + begin, size,
                      data.data() + done));
      done += size;
    }
    // After the read: what was read came from the file that was listed.
    RF_RETURN_IF_ERROR(reader.CheckUnchanged());
    chunk.set_offset(at);
    chunk.set_crc32c(ExtendCrc32c(0, data.data(), data.size()));
    if (!writer->Write(chunk)) {
      return absl::CancelledError("the caller went away");
    }
    at += data.size();
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
