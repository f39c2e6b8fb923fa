// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_SERVICE_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_SERVICE_H_

#include <grpcpp/server_context.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/mutex.h"
#include "protos/checkpoint.grpc.pb.h"

namespace ringfleet::cluster {

// Largest number of bytes of a call. A call must end soon.
inline constexpr uint64_t kMaxServedBytes = 8 << 20;
// Bytes of a chunk in a call's stream. Larger chunks are not faster with gRPC.
inline constexpr uint64_t kServedChunkBytes = 256 << 10;

// Serves CheckpointFiles. Opens only files that ListCheckpointFiles returns,
// never a path that the caller gives. Follows symbolic links, because caches of
// the Hugging Face hub have them. Refuses a file that has changed since the
// folder was listed. Keeps no file open between calls.
//
// Runs at most kMaxCalls calls of Read. Each holds two chunks in memory.
// Between calls the service keeps only names and identities of files.
// Thread-safe.
class CheckpointFilesService final : public v1::CheckpointFiles::Service {
 public:
  static constexpr int kMaxCalls = 32;

  // Makes all later calls serve this folder only. Opens no file.
  void Serve(const std::string& folder);

  grpc::Status List(grpc::ServerContext* context,
                    const v1::ListFilesRequest* request,
                    v1::ListFilesResponse* response) override;
  grpc::Status Read(grpc::ServerContext* context,
                    const v1::ReadFileRequest* request,
                    grpc::ServerWriter<v1::FileChunk>* writer) override;

 private:
  // The files of a folder and their identity when the folder was listed.
  struct Listing;

  static absl::StatusOr<std::shared_ptr<const Listing>> MakeListing(
      const std::string& folder);
  absl::StatusOr<std::shared_ptr<const Listing>> FindListing(
      const std::string& folder);
  absl::Status ReadRanges(const v1::ReadFileRequest& request,
                          grpc::ServerWriter<v1::FileChunk>* writer);

  Mutex mu_;
  CondVar changed_;
  std::string folder_ ABSL_GUARDED_BY(mu_);                      // Empty: none.
  std::shared_ptr<const Listing> listing_ ABSL_GUARDED_BY(mu_);  // Or null.
  bool listing_now_ ABSL_GUARDED_BY(mu_) = false;  // A call lists it.
  int calls_ ABSL_GUARDED_BY(mu_) = 0;             // Running Read calls.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_SERVICE_H_
