// SPDX-License-Identifier: Apache-2.0
// The questions of gRPC's server reflection: version v1alpha of the protocol,
// or v1, which has the same messages, where the server has dropped it.
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

// Errors of every question: NOT_FOUND for an unknown name, FAILED_PRECONDITION
// without reflection on the server, DATA_LOSS for a reply that makes no sense,
// and those of the connection. Not thread-safe.
class ReflectionProtocol {
 public:
  using Files = std::map<std::string, google::protobuf::FileDescriptorProto>;

  // `address` names the server in errors.
  ReflectionProtocol(std::shared_ptr<grpc::Channel> channel,
                     std::string address, cluster::Deadline deadline);

  // Full names, sorted.
  absl::StatusOr<std::vector<std::string>> Services();
  // The file that declares `symbol`, and as many of its imports as the server
  // cares to send along.
  absl::StatusOr<Files> FilesWithSymbol(absl::string_view symbol);
  absl::StatusOr<Files> FileNamed(absl::string_view name);

 private:
  absl::StatusOr<std::unique_ptr<google::protobuf::Message>> Ask(
      const char* field, absl::string_view value);
  absl::StatusOr<Files> AskFiles(const char* field, absl::string_view value);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string address_;
  const cluster::Deadline deadline_;
  std::string method_;  // Of the version that the server speaks.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_REFLECTION_REFLECTION_PROTOCOL_H_
