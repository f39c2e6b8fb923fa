// SPDX-License-Identifier: Apache-2.0
// `ringfleet show ID --follow` as a process, with a coordinator that goes away
// and comes back.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "protos/coordinator.grpc.pb.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/process.h"
#include "tests/testing/sockets.h"

namespace ringfleet::coordinator::cli {
namespace {

// Has a line, and is about to end; or has come back and has the next line, too.
class FollowedCoordinator : public v1::Coordinator::Service {
 public:
  explicit FollowedCoordinator(bool is_back) : is_back_(is_back) {}

  grpc::Status DescribeCluster(grpc::ServerContext*,
                               const v1::DescribeClusterRequest*,
                               v1::ClusterState*) override {
    return grpc::Status::OK;
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*,
                      v1::GetJobResponse* response) override {
    response->mutable_job()->mutable_batch()->set_state("completed");
    return grpc::Status::OK;
  }
  grpc::Status StreamResults(
      grpc::ServerContext*, const v1::StreamResultsRequest* request,
      grpc::ServerWriter<v1::StreamResultsResponse>* writer) override {
    for (int64_t line = request->after() + 1; line <= (is_back_ ? 2 : 1);
         ++line) {
      v1::StreamResultsResponse response;
      response.add_results()->set_line(line);
      response.mutable_results(0)->set_text(absl::StrCat(line, "\n"));
      writer->Write(response);
    }
    if (is_back_) return grpc::Status::OK;
    return {grpc::StatusCode::UNAVAILABLE, "the coordinator stops"};
  }

  // Returns null if it cannot listen.
  std::unique_ptr<grpc::Server> Start(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    return builder.BuildAndStart();
  }

 private:
  const bool is_back_;
};

TEST(FollowedBatchTest, GoesOnBehindTheLastLine) {
  const testing::TempDir folder;
  const std::string address = absl::StrCat("127.0.0.1:", testing::FreePort());
  FollowedCoordinator leaving(/*is_back=*/false);
  std::unique_ptr<grpc::Server> server = leaving.Start(address);
  ASSERT_NE(server, nullptr);
  testing::Process show(
      {.command = {RINGFLEET_BINARY, "show", "batch_1", "--coordinator",
                   address, "--output", "--follow"},
       .capture = folder.File("show")});
  ASSERT_TRUE(testing::WaitUntil(30, [&show] {
    return show.output() == "1\n";
  })) << show.errors();
  server->Shutdown(std::chrono::system_clock::now());
  server.reset();
  {
    // An attempt to connect fails.
    const testing::Socket listener = testing::BoundSocket(address, SOCK_STREAM);
    testing::AcceptFrom(listener);
  }
  FollowedCoordinator back(/*is_back=*/true);
  server = back.Start(address);
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(show.Wait(60), 0) << show.errors();
  EXPECT_EQ(show.output(), "1\n2\n");
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
