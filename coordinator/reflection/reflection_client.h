// SPDX-License-Identifier: Apache-2.0
// Inspects and calls any gRPC server that has reflection. Descriptors come from
// the server, and messages are JSON on our side.
#ifndef RINGFLEET_COORDINATOR_REFLECTION_REFLECTION_CLIENT_H_
#define RINGFLEET_COORDINATOR_REFLECTION_REFLECTION_CLIENT_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/type_resolver.h>
#include <grpcpp/channel.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/process/deadline.h"
#include "cluster/rpc/server.h"
#include "coordinator/reflection/generic_call.h"
#include "coordinator/reflection/reflection_protocol.h"

namespace ringfleet::coordinator {

// Errors of every method: UNAVAILABLE: no connection. DEADLINE_EXCEEDED.
// NOT_FOUND: an unknown symbol. FAILED_PRECONDITION: the server has no
// reflection. DATA_LOSS: descriptors or replies contradict themselves. Not
// thread-safe.
class ReflectionClient {
 public:
  // `deadline` ends all calls together.
  ReflectionClient(const cluster::ServerAddress& address,
                   cluster::Deadline deadline);

  // Optional: otherwise the first of the other calls connects.
  absl::Status Connect();

  // Full names, sorted.
  absl::StatusOr<std::vector<std::string>> ListServices();
  // "package.Service.Method" in the order of declaration.
  absl::StatusOr<std::vector<std::string>> ListMethods(
      absl::string_view service);

  // Returns "SYMBOL is a KIND:" and its declaration in proto syntax. A symbol
  // is the full name of a service, method, message, field, enum or enum value,
  // or "package.Service/Method".
  absl::StatusOr<std::string> Describe(absl::string_view symbol);

  // Calls "package.Service/Method" or "package.Service.Method", of any kind of
  // stream. `documents` yields JSON requests. A method that takes one request
  // gets an empty one if there are none. `replies` gets each reply as indented
  // JSON. `all_fields` includes fields with default values.
  //
  // Errors: INVALID_ARGUMENT: a document is not JSON or not this method's
  // request (gives its position), or the method takes one request and got more.
  // An error of the server has its code and the message "CODE: text".
  absl::Status Call(absl::string_view method, MessageSource documents,
                    MessageSink replies, bool all_fields = false);

 private:
  // Both put the file and all its imports into `pool_`.
  absl::Status LoadSymbol(absl::string_view symbol);
  absl::Status AddFile(const std::string& name,
                       ReflectionProtocol::Files& fetched,
                       std::set<std::string>& importing);
  absl::StatusOr<const google::protobuf::ServiceDescriptor*> FindService(
      absl::string_view name);

  const std::string address_;
  const cluster::Deadline deadline_;
  const std::shared_ptr<grpc::Channel> channel_;
  ReflectionProtocol reflection_;
  google::protobuf::DescriptorPool pool_;
  // Refers to `pool_`.
  const std::unique_ptr<google::protobuf::util::TypeResolver> resolver_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_REFLECTION_REFLECTION_CLIENT_H_
