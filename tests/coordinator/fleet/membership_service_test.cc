// SPDX-License-Identifier: Apache-2.0
// The Membership service beside calls that hold all threads of the server.
#include "coordinator/fleet/membership_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/build_info.h"
#include "cluster/rpc/server.h"
#include "kernels/check.h"
#include "protos/health.grpc.pb.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

constexpr int kServerThreads = 4;

FleetOptions NobodyYet() {
  FleetOptions options;
  options.mesh.tensor = 2;
  options.lease = absl::Hours(1);
  options.settings.set_parallel(1);
  return options;
}

class MembershipServiceTest : public ::testing::Test {
 protected:
  MembershipServiceTest()
      : fleet_(NobodyYet(), cluster::GetBuildInfo()), service_(&fleet_) {
    auto server = cluster::DaemonServer::Start(
        {"127.0.0.1", 0}, false, [this](grpc::ServerBuilder& builder) {
          grpc::ResourceQuota quota;
          quota.SetMaxThreads(kServerThreads);
          builder.SetResourceQuota(quota);
          builder.RegisterService(&service_);
        });
    RF_CHECK(server.ok());
    server_ = *std::move(server);
    channel_ =
        testing::ConnectedChannel(absl::StrCat("127.0.0.1:", server_->port()));
    stub_ = v1::Membership::NewStub(channel_);
  }
  ~MembershipServiceTest() override {
    fleet_.Shutdown();
    server_->Shutdown(absl::ZeroDuration());
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(
        std::chrono::system_clock::now() +
        absl::ToChronoMilliseconds(testing::Soon().Remaining()));
  }

  v1::RegisterRequest Registration(int rank) const {
    v1::RegisterRequest request;
    request.set_rank(rank);
    request.set_address("127.0.0.1:1");
    *request.mutable_build() = cluster::GetBuildInfo();
    return request;
  }

  // A call of Watch, with its latest state.
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::ClusterState>> reader;
    v1::ClusterState state;

    bool Next() { return reader->Read(&state); }
    grpc::Status End() {
      context.TryCancel();
      while (Next()) {
      }
      return reader->Finish();
    }
  };
  std::unique_ptr<Watch> NewWatch() {
    auto watch = std::make_unique<Watch>();
    SetDeadline(watch->context);
    watch->reader = stub_->Watch(&watch->context, v1::WatchRequest());
    return watch;
  }

  Fleet fleet_;
  MembershipService service_;
  std::unique_ptr<cluster::DaemonServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Membership::Stub> stub_;
};

TEST_F(MembershipServiceTest, NeedsNoThreadOfTheServer) {
  // Each watch of the server's health takes a thread until it is refused one.
  const auto health = grpc::health::v1::Health::NewStub(channel_);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<
      grpc::ClientReader<grpc::health::v1::HealthCheckResponse>>>
      watches;
  grpc::health::v1::HealthCheckResponse response;
  bool refused = false;
  for (int i = 0; i < 2 * kServerThreads && !refused; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetDeadline(*contexts.back());
    watches.push_back(health->Watch(contexts.back().get(),
                                    grpc::health::v1::HealthCheckRequest()));
    refused = !watches.back()->Read(&response);
  }
  ASSERT_TRUE(refused);
  EXPECT_EQ(watches.back()->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  watches.pop_back();

  grpc::ClientContext context;
  v1::RegisterResponse registered;
  const grpc::Status status =
      stub_->Register(&context, Registration(0), &registered);
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext beat_context;
    v1::HeartbeatRequest beat;
    beat.set_member_id(registered.member_id());
    v1::HeartbeatResponse ignored;
    EXPECT_TRUE(stub_->Heartbeat(&beat_context, beat, &ignored).ok());
  }
  const auto watch = NewWatch();
  EXPECT_TRUE(watch->Next());
  EXPECT_EQ(watch->state.workers_size(), 1);
  watch->End();
  for (size_t i = 0; i < watches.size(); ++i) {
    contexts[i]->TryCancel();
    watches[i]->Finish();
  }
}

TEST_F(MembershipServiceTest, AWatcherSeesTheLastStateAndTheEnd) {
  const auto watch = NewWatch();
  ASSERT_TRUE(watch->Next());
  EXPECT_EQ(watch->state.workers_size(), 0);
  grpc::ClientContext context;
  v1::RegisterResponse registered;
  ASSERT_TRUE(stub_->Register(&context, Registration(1), &registered).ok());
  while (watch->state.workers_size() == 0) ASSERT_TRUE(watch->Next());
  EXPECT_EQ(watch->state.workers(0).rank(), 1u);
  fleet_.Shutdown();
  while (watch->Next()) {
  }
  EXPECT_EQ(watch->state.state(), v1::FLEET_STATE_STOPPING);
  EXPECT_TRUE(watch->reader->Finish().ok());
}

TEST_F(MembershipServiceTest, WatchersAreBoundedAndTakeNoThreads) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator());
  };
  std::vector<std::unique_ptr<Watch>> watches;
  const auto before = threads();
  for (size_t i = 0; i < MembershipService::kMaxWatches; ++i) {
    watches.push_back(NewWatch());
    ASSERT_TRUE(watches.back()->Next());
  }
  EXPECT_LT(threads(), before + 50);
  const auto beyond = NewWatch();
  EXPECT_FALSE(beyond->Next());
  EXPECT_EQ(beyond->reader->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  watches.back()->End();
  // Its place is free once the server has seen the end.
  const cluster::Deadline deadline = testing::Soon();
  bool again = false;
  while (!again && !deadline.Expired()) {
    const auto next = NewWatch();
    again = next->Next();
    next->End();
  }
  EXPECT_TRUE(again);
  watches.pop_back();
  for (const auto& watch : watches) watch->End();
}

}  // namespace
}  // namespace ringfleet::coordinator
