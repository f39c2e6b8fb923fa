// SPDX-License-Identifier: Apache-2.0
// A server that refuses connections until a test starts it.
#ifndef RINGFLEET_TESTS_TESTING_LATE_SERVER_H_
#define RINGFLEET_TESTS_TESTING_LATE_SERVER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/rpc/health_service.h"

namespace ringfleet::testing {

// A server with the health service only.
class LateServer {
 public:
  // Returns the address of an abstract Unix socket, which has no file.
  std::string address() const {
    return absl::StrCat("unix-abstract:ringfleet_test_", getpid());
  }

  // Starts the server. Returns false if it cannot listen.
  bool Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    return server_ != nullptr;
  }

 private:
  cluster::HealthService health_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_LATE_SERVER_H_
