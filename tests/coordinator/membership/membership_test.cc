// SPDX-License-Identifier: Apache-2.0
#include "coordinator/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLease = absl::Seconds(10);

class MembershipTest : public ::testing::Test {
 protected:
  Membership Make(int world_size,
                  absl::Time start = absl::FromUnixSeconds(1000)) {
    Membership::Options options;
    options.world_size = world_size;
    options.build.set_build_id("def");
    options.lease = kLease;
    return Membership(options, start, [this] { return now_; });
  }

  static v1::RegisterRequest Worker(int rank, const std::string& address,
                                    uint64_t pid = 1) {
    v1::RegisterRequest request;
    request.set_rank(rank);
    request.set_address(address);
    request.set_pid(pid);
    request.mutable_build()->set_build_id("def");
    return request;
  }

  static v1::HeartbeatRequest Beat(uint64_t member_id, uint64_t epoch = 0) {
    v1::HeartbeatRequest request;
    request.set_member_id(member_id);
    request.set_last_epoch(epoch);
    return request;
  }

  void Advance(absl::Duration duration) {
    now_ += absl::ToChronoNanoseconds(duration);
  }

  cluster::Deadline::Clock::time_point now_{std::chrono::hours(1)};
};

TEST_F(MembershipTest, IsCompleteWhenEveryRankHasRegistered) {
  Membership membership = Make(2);
  EXPECT_THAT(membership.MissingRanks(), ElementsAre(0, 1));
  ASSERT_TRUE(membership.Register(Worker(1, "b:1")).ok());
  EXPECT_FALSE(membership.complete());
  EXPECT_THAT(membership.MissingRanks(), ElementsAre(0));
  ASSERT_TRUE(membership.Register(Worker(0, "a:1")).ok());
  EXPECT_TRUE(membership.complete());
  EXPECT_EQ(membership.Members()[0].address, "a:1");
  EXPECT_EQ(membership.Members()[1].address, "b:1");
}

TEST_F(MembershipTest, AnyRankIsTheLowestFreeOne) {
  Membership membership = Make(3);
  ASSERT_TRUE(membership.Register(Worker(1, "b:1")).ok());
  EXPECT_EQ(membership.Register(Worker(-1, "a:1"))->rank, 0);
  EXPECT_EQ(membership.Register(Worker(-1, "c:1"))->rank, 2);
  const auto none = membership.Register(Worker(-1, "d:1"));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(none.status().message(),
            "worker at d:1: all 3 ranks are held by living workers");
}

TEST_F(MembershipTest, AnyRankIsTheOneWhoseWeightsAreHeld) {
  Membership membership = Make(3);
  v1::RegisterRequest request = Worker(-1, "a:1");
  request.set_last_epoch(7);
  request.mutable_held()->mutable_request()->mutable_layout()->set_rank(2);
  const auto member = membership.Register(request);
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ(member->rank, 2);
  EXPECT_EQ(member->last_epoch, 7u);
  ASSERT_NE(member->held, nullptr);
  EXPECT_EQ(member->held->request().layout().rank(), 2u);
  request.set_address("b:1");  // The rank is taken.
  EXPECT_EQ(membership.Register(request)->rank, 0);
  request.set_address("c:1");
  request.mutable_held()->mutable_request()->mutable_layout()->set_rank(9);
  EXPECT_EQ(membership.Register(request)->rank, 1);
}

TEST_F(MembershipTest, LeasesGetTheTimeThatTheCoordinatorDidNotHear) {
  Membership membership = Make(1);
  ASSERT_TRUE(membership.Register(Worker(0, "a:1")).ok());
  Advance(3 * kLease);
  membership.Prolong(3 * kLease);
  EXPECT_THAT(membership.Expire(), IsEmpty());
  Advance(kLease);
  EXPECT_EQ(membership.Expire().size(), 1u);
}

TEST_F(MembershipTest, AnyRankTwiceFromOneAddressIsTheSameRank) {
  Membership membership = Make(2);
  EXPECT_EQ(membership.Register(Worker(-1, "a:1"))->rank, 0);
  EXPECT_EQ(membership.Register(Worker(-1, "a:1"))->rank, 0);
  EXPECT_FALSE(membership.complete());
}

