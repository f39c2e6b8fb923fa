// SPDX-License-Identifier: Apache-2.0
#include "worker/service/membership_client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/mutex.h"
#include "protos/collective.grpc.pb.h"
#include "worker/service/host_service.h"

namespace ringfleet::worker {
namespace {

// A coordinator's end, which can forget its members as a restart does.
class FakeMembership final : public v1::Membership::Service {
 public:
  explicit FakeMembership(uint32_t heartbeat_interval_ms = 10)
      : heartbeat_interval_ms_(heartbeat_interval_ms) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeMembership() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void Forget() {
    MutexLock lock(&mu_);
    ++generation_;
  }
  // Refuses that many heartbeats, as a server without a thread does.
  void Refuse(int heartbeats) {
    MutexLock lock(&mu_);
    refusals_ = heartbeats;
  }

  grpc::Status Register(grpc::ServerContext*,
                        const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    MutexLock lock(&mu_);
    registrations_.push_back(*request);
    changed_.NotifyAll();
    response->set_member_id(generation_);
    response->set_rank(static_cast<uint32_t>(request->rank()));
    response->set_heartbeat_interval_ms(heartbeat_interval_ms_);
    response->set_coordinator_id(absl::StrCat("coordinator ", generation_));
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*,
                         const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse*) override {
    MutexLock lock(&mu_);
    if (request->member_id() != generation_) {
      return {grpc::StatusCode::NOT_FOUND, "register again"};
    }
    if (refusals_ > 0) {
      --refusals_;
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "no threads"};
    }
    last_beat_ = *request;
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  // Waits for the n-th registration, counted from 1.
  v1::RegisterRequest Registration(size_t n) {
    MutexLock lock(&mu_);
    Await([&] { return registrations_.size() >= n; });
    return registrations_.size() < n ? v1::RegisterRequest()
                                     : registrations_[n - 1];
  }
  size_t registrations() {
    MutexLock lock(&mu_);
    return registrations_.size();
  }
  // Waits for a heartbeat that reports `epoch`.
  bool HasBeat(uint64_t epoch) {
    MutexLock lock(&mu_);
    Await([&] { return last_beat_.last_epoch() == epoch; });
    return last_beat_.last_epoch() == epoch;
  }
  v1::HeartbeatRequest last_beat() {
    MutexLock lock(&mu_);
    return last_beat_;
  }

 private:
  void Await(const std::function<bool()>& condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && changed_.WaitUntil(&mu_, end)) {
    }
  }

