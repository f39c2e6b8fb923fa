// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/peer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ringfleet::cluster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Result = ReachabilityProbe::Result;

const uint32_t kAllReduce =
    PackDescriptor({Operation::kAllReduce, Algorithm::kOneShot, Wire::kF32});
const uint32_t kAllGather =
    PackDescriptor({Operation::kAllGather, Algorithm::kOneShot, Wire::kF32});

Activity In(uint64_t sequence, std::vector<int> waiting_for = {}) {
  return {.known = true,
          .running = true,
          .sequence = sequence,
          .op_descriptor = kAllReduce,
          .waiting_for = std::move(waiting_for)};
}
Activity IdleAfter(uint64_t sequence) {
  Activity activity = In(sequence);
  activity.running = false;
  return activity;
}

// Rank 0 of four, whose clock the test moves.
class PeerWatchTest : public ::testing::Test {
 protected:
  PeerWatchTest() : watch_(0, {"a:1", "b:2", "c:3", "d:4"}) {
    watch_.Start(now_);
  }

  void Pass(absl::Duration duration) {
    now_ += absl::ToChronoNanoseconds(duration);
  }
  // Time passes, with a Tick every 50 ms and a heartbeat of every rank but
  // `silent` in each.
  void Run(absl::Duration duration, std::vector<int> silent = {}) {
    for (; duration > absl::ZeroDuration();
         duration -= absl::Milliseconds(50)) {
      Pass(absl::Milliseconds(50));
      watch_.Tick(now_);
      for (int peer = 1; peer < 4; ++peer) {
        if (std::find(silent.begin(), silent.end(), peer) == silent.end()) {
          watch_.OnHeartbeat(peer, activities_[peer], now_);
        }
      }
    }
  }
  void Probe(int peer, Result result) {
    watch_.OnProbeBegin(peer, now_);
    watch_.OnProbe(peer, result);
  }
  std::string Explain(std::vector<int> missing) {
    const PeerWatch::Verdict verdict = watch_.Explain(missing, own_, now_);
    suspect_ = verdict.suspect;
    return verdict.text;
  }

  PeerWatch::Time now_{std::chrono::hours(5)};
  PeerWatch watch_;
  Activity own_ = In(17);
  std::vector<Activity> activities_ = {{}, In(17), In(17), In(17)};
  int suspect_ = -1;
};

TEST_F(PeerWatchTest, AStoppedPeerIsSilentButItsHostAnswers) {
  Run(absl::Milliseconds(1200), {2});
  Probe(2, Result::kConnected);
  EXPECT_EQ(Explain({2}),
            "rank 2 (c:3), which is stopped or starved: silent "
            "for 1.2s, though its host accepts connections");
  EXPECT_EQ(suspect_, 2);
}

TEST_F(PeerWatchTest, ADeadPeersHostRefuses) {
  Run(absl::Milliseconds(300), {2});
  Probe(2, Result::kRefused);
  EXPECT_EQ(Explain({2}),
            "rank 2 (c:3), which has ended: silent for 300ms, "
            "and nobody listens at its address");
}

TEST_F(PeerWatchTest, AnUnreachablePeersHostDoesNotAnswer) {
  Run(absl::Milliseconds(500), {2});
  Probe(2, Result::kNoAnswer);
  EXPECT_EQ(Explain({2}),
            "rank 2 (c:3), which is unreachable: silent for "
            "500ms, and its host does not answer");
}

TEST_F(PeerWatchTest, ASilentPeerThatNobodyProbedIsOnlySilent) {
  Run(absl::Milliseconds(300), {2});
  EXPECT_EQ(Explain({2}), "rank 2 (c:3), which has been silent for 300ms");
  watch_.OnProbeBegin(2, now_);
  Pass(absl::Milliseconds(90));
  EXPECT_THAT(Explain({2}), HasSubstr("silent for 390ms, and its host has not "
                                      "answered for 90ms"));
}

