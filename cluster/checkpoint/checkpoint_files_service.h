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

// Most bytes of a call, so that a call ends soon.
inline constexpr uint64_t kMaxServedBytes = 8 << 20;
// Bytes of a chunk of a call's stream, as many as pay with gRPC.
inline constexpr uint64_t kServedChunkBytes = 256 << 10;

// Serves CheckpointFiles. Files are opened by the checkpoint's own names, never
// by a caller's name. A name that is a link is followed, as in the hub's
// caches. A file must not have changed since it was found to be a part of the
// checkpoint. Between calls no file is open.
//
// Each of at most kMaxCalls calls holds two chunks. The service keeps only
// names beside the chunks. Thread-safe.
class CheckpointFilesService final : public v1::CheckpointFiles::Service {
 public:
  static constexpr int kMaxCalls = 32;

  // Serves this folder, and no other, from the next call on. Opens nothing.
  void Serve(const std::string& folder);

  grpc::Status List(grpc::ServerContext* context,
                    const v1::ListFilesRequest* request,
                    v1::ListFilesResponse* response) override;
  grpc::Status Read(grpc::ServerContext* context,
                    const v1::ReadFileRequest* request,
                    grpc::ServerWriter<v1::FileChunk>* writer) override;

 private:
  // The state in which a folder was found.
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
  bool listing_now_ ABSL_GUARDED_BY(mu_) = false;  // One call looks.
  int calls_ ABSL_GUARDED_BY(mu_) = 0;             // In Read.
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FILES_SERVICE_H_
