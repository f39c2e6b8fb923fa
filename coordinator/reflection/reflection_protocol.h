// SPDX-License-Identifier: Apache-2.0
// A client of gRPC's server reflection. Uses version v1alpha of the protocol,
// or version v1 if the server lacks v1alpha. Both versions have equal messages.
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

// Asks one server. Not thread-safe.
// Errors of every function: those of the connection. NOT_FOUND: the server does
// not know the name. FAILED_PRECONDITION: the server has no reflection.
// DATA_LOSS: a malformed reply.
class ReflectionProtocol {
 public:
  // Files by name.
  using Files = std::map<std::string, google::protobuf::FileDescriptorProto>;

  // `address` is the server's name in error messages.
  ReflectionProtocol(std::shared_ptr<grpc::Channel> channel,
                     std::string address, cluster::Deadline deadline);

  // Returns the full names of all services, sorted.
  absl::StatusOr<std::vector<std::string>> Services();
  // Return the file that declares `symbol`, or the file `name`, with the
  // imports that the server sends along.
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