TEST_F(PeerWatchTest, SilenceBeginsOnlyAfterSomeHeartbeats) {
  Run(absl::Milliseconds(200), {2});
  EXPECT_FALSE(watch_.WantsProbe(2, now_));
  EXPECT_THAT(Explain({2}), HasSubstr("alive"));
  Run(absl::Milliseconds(50), {2});
  EXPECT_TRUE(watch_.WantsProbe(2, now_));
  EXPECT_FALSE(watch_.WantsProbe(1, now_));
}

TEST_F(PeerWatchTest, AnIdlePeerHasNotEntered) {
  activities_[2] = IdleAfter(16);
  Run(absl::Milliseconds(100));
  EXPECT_EQ(Explain({2}),
            "rank 2 (c:3), which is alive, but idle: it has not "
            "entered this operation, its last was all_reduce (one_shot, f32) "
            "#16");
  activities_[2] = {.known = true};
  Run(absl::Milliseconds(100));
  EXPECT_THAT(Explain({2}), HasSubstr("idle: it has not entered any"));
}

TEST_F(PeerWatchTest, APeerBehindOrAheadIsTold) {
  activities_[2] = In(14);
  Run(absl::Milliseconds(100));
  EXPECT_EQ(Explain({2}),
            "rank 2 (c:3), which is alive, in all_reduce "
            "(one_shot, f32) #14, 3 operations behind");
  activities_[2] = In(18);
  Run(absl::Milliseconds(100));
  EXPECT_THAT(Explain({2}), HasSubstr("#18, 1 operation ahead"));
}

TEST_F(PeerWatchTest, APeerInAnotherOperationOfTheSameNumberIsTold) {
  activities_[2].op_descriptor = kAllGather;
  Run(absl::Milliseconds(100));
  EXPECT_THAT(
      Explain({2}),
      HasSubstr("in another operation, all_gather (one_shot, f32) #17"));
}

TEST_F(PeerWatchTest, APeerInAnotherGroupIsTold) {
  activities_[2].group = 4;
  Run(absl::Milliseconds(100));
  EXPECT_THAT(Explain({2}), HasSubstr("#17 of group 4"));
  activities_[2].running = false;
  Run(absl::Milliseconds(100));
  EXPECT_THAT(Explain({2}), HasSubstr("idle since all_reduce"));
}

TEST_F(PeerWatchTest, ASlowPeerIsInTheOperation) {
  Run(absl::Milliseconds(100));
  EXPECT_EQ(Explain({2}),
            "rank 2 (c:3), which is alive and in the same operation, "
            "but slow");
  activities_[2].running = false;
  Run(absl::Milliseconds(100));
  EXPECT_THAT(Explain({2}), HasSubstr("its frames do not arrive"));
}

TEST_F(PeerWatchTest, APeerWithoutAnAccountIsOnlyAlive) {
  activities_[2] = {};
  Run(absl::Milliseconds(100));
  EXPECT_EQ(Explain({2}), "rank 2 (c:3), which is alive");
}

// Without heartbeats in between, a frame tells as much.
TEST_F(PeerWatchTest, FramesAreSignsOfLifeAndOfPlace) {
  activities_[2] = IdleAfter(16);
  Run(absl::Milliseconds(100));
  Run(absl::Milliseconds(900), {2});
  FrameHeader header;
  header.sequence = 17;
  header.op_descriptor = kAllReduce;
  watch_.OnFrame(2, header);
  EXPECT_EQ(watch_.SilentFor(2, now_), absl::ZeroDuration());
  EXPECT_THAT(Explain({2}), HasSubstr("in the same operation"));
  Run(absl::Milliseconds(100), {2});
  EXPECT_EQ(watch_.SilentFor(2, now_), absl::Milliseconds(50));
}

// A frame may be overtaken by the heartbeat of what came after it.
TEST_F(PeerWatchTest, ALateFrameDoesNotUndoAHeartbeat) {
  activities_[2] = IdleAfter(17);
  Run(absl::Milliseconds(100));
  FrameHeader header;
  header.sequence = 17;
  header.op_descriptor = kAllReduce;
  watch_.OnFrame(2, header);
  EXPECT_THAT(Explain({2}), HasSubstr("has finished the operation"));
}

