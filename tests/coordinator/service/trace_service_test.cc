// SPDX-License-Identifier: Apache-2.0
// Coordinator.Trace over real gRPC, with fake workers.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/coordinator_server.h"
#include "protos/cluster.grpc.pb.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/fake_worker.h"

namespace ringfleet::coordinator {
namespace {

using ringfleet::testing::FakeWorker;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kHourNs = 3'600'000'000'000;

class TraceServiceTest : public ::testing::Test {
 protected:
  void Start(std::vector<FakeWorker::Behaviour> behaviours) {
    CoordinatorOptions options;
    options.fleet.settings.set_model(RINGFLEET_SOURCE_DIR
                                     "/tests/models/tiny-v3");
    options.fleet.mesh.tensor = static_cast<int>(behaviours.size());
    options.fleet.lease = absl::Hours(1);
    auto server = CoordinatorServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto channel =
        testing::ConnectedChannel(absl::StrCat("127.0.0.1:", server_->port()));
    coordinator_ = v1::Coordinator::NewStub(channel);
    const auto membership = v1::Membership::NewStub(channel);
    for (size_t rank = 0; rank < behaviours.size(); ++rank) {
      workers_.push_back(std::make_unique<FakeWorker>(static_cast<int>(rank),
                                                      behaviours[rank]));
      grpc::ClientContext context;
      v1::RegisterResponse response;
      ASSERT_TRUE(
          membership
              ->Register(&context, workers_.back()->Registration(), &response)
              .ok());
    }
    const absl::Status status =
        server_->WaitReady(cluster::Deadline::After(absl::Seconds(30)));
    ASSERT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> coordinator_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
};

TEST_F(TraceServiceTest, PutsAllWorkersOnOneClock) {
  ASSERT_NO_FATAL_FAILURE(Start({{.clock_ahead_ns = kHourNs, .host = "one"},
                                 {.clock_ahead_ns = -kHourNs, .host = "two"},
                                 {.host = "two"}}));
  grpc::ClientContext context;
  const auto stream = coordinator_->Trace(&context);
  v1::TraceRequest request;
  request.set_max_events(17);
  v1::TraceProgress progress;
  const int64_t before = cluster::TraceNow();
  ASSERT_TRUE(stream->Write(request) && stream->Read(&progress));
  const int64_t recording = cluster::TraceNow();
  ASSERT_TRUE(progress.has_started());
  stream->WritesDone();
  std::map<uint32_t, v1::TraceProgress::Rank> ranks;
  std::map<uint32_t, v1::TraceChunk> chunks;
  while (stream->Read(&progress)) {
    if (progress.has_rank()) ranks[progress.rank().rank()] = progress.rank();
    if (!progress.has_events()) continue;
    EXPECT_EQ(ranks.count(progress.events().rank()), 1u);
    chunks[progress.events().rank()].MergeFrom(progress.events().chunk());
  }
  const int64_t ended = cluster::TraceNow();
  const grpc::Status status = stream->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_THAT(ranks, SizeIs(3));
  for (const auto& [number, rank] : ranks) {
    EXPECT_EQ(rank.host(), number == 0 ? "one" : "two");
    EXPECT_EQ(rank.address(), workers_[number]->address());
    EXPECT_EQ(rank.dropped(), 17u);
    const int64_t ahead = number == 0 ? kHourNs : number == 1 ? -kHourNs : 0;
    for (const auto& clock : {rank.began(), rank.ended()}) {
      EXPECT_GT(clock.error_ns(), 0);
      EXPECT_LE(std::abs(clock.offset_ns() - ahead), clock.error_ns());
    }
    // The trace begins at `before` or later, so times since then are less.
    const int64_t error =
        std::max(rank.began().error_ns(), rank.ended().error_ns());
    const auto& events = chunks[number].events();
    ASSERT_THAT(events, SizeIs(2));
    EXPECT_GE(events[0].begin_ns(), -error);
    EXPECT_LE(events[0].begin_ns(), recording - before + error);
    EXPECT_GE(events[1].begin_ns(), events[0].begin_ns());
    EXPECT_LE(events[1].begin_ns(), ended - before + error);
    EXPECT_EQ(events[1].duration_ns(), 1000u);
  }
}

TEST_F(TraceServiceTest, AWorkerThatRefusesIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Start(
      {{}, {.trace_error = absl::FailedPreconditionError("another one")}}));
  grpc::ClientContext context;
  const auto stream = coordinator_->Trace(&context);
  stream->Write(v1::TraceRequest());
  v1::TraceProgress progress;
  EXPECT_FALSE(stream->Read(&progress));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              AllOf(HasSubstr("worker 1"), HasSubstr("another one")));
}

// Its workers stop, so that the next trace finds them free.
TEST_F(TraceServiceTest, ACallerWhoLeavesEndsTheTrace) {
  ASSERT_NO_FATAL_FAILURE(Start({{}, {}}));
  v1::TraceProgress progress;
  {
    grpc::ClientContext context;
    const auto stream = coordinator_->Trace(&context);
    ASSERT_TRUE(stream->Write(v1::TraceRequest()) && stream->Read(&progress));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  grpc::ClientContext context;
  const auto stream = coordinator_->Trace(&context);
  ASSERT_TRUE(stream->Write(v1::TraceRequest()) && stream->Read(&progress));
  stream->WritesDone();
  while (stream->Read(&progress)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace ringfleet::coordinator