  const uint32_t heartbeat_interval_ms_;
  int port_ = 0;
  Mutex mu_;
  CondVar changed_;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 1;
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<v1::RegisterRequest> registrations_ ABSL_GUARDED_BY(mu_);
  v1::HeartbeatRequest last_beat_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

TEST(MembershipClientTest, ReportsTheEpochOfTheMoment) {
  FakeMembership coordinator;
  std::atomic<uint64_t> epoch{0};
  v1::RegisterRequest request;
  request.set_rank(3);
  MembershipClient client(
      coordinator.address(), request,
      {.begin_registration =
           [&epoch](v1::RegisterRequest* registration) {
             registration->set_last_epoch(epoch);
           },
       .end_registration = nullptr,
       .add_figures =
           [&epoch](uint32_t rank, v1::HeartbeatRequest* heartbeat) {
             heartbeat->set_last_epoch(epoch);
             heartbeat->mutable_figures()->set_memory_bytes(100 + rank);
           },
       .on_refused =
           [](const absl::Status& status) { ADD_FAILURE() << status; }});
  EXPECT_EQ(coordinator.Registration(1).rank(), 3);
  EXPECT_EQ(coordinator.Registration(1).last_epoch(), 0u);
  epoch = 41;
  EXPECT_TRUE(coordinator.HasBeat(41));
  epoch = 42;
  EXPECT_TRUE(coordinator.HasBeat(42));
  EXPECT_EQ(coordinator.last_beat().figures().memory_bytes(), 103u);
  coordinator.Forget();
  EXPECT_EQ(coordinator.Registration(2).last_epoch(), 42u);
}

TEST(MembershipClientTest, TellsOfEachRegistrationAndItsCoordinator) {
  FakeMembership coordinator;
  std::atomic<uint64_t> epoch{0};
  std::vector<std::string> calls;  // Of the client's thread.
  {
    MembershipClient client(
        coordinator.address(), v1::RegisterRequest(),
        {.begin_registration =
             [&](v1::RegisterRequest*) { calls.push_back("begin"); },
         .end_registration =
             [&](const std::string& id) { calls.push_back(id); },
         .add_figures =
             [&](uint32_t, v1::HeartbeatRequest* heartbeat) {
               heartbeat->set_last_epoch(epoch);
             },
         .on_refused = nullptr});
    coordinator.Registration(1);
    coordinator.Forget();
    coordinator.Registration(2);
    epoch = 41;
    EXPECT_TRUE(coordinator.HasBeat(41));
  }
  EXPECT_THAT(calls, ::testing::ElementsAre("begin", "coordinator 1", "begin",
                                            "coordinator 2"));
}

// The next heartbeat would come in a minute.
TEST(MembershipClientTest, ARunThatEndsAsksForTheCoordinator) {
  FakeMembership coordinator(/*heartbeat_interval_ms=*/60'000);
  MembershipClient client(coordinator.address(), v1::RegisterRequest(),
                          MembershipClient::Hooks());
  coordinator.Registration(1);
  coordinator.Forget();
  client.BeatNow();
  coordinator.Registration(2);
  EXPECT_EQ(coordinator.registrations(), 2u);
}

// A server of `service` alone, and what a worker says that takes it for a
// coordinator.
absl::Status RefusalOf(grpc::Service* service) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::promise<absl::Status> refused;
  std::future<absl::Status> refusal = refused.get_future();
  const MembershipClient client(
      absl::StrCat("127.0.0.1:", port), v1::RegisterRequest(),
      {.begin_registration = nullptr,
       .end_registration = nullptr,
       .add_figures = nullptr,
       .on_refused = [&refused](const absl::Status& status) {
         refused.set_value(status);
       }});
  if (refusal.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    return absl::DeadlineExceededError("no refusal");
  }
  const absl::Status status = refusal.get();
  return absl::Status(
      status.code(),
      absl::StrReplaceAll(status.message(), {{absl::StrCat(port), "PORT"}}));
}

TEST(MembershipClientTest, EndsAtAServerThatIsNoCoordinator) {
  HostService worker(/*threads=*/1, /*memory_limit_bytes=*/0);
  EXPECT_EQ(RefusalOf(&worker).message(),
            "--coordinator 127.0.0.1:PORT: a worker listens there, want the "
            "address of ringfleet-coordinator");
  v1::Collective::Service other;
  EXPECT_EQ(RefusalOf(&other).message(),
            "--coordinator 127.0.0.1:PORT: another gRPC server listens there, "
            "want the address of ringfleet-coordinator");
}

// A second registration would end the epoch of a worker that is well.
TEST(MembershipClientTest, ARefusedHeartbeatIsTriedAgain) {
  FakeMembership coordinator;
  std::atomic<uint64_t> epoch{0};
  MembershipClient client(
      coordinator.address(), v1::RegisterRequest(),
      {.begin_registration = nullptr,
       .end_registration = nullptr,
       .add_figures =
           [&epoch](uint32_t, v1::HeartbeatRequest* heartbeat) {
             heartbeat->set_last_epoch(epoch);
           },
       .on_refused =
           [](const absl::Status& status) { ADD_FAILURE() << status; }});
  coordinator.Registration(1);
  coordinator.Refuse(3);
  epoch = 41;
  EXPECT_TRUE(coordinator.HasBeat(41));
  EXPECT_EQ(coordinator.registrations(), 1u);
}

}  // namespace
}  // namespace ringfleet::worker