TEST_F(PeerWatchTest, ARingNamesTheRankThatHoldsItUp) {
  // 0 waits for 3, 3 for 2, 2 for 1, and 1 is stopped.
  activities_[3].waiting_for = {2};
  activities_[2].waiting_for = {1};
  Run(absl::Milliseconds(100));
  Run(absl::Seconds(2), {1});
  Probe(1, Result::kConnected);
  EXPECT_THAT(
      Explain({3}),
      StartsWith("rank 3 (d:4), which waits for rank 2 (c:3), "
                 "which waits for rank 1 (b:2), which is stopped or starved"));
  EXPECT_EQ(suspect_, 1);
}

TEST_F(PeerWatchTest, TheWorstOfSeveralReasonsIsNamed) {
  activities_[1].waiting_for = {2, 3};
  activities_[3] = IdleAfter(16);
  Run(absl::Milliseconds(300), {2});
  Probe(2, Result::kRefused);
  const std::string text = Explain({3, 1});
  EXPECT_EQ(suspect_, 2);
  EXPECT_EQ(text,
            "rank 1 (b:2), which waits for rank 2 (c:3), which "
            "has ended: silent for 300ms, and nobody listens at its address; "
            "nor from rank 3");
}

TEST_F(PeerWatchTest, ARankThatWaitsForAnIdleOneIsNotToBlame) {
  activities_[1].waiting_for = {3};
  activities_[3] = IdleAfter(16);
  Run(absl::Milliseconds(100));
  EXPECT_THAT(Explain({1}), AllOf(HasSubstr("waits for rank 3 (d:4)"),
                                  HasSubstr("has not entered")));
  EXPECT_EQ(suspect_, 3);
}

// Some ranks skipped an operation: whoever waits in it waits for those, and
// those for them.
TEST_F(PeerWatchTest,
       RanksThatWaitForEachOtherInDifferentOperationsAreBothNamed) {
  activities_[3] = In(8, {2, 0});
  activities_[3].group = 3;
  activities_[2] = In(17, {3});
  Run(absl::Milliseconds(100));
  EXPECT_EQ(
      Explain({3}),
      "rank 3 (d:4), which is alive, in all_reduce (one_shot, f32) #8 of "
      "group 3, and waits for rank 2 (c:3), which is alive, in all_reduce "
      "(one_shot, f32) #17");
  activities_[3].waiting_for = {0};
  Run(absl::Milliseconds(100));
  EXPECT_EQ(Explain({3}),
            "rank 3 (d:4), which is alive, in all_reduce (one_shot, f32) #8 of "
            "group 3, and waits for this rank");
}

// The others are in its operation still, or in the next one already.
TEST_F(PeerWatchTest, ASlowRankIsNamedByRanksThatAreAhead) {
  activities_[1] = In(16, {2});
  activities_[2] = In(16);
  Run(absl::Milliseconds(100));
  EXPECT_EQ(
      Explain({1}),
      "rank 1 (b:2), which is alive, in all_reduce (one_shot, f32) #16, 1 "
      "operation behind, and waits for rank 2 (c:3), which is alive and "
      "in the same operation, but slow");
  EXPECT_EQ(suspect_, 2);
}

// Two ranks lost each other, and this one hears both.
TEST_F(PeerWatchTest, APeerThatIsCutOffFromAnotherOneIsTold) {
  activities_[1].waiting_for = {2};
  activities_[1].unheard = {2};
  activities_[2].waiting_for = {1};
  Run(absl::Milliseconds(100));
  EXPECT_EQ(Explain({1}),
            "rank 1 (b:2), which waits for rank 2 (c:3), which is unreachable "
            "from there, though not from here");
  EXPECT_TRUE(watch_.Unheard(now_).empty());
  Run(absl::Milliseconds(300), {1, 3});
  EXPECT_EQ(watch_.Unheard(now_), (std::vector<int>{1, 3}));
}

