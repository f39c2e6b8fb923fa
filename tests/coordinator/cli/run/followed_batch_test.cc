// SPDX-License-Identifier: Apache-2.0
// `ringfleet show ID --follow` as a process, with a coordinator that goes away
// and comes back.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "protos/coordinator.grpc.pb.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/process.h"
#include "tests/testing/sockets.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

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
    ASSERT_TRUE(testing::WaitUntil(30, [&show] {
      return show.errors() == "the coordinator is away: waiting for it\n";
    })) << show.errors();
  }
  FollowedCoordinator back(/*is_back=*/true);
  server = back.Start(address);
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(show.Wait(60), 0) << show.errors();
  EXPECT_EQ(show.output(), "1\n2\n");
  EXPECT_EQ(show.errors(),
            "the coordinator is away: waiting for it\n"
            "the coordinator is back\n");
  server->Shutdown(std::chrono::system_clock::now());
}

// Has a batch in progress, which ends with the second line.
class RunningCoordinator : public v1::Coordinator::Service {
 public:
  grpc::Status DescribeCluster(grpc::ServerContext*,
                               const v1::DescribeClusterRequest*,
                               v1::ClusterState*) override {
    return grpc::Status::OK;
  }
  grpc::Status SubmitBatch(grpc::ServerContext*,
                           grpc::ServerReader<v1::SubmitBatchRequest>* reader,
                           v1::GetJobResponse* response) override {
    v1::SubmitBatchRequest request;
    while (reader->Read(&request)) {
    }
    return Describe(response);
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*,
                      v1::GetJobResponse* response) override {
    ++looks_;
    return Describe(response);
  }
  grpc::Status StreamResults(
      grpc::ServerContext* context, const v1::StreamResultsRequest* request,
      grpc::ServerWriter<v1::StreamResultsResponse>* writer) override {
    const std::string text(request->id() == "batch_long" ? 100'000 : 1, 'x');
    v1::StreamResultsResponse response;
    response.add_results()->set_text(text + "\n");
    writer->Write(response);
    // The first state has been shown before the third look.
    while (looks_ < 3 && !context->IsCancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    cancelled_ = context->IsCancelled();
    writer->Write(response);
    return grpc::Status::OK;
  }

  std::atomic<int> looks_{0};
  std::atomic<bool> cancelled_{false};

 private:
  static grpc::Status Describe(v1::GetJobResponse* response) {
    response->mutable_job()->set_id("batch_long");
    v1::BatchInfo& batch = *response->mutable_job()->mutable_batch();
    batch.set_state("in_progress");
    batch.set_total(4);
    batch.set_completed(2);
    batch.set_lines_per_second(1.5);
    return grpc::Status::OK;
  }
};

class RunningBatchTest : public ::testing::Test {
 protected:
  RunningBatchTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
  }
  ~RunningBatchTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Returns what a terminal of this width gets from `show --output --follow`.
  std::string Screen(uint16_t columns) {
    coordinator_.looks_ = 0;
    const testing::TempDir folder;
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_TRUE(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    winsize size = {};
    size.ws_col = columns;
    EXPECT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
    const std::string name = ptsname(terminal);
    const int kept = open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    testing::Process show(
        {.command = {"/bin/sh", "-c", "exec \"$@\" >\"$0\" 2>\"$0\"", name,
                     RINGFLEET_BINARY, "show", "batch_1", "--coordinator",
                     address(), "--output", "--follow"},
         .capture = folder.File("show")});
    EXPECT_EQ(show.Wait(60), 0) << show.errors();
    std::string screen(1 << 16, '\0');
    const ssize_t bytes = read(terminal, screen.data(), screen.size());
    screen.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    close(kept);
    close(terminal);
    return screen;
  }

  RunningCoordinator coordinator_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RunningBatchTest, ResultsStandBesideTheBar) {
  const std::string bar = " 50 % |############            | 2 of 4 lines, ";
  const std::string screen = Screen(0);
  EXPECT_THAT(screen, HasSubstr(bar + "1.5 lines/s, 2s left"));
  // The last result takes the place of the bar, which comes again below.
  EXPECT_THAT(screen, HasSubstr("left\r\x1b[Kx\r\n\r\x1b[K" + bar));
  EXPECT_THAT(screen, Not(HasSubstr("leftx")));
  EXPECT_THAT(screen, EndsWith("left\r\x1b[K"));
  // A line that wraps could not be cleared.
  EXPECT_THAT(Screen(20), HasSubstr("\x1b[K" + bar.substr(0, 19) + "\r"));
}

TEST_F(RunningBatchTest, AFileThatCannotBeWrittenEndsTheWait) {
  const testing::TempDir folder;
  testing::WriteFile(folder.File("lines"), "{}\n");
  coordinator_.looks_ = -1000;  // It would take long.
  testing::Process submit(
      {.command = {RINGFLEET_BINARY, "submit", "--coordinator", address(),
                   folder.File("lines"), "-o", "/dev/full"},
       .capture = folder.File("submit")});
  EXPECT_EQ(submit.Wait(30), 1) << submit.errors();
  EXPECT_THAT(submit.errors(),
              HasSubstr("ringfleet: /dev/full: cannot be written: No space"));
  EXPECT_TRUE(testing::WaitUntil(
      30, [this] { return coordinator_.cancelled_.load(); }));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
