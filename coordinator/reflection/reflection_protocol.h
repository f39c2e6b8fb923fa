// SPDX-License-Identifier: Apache-2.0
// Client of gRPC's server reflection: version v1alpha of the protocol, or v1
// with equal messages if the server lacks v1alpha.
#ifndef RINGFLEET_COORDINATOR_REFLECTION_REFLECTION_PROTOCOL_H_
#define RINGFLEET_COORDINATOR_REFLECTION_REFLECTION_PROTOCOL_H_

#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator {

// Errors of every function: NOT_FOUND: an unknown name. FAILED_PRECONDITION:
// the server has no reflection. DATA_LOSS: a malformed reply. Others are those
// of the connection. Not thread-safe.
class ReflectionProtocol {
 public:
  using Files = std::map<std::string, google::protobuf::FileDescriptorProto>;

  // `address` names the server in errors.
  ReflectionProtocol(std::shared_ptr<grpc::Channel> channel,
                     std::string address, cluster::Deadline deadline);

  // Full names, sorted.
  absl::StatusOr<std::vector<std::string>> Services();
  // Returns the file that declares `symbol`, and the imports that the server
  // sends with it.
  absl::StatusOr<Files> FilesWithSymbol(absl::string_view symbol);
  absl::StatusOr<Files> FileNamed(absl::string_view name);

 private:
  absl::StatusOr<std::unique_ptr<google::protobuf::Message>> Ask(
      const char* field, absl::string_view value);
  absl::StatusOr<Files> AskFiles(const char* field, absl::string_view value);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string address_;
  const cluster::Deadline deadline_;
  std::string method_;  // In the version that the server supports.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_REFLECTION_REFLECTION_PROTOCOL_H_