TEST_F(PeerWatchTest, ACircleOfWaitsEnds) {
  activities_[1].waiting_for = {2};
  activities_[2].waiting_for = {3};
  activities_[3].waiting_for = {1, 0};
  Run(absl::Milliseconds(100));
  EXPECT_THAT(Explain({1}), HasSubstr("waits for rank 2"));
  activities_[1].waiting_for = {0};
  Run(absl::Milliseconds(100));
  EXPECT_EQ(Explain({1}),
            "rank 1 (b:2), which is alive and in the same operation, "
            "and waits for this rank");
}

TEST_F(PeerWatchTest, APeerIsProbedAgainAfterAWhile) {
  Run(absl::Milliseconds(300), {2});
  ASSERT_TRUE(watch_.WantsProbe(2, now_));
  Probe(2, Result::kConnected);
  EXPECT_FALSE(watch_.WantsProbe(2, now_));
  Run(PeerWatch::kProbePeriod, {2});
  EXPECT_TRUE(watch_.WantsProbe(2, now_));
}

TEST_F(PeerWatchTest, APeerThatIsHeardAgainLosesItsVerdict) {
  Run(absl::Milliseconds(500), {2});
  Probe(2, Result::kRefused);
  Run(absl::Milliseconds(50));
  EXPECT_THAT(Explain({2}), HasSubstr("alive"));
  Run(absl::Milliseconds(300), {2});
  EXPECT_THAT(Explain({2}), Not(HasSubstr("ended")));
}

TEST_F(PeerWatchTest, ARefusedPeerIsLostAfterASecond) {
  Run(absl::Milliseconds(950), {2});
  Probe(2, Result::kRefused);
  EXPECT_FALSE(watch_.FindLost(now_).has_value());
  Run(absl::Milliseconds(50), {2});
  const auto lost = watch_.FindLost(now_);
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->suspect, 2);
  EXPECT_EQ(lost->text,
            "lost rank 2 (c:3), which has ended: silent for 1s, and nobody "
            "listens at its address");
}

TEST_F(PeerWatchTest, AnUnreachablePeerIsLostAfterSeveralProbes) {
  Run(absl::Milliseconds(1100), {2});
  for (int i = 1; i <= PeerWatch::kUnanswered; ++i) {
    EXPECT_FALSE(watch_.FindLost(now_).has_value());
    Probe(2, Result::kNoAnswer);
  }
  EXPECT_TRUE(watch_.FindLost(now_).has_value());
  // One answer, and the count begins again.
  Probe(2, Result::kConnected);
  Probe(2, Result::kNoAnswer);
  EXPECT_FALSE(watch_.FindLost(now_).has_value());
}

// Its peers blame this rank, so it had better not blame one of them.
TEST_F(PeerWatchTest, ARankThatReachesNobodySuspectsItself) {
  Run(absl::Milliseconds(1100), {1, 2, 3});
  for (const int peer : {2, 3}) {
    for (int i = 0; i < PeerWatch::kUnanswered; ++i) {
      Probe(peer, Result::kNoAnswer);
    }
  }
  const auto lost = watch_.FindLost(now_);
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->suspect, 0);
  EXPECT_EQ(lost->text,
            "this rank reaches none of its 3 peers and suspects itself; the "
            "first is rank 2 (c:3), which is unreachable: silent for 1.1s, and "
            "its host does not answer");
  EXPECT_THAT(Explain({2}), HasSubstr("suspects itself"));
  EXPECT_EQ(suspect_, 0);
  // It reaches the host of one.
  for (const Result result : {Result::kConnected, Result::kRefused}) {
    Probe(1, result);
    EXPECT_EQ(watch_.FindLost(now_)->suspect,
              result == Result::kRefused ? 1 : 2);
    EXPECT_THAT(Explain({2}), Not(HasSubstr("suspects itself")));
  }
}

