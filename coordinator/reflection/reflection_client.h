// SPDX-License-Identifier: Apache-2.0
// Inspects and calls any gRPC server that has reflection. The server sends the
// descriptors. The caller passes and receives messages as JSON.
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

// A connection with one server. Not thread-safe.
// Errors of every method: UNAVAILABLE: no connection. DEADLINE_EXCEEDED.
// INVALID_ARGUMENT: the name of a symbol is malformed. NOT_FOUND: the server
// does not know the symbol. FAILED_PRECONDITION: the server has no reflection.
// DATA_LOSS: descriptors or replies of the server are malformed.
class ReflectionClient {
 public:
  // `deadline` applies to all calls together.
  ReflectionClient(const cluster::ServerAddress& address,
                   cluster::Deadline deadline);

  // Connects with the server. Optional: the first call of another method
  // connects, too.
  absl::Status Connect();

  // Returns the full names of all services, sorted.
  absl::StatusOr<std::vector<std::string>> ListServices();
  // Returns names such as "package.Service.Method", in the order of
  // declaration.
  absl::StatusOr<std::vector<std::string>> ListMethods(
      absl::string_view service);

  // Returns "SYMBOL is a KIND:" and the declaration of the symbol in proto
  // syntax. `symbol` is the full name of a service, method, message, field,
  // enum or enum value, or "package.Service/Method".
  absl::StatusOr<std::string> Describe(absl::string_view symbol);

  // Calls a method: "package.Service/Method" or "package.Service.Method".
  // Methods may stream requests, replies or both. `documents` yields each
  // request as JSON. A method that takes one request gets an empty request if
  // `documents` yields none. `replies` receives each reply as indented JSON,
  // with fields of default values if `all_fields` is true.
  //
  // Errors: INVALID_ARGUMENT: a document is not JSON, or is not a request of
  // the method; the message names the position of the fault. INVALID_ARGUMENT:
  // `documents` yields several requests for a method that takes one. An error
  // of the server has the server's code and the message "CODE: text".
  absl::Status Call(absl::string_view method, MessageSource documents,
                    MessageSink replies, bool all_fields = false);

 private:
  // Put a file and all its imports into `pool_`: the file that declares
  // `symbol`, or the file `name`.
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