TEST_F(MembershipTest, MembersTellWhenTheyWereHeard) {
  Membership membership = Make(2);
  const auto first = membership.Register(Worker(0, "a:1"));
  Advance(absl::Seconds(1));
  ASSERT_TRUE(membership.Register(Worker(1, "b:1")).ok());
  const auto registered = now_;
  Advance(absl::Seconds(1));
  v1::HeartbeatRequest beat = Beat(first->member_id);
  beat.mutable_figures()->set_memory_bytes(5);
  ASSERT_TRUE(membership.Heartbeat(beat).ok());
  EXPECT_EQ(membership.Members()[0].heard, now_);
  EXPECT_EQ(membership.Members()[0].figures.memory_bytes(), 5u);
  EXPECT_EQ(membership.Members()[1].heard, registered);
  // A lost member keeps the time.
  Advance(kLease - absl::Seconds(1));
  ASSERT_EQ(membership.Expire().size(), 1u);
  EXPECT_EQ(membership.Members()[1].heard, registered);
}

TEST_F(MembershipTest, AnotherBuildIsRefused) {
  Membership membership = Make(3);
  v1::RegisterRequest request = Worker(2, "c:1");
  request.mutable_build()->set_build_id("abc");
  const absl::Status status = membership.Register(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "worker 2 at c:1: build abc, want def; install the same build on "
            "all hosts");
  EXPECT_THAT(membership.Members(), IsEmpty());
}