// Of a rank that is cut off the probes do not all end at once.
TEST_F(PeerWatchTest, TheFirstOfSeveralUnreachablePeersIsNotBlamedAtOnce) {
  watch_.Forget(3);
  Run(absl::Milliseconds(1000), {1, 2});
  for (int i = 0; i < PeerWatch::kUnanswered; ++i) Probe(1, Result::kNoAnswer);
  EXPECT_TRUE(watch_.FindLost(now_).has_value());  // Nothing known of 2.
  Probe(2, Result::kNoAnswer);
  EXPECT_FALSE(watch_.FindLost(now_).has_value());
  Run(PeerWatch::kProbePeriod, {1, 2});
  EXPECT_EQ(watch_.FindLost(now_)->suspect, 1);
  for (int i = 1; i < PeerWatch::kUnanswered; ++i) Probe(2, Result::kNoAnswer);
  EXPECT_EQ(watch_.FindLost(now_)->suspect, 0);
}

TEST_F(PeerWatchTest, AStoppedPeerIsNeverLost) {
  Run(absl::Minutes(1), {2});
  Probe(2, Result::kConnected);
  EXPECT_FALSE(watch_.FindLost(now_).has_value());
}

// Its kernel keeps every connection that a probe made, in a short queue.
TEST_F(PeerWatchTest, AStoppedPeerIsProbedRarely) {
  int probes = 0;
  for (int i = 0; i < 60 * 20; ++i) {
    Run(absl::Milliseconds(50), {2});
    if (!watch_.WantsProbe(2, now_)) continue;
    Probe(2, Result::kConnected);
    ++probes;
  }
  EXPECT_GE(probes, 5);
  EXPECT_LE(probes, 10);
  // Heard again and silent again, it is asked as often as any other.
  Run(absl::Milliseconds(50));
  Run(absl::Milliseconds(250), {2});
  EXPECT_TRUE(watch_.WantsProbe(2, now_));
  Probe(2, Result::kNoAnswer);
  Run(PeerWatch::kProbePeriod, {2});
  EXPECT_TRUE(watch_.WantsProbe(2, now_));
}

TEST_F(PeerWatchTest, AStoppedPeerIsNotLostWhenItsQueueIsFull) {
  Run(absl::Minutes(1), {2});
  for (int i = 0; 3 * i < PeerWatch::kQueuedProbes; ++i) {
    Probe(2, Result::kConnected);
  }
  for (int i = 0; i < PeerWatch::kUnanswered; ++i) Probe(2, Result::kNoAnswer);
  EXPECT_FALSE(watch_.FindLost(now_).has_value());
  EXPECT_THAT(Explain({2}), HasSubstr("is stopped or unreachable"));
}

// The process was stopped itself: what its peers sent meanwhile is unread.
TEST_F(PeerWatchTest, NobodyElseIsBlamedForAPauseOfThisProcess) {
  Run(absl::Milliseconds(100));
  Pass(absl::Seconds(7));
  watch_.Tick(now_);
  EXPECT_FALSE(watch_.FindLost(now_).has_value());
  EXPECT_FALSE(watch_.WantsProbe(2, now_));
  EXPECT_THAT(Explain({2}), AllOf(HasSubstr("which is alive"),
                                  HasSubstr("this rank itself did not run for "
                                            "7s")));
  Run(absl::Milliseconds(1500), {2});
  EXPECT_THAT(Explain({2}), Not(HasSubstr("this rank itself")));
  EXPECT_GE(watch_.SilentFor(2, now_), absl::Milliseconds(1500));
}

TEST_F(PeerWatchTest, SaysWhatIsKnownOfAClosedPeer) {
  EXPECT_EQ(watch_.ExplainClosed(2), "");
  Probe(2, Result::kRefused);
  EXPECT_THAT(watch_.ExplainClosed(2), HasSubstr("has ended"));
  Probe(2, Result::kConnected);
  EXPECT_THAT(watch_.ExplainClosed(2), HasSubstr("accepts connections"));
  Probe(2, Result::kNoAnswer);
  EXPECT_THAT(watch_.ExplainClosed(2), HasSubstr("does not answer"));
}

}  // namespace
}  // namespace ringfleet::cluster