TEST_F(MembershipTest, RanksOutsideTheWorldAreRefused) {
  Membership membership = Make(2);
  for (const int rank : {-2, 2, 100}) {
    EXPECT_EQ(membership.Register(Worker(rank, "a:1")).status().code(),
              absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(membership.Register(Worker(2, "a:1")).status().message(),
            "worker at a:1: rank 2, want 0 to 1");
}

TEST_F(MembershipTest, ARegistrationWithoutAnAddressIsRefused) {
  Membership membership = Make(1);
  EXPECT_EQ(membership.Register(Worker(0, "")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MembershipTest, ALivingWorkerKeepsItsRank) {
  Membership membership = Make(1);
  ASSERT_TRUE(membership.Register(Worker(0, "a:1", 7)).ok());
  const absl::Status status = membership.Register(Worker(0, "b:1")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("worker 0 (a:1, pid 7)"));
  EXPECT_EQ(membership.Members()[0].address, "a:1");
}

TEST_F(MembershipTest, ARegistrationFromTheSameAddressReplaces) {
  Membership membership = Make(1);
  const uint64_t first = membership.Register(Worker(0, "a:1", 7))->member_id;
  const uint64_t second = membership.Register(Worker(0, "a:1", 8))->member_id;
  EXPECT_NE(first, second);
  EXPECT_EQ(membership.Members()[0].pid, 8u);
  EXPECT_EQ(membership.Heartbeat(Beat(first)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(membership.Heartbeat(Beat(second)).ok());
}

TEST_F(MembershipTest, AProcessHoldsOneRank) {
  Membership membership = Make(2);
  ASSERT_TRUE(membership.Register(Worker(0, "a:1")).ok());
  ASSERT_TRUE(membership.Register(Worker(1, "a:1")).ok());
  EXPECT_THAT(membership.MissingRanks(), ElementsAre(0));
}

TEST_F(MembershipTest, HeartbeatsKeepALease) {
  Membership membership = Make(2);
  const uint64_t kept = membership.Register(Worker(0, "a:1"))->member_id;
  const uint64_t silent = membership.Register(Worker(1, "b:1"))->member_id;
  Advance(kLease - absl::Nanoseconds(1));
  EXPECT_THAT(membership.Expire(), IsEmpty());
  ASSERT_TRUE(membership.Heartbeat(Beat(kept)).ok());
  Advance(absl::Nanoseconds(1));
  const auto lost = membership.Expire();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].member_id, silent);
  EXPECT_THAT(membership.Expire(), IsEmpty());  // Told once.
  EXPECT_EQ(membership.Heartbeat(Beat(silent)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(membership.MissingRanks(), ElementsAre(1));
  // Still listed, as lost.
  ASSERT_EQ(membership.Members().size(), 2u);
  EXPECT_TRUE(membership.Members()[1].lost);
}

TEST_F(MembershipTest, ALostRankIsFreeForAReplacement) {
  Membership membership = Make(2);
  ASSERT_TRUE(membership.Register(Worker(0, "a:1")).ok());
  const uint64_t gone = membership.Register(Worker(1, "b:1"))->member_id;
  membership.Evict(gone);
  EXPECT_FALSE(membership.complete());
  EXPECT_EQ(membership.Register(Worker(-1, "c:1"))->rank, 1);
  EXPECT_TRUE(membership.complete());
  membership.Evict(gone);  // The predecessor, long replaced.
  EXPECT_TRUE(membership.complete());
}

TEST_F(MembershipTest, ARestartGivesNoNumberAgain) {
  Membership first = Make(1, absl::FromUnixSeconds(1000));
  const uint64_t a = first.NewEpoch();
  const uint64_t b = first.NewEpoch();
  const uint64_t member = first.Register(Worker(0, "a:1"))->member_id;
  EXPECT_LT(a, b);
  Membership second = Make(1, absl::FromUnixMillis(1000001));
  EXPECT_LT(b, second.NewEpoch());
  EXPECT_LT(member, second.Register(Worker(0, "a:1"))->member_id);
}

// A coordinator that is restarted on a host whose clock is behind.
TEST_F(MembershipTest, EpochsAreLaterThanAllThatMembersReport) {
  Membership first = Make(2, absl::FromUnixSeconds(2000));
  first.NewEpoch();
  const uint64_t seen = first.NewEpoch();
  Membership second = Make(2, absl::FromUnixSeconds(1000));
  v1::RegisterRequest worker = Worker(0, "a:1");
  worker.set_last_epoch(seen);
  ASSERT_TRUE(second.Register(worker).ok());
  const uint64_t late = second.Register(Worker(1, "b:1"))->member_id;
  const uint64_t epoch = second.NewEpoch();
  EXPECT_GT(epoch, seen);
  // A call of the predecessor's that arrived after the registration.
  ASSERT_TRUE(second.Heartbeat(Beat(late, epoch + 5)).ok());
  EXPECT_GT(second.NewEpoch(), epoch + 5);
  // What was refused moves nothing.
  worker = Worker(7, "c:1");
  worker.set_last_epoch(epoch + 100);
  EXPECT_FALSE(second.Register(worker).ok());
  EXPECT_FALSE(second.Heartbeat(Beat(1, epoch + 100)).ok());
  EXPECT_LT(second.NewEpoch(), epoch + 100);
}

// The predecessor had registered this worker after the last epoch. Were the ids
// moved with the epochs, another worker could get the same one, and keep its
// lease by this one's heartbeats.
TEST_F(MembershipTest, ReportedEpochsDoNotMoveMemberIds) {
  Membership first = Make(2, absl::FromUnixSeconds(2000));
  ASSERT_TRUE(first.Register(Worker(0, "a:1")).ok());
  const uint64_t seen = first.NewEpoch();
  std::vector<uint64_t> old;
  for (int i = 0; i < 9; ++i) {
    old.push_back(first.Register(Worker(1, "b:1"))->member_id);
  }
  Membership second = Make(2, absl::FromUnixSeconds(1000));
  v1::RegisterRequest worker = Worker(0, "a:1");
  worker.set_last_epoch(seen);
  ASSERT_TRUE(second.Register(worker).ok());
  for (const uint64_t id : old) {
    EXPECT_EQ(second.Heartbeat(Beat(id)).code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(MembershipTest, AnEpochThatNobodyCanHaveReachedIsRefused) {
  Membership membership = Make(1);
  v1::RegisterRequest worker = Worker(0, "a:1");
  worker.set_last_epoch(cluster::kMaxEpoch + 1);
  EXPECT_EQ(membership.Register(worker).status().message(),
            "worker at a:1: last epoch 9223372036854775809, want at most "
            "9223372036854775808");
  worker.set_last_epoch(cluster::kMaxEpoch);
  const auto member = membership.Register(worker);
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ(membership.NewEpoch(), cluster::kMaxEpoch + 1);
  EXPECT_EQ(membership.Heartbeat(Beat(member->member_id, ~uint64_t{0})).code(),
            absl::StatusCode::kInvalidArgument);
}

// They would put each other out for ever.
TEST_F(MembershipTest, OneAddressOfTwoMachinesIsRefused) {
  Membership membership = Make(2);
  v1::RegisterRequest first = Worker(0, "127.0.0.1:1", 7);
  first.set_host("node");
  first.set_machine("boot 1");
  ASSERT_TRUE(membership.Register(first).ok());
  v1::RegisterRequest second = Worker(1, "127.0.0.1:1", 8);
  second.set_host("node");  // A name that both have.
  second.set_machine("boot 2");
  const absl::Status refused = membership.Register(second).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(refused.message(),
            "worker at 127.0.0.1:1 on host node: worker 0 (127.0.0.1:1, pid 7) "
            "on host node, another machine, is known by this address; want "
            "--advertise HOST:PORT");
  EXPECT_THAT(membership.MissingRanks(), ElementsAre(1));
  // The machine may have been replaced.
  Advance(kLease);
  membership.Expire();
  EXPECT_TRUE(membership.Register(second).ok());
}

TEST_F(MembershipTest, AnAddressThatNobodyCanDialIsRefused) {
  Membership membership = Make(1);
  for (const char* address : {"0.0.0.0:1", "[::]:1", "0:1"}) {
    const absl::Status refused =
        membership.Register(Worker(0, address)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("want --advertise HOST:PORT"));
  }
}

Member OnMachine(const std::string& machine, const std::string& host) {
  Member member;
  member.machine = machine;
  member.host = host;
  return member;
}

void AddMemory(const std::string& id, uint64_t bytes, Member* member) {
  member->memory.emplace_back();
  member->memory.back().set_id(id);
  member->memory.back().set_amount(bytes);
}

TEST_F(MembershipTest, MachinesCountAndNotTheirNames) {
  const std::vector<Member> members = {OnMachine("x", "alpha"),
                                       OnMachine("y", "alpha"),
                                       OnMachine("x", "alpha.example.com")};
  EXPECT_EQ(CountMachines(members), 2);
  EXPECT_EQ(RanksOnMachine(members, 0), 2);
  EXPECT_EQ(RanksOnMachine(members, 1), 1);
  // A worker that names no machine is on that of its host.
  Membership membership = Make(2);
  for (const int rank : {0, 1}) {
    v1::RegisterRequest worker = Worker(rank, rank == 0 ? "a:1" : "a:2");
    worker.set_host("alpha");
    ASSERT_TRUE(membership.Register(worker).ok());
  }
  EXPECT_EQ(CountMachines(membership.Members()), 1);
}

TEST_F(MembershipTest, PoolsAreSharedByTheWorkersThatHaveThem) {
  std::vector<Member> members = {OnMachine("x", "a"), OnMachine("x", "b"),
                                 OnMachine("x", "c"), OnMachine("y", "a")};
  for (Member& member : members) AddMemory("machine", 120, &member);
  // Two of them have a cgroup of their own, within one of both.
  AddMemory("limit", 35, &members[0]);
  AddMemory("both", 60, &members[0]);
  AddMemory("both", 66, &members[1]);   // Measured later.
  AddMemory("limit", 10, &members[3]);  // Of another machine.
  EXPECT_EQ(ShareOf(members, 0, &Member::memory), 33u);
  EXPECT_EQ(ShareOf(members, 1, &Member::memory), 33u);
  EXPECT_EQ(ShareOf(members, 2, &Member::memory), 40u);
  EXPECT_EQ(ShareOf(members, 3, &Member::memory), 10u);
  // Without an id it is the worker's alone.
  for (Member& member : members) AddMemory("", 30, &member);
  EXPECT_EQ(ShareOf(members, 0, &Member::memory), 30u);
  EXPECT_EQ(ShareOf(members, 0, &Member::cpus), 0u);  // None.
}

}  // namespace
}  // namespace ringfleet::coordinator
