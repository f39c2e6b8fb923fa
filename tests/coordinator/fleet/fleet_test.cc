// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/process/build_info.h"
#include "cluster/process/status.h"
#include "coordinator/jobs/job.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;
using ringfleet::testing::FakeWorker;
using ringfleet::testing::Gate;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

constexpr absl::Duration kFleetLimit = absl::Seconds(30);

struct Outcome {
  std::vector<uint32_t> tokens;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  absl::Status status = absl::DeadlineExceededError("no end within the limit");
};

class FleetTest : public ::testing::Test {
 protected:
  void Start(int world_size) {
    options_.name = "test";
    options_.settings.set_model("/models/none");
    options_.mesh.tensor = world_size / options_.mesh.data;
    if (options_.lease == absl::Seconds(10)) options_.lease = absl::Hours(1);
    behaviours_.resize(world_size);
    fleet_ = std::make_unique<Fleet>(options_, cluster::GetBuildInfo());
    workers_.resize(world_size);
    for (int rank = 0; rank < world_size; ++rank) StartWorker(rank);
  }

  void StartWorker(int rank) {
    workers_[rank] = std::make_unique<FakeWorker>(rank, behaviours_[rank]);
    const auto registered = fleet_->Register(workers_[rank]->Registration());
    ASSERT_TRUE(registered.ok()) << registered.status();
    EXPECT_EQ(registered->rank(), static_cast<uint32_t>(rank));
  }

  absl::Status WaitReady() {
    return fleet_->WaitReady(Deadline::After(kFleetLimit));
  }

  // Waits until the state is `want`; returns it.
  v1::ClusterState WaitState(v1::FleetState want) {
    const Deadline deadline = Deadline::After(kFleetLimit);
    uint64_t version = 0;
    while (fleet_->WaitForChange(&version, deadline)) {
      const v1::ClusterState state = fleet_->State();
      if (state.state() == want) return state;
    }
    ADD_FAILURE() << "no state " << v1::FleetState_Name(want);
    return fleet_->State();
  }

  // Waits until the fleet serves with so many data groups; returns the state.
  v1::ClusterState WaitGroups(uint32_t groups) {
    const Deadline deadline = Deadline::After(kFleetLimit);
    uint64_t version = 0;
    while (fleet_->WaitForChange(&version, deadline)) {
      const v1::ClusterState state = fleet_->State();
      if (state.state() == v1::FLEET_STATE_READY &&
          state.mesh().data() == groups) {
        return state;
      }
    }
    ADD_FAILURE() << "not ready with " << groups << " groups";
    return fleet_->State();
  }

  // A worker that reports only the slots of its group, of one slot each, and
  // calls `also` in each step.
  static FakeWorker::Behaviour OneOfTwoGroups(
      uint32_t rank, std::function<void(const v1::StepPlan&)> also) {
    return {.on_step = [rank, also = std::move(also)](const v1::StepPlan& plan,
                                                      v1::StepResult* result) {
      for (int i = result->slots_size() - 1; i >= 0; --i) {
        if (result->slots(i).slot() != rank) {
          result->mutable_slots()->DeleteSubrange(i, 1);
        }
      }
      also(plan);
      return absl::OkStatus();
    }};
  }

  std::shared_ptr<Job> Submit(const std::string& id, uint32_t first,
                              uint32_t prompt_n, uint32_t max_tokens) {
    Request request;
    request.id = id;
    request.prompt_ids.assign(prompt_n, first);
    request.max_tokens = max_tokens;
    const std::shared_ptr<Job> job =
        Job::Make(std::move(request), /*kept=*/false);
    const absl::Status status = fleet_->Submit(Job::RequestOf(job));
    EXPECT_TRUE(status.ok()) << status;
    return job;
  }

  // Waits until `holds` says so of the job's progress; returns whether it did.
  static bool AwaitJob(const Job& job,
                       const std::function<bool(const JobProgress&)>& holds) {
    const Deadline deadline = Deadline::After(kFleetLimit);
    while (!holds(job.progress())) {
      if (deadline.Expired()) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  static Outcome Await(const Job& job) {
    Outcome outcome;
    const bool ended = AwaitJob(
        job, [](const JobProgress& progress) { return progress.has_ended(); });
    for (const DrawnToken& token : job.TokensFrom(0)) {
      outcome.tokens.push_back(token.id);
    }
    const JobProgress progress = job.progress();
    outcome.reason = progress.reason;
    if (ended) outcome.status = progress.error;
    return outcome;
  }

  void ExpectGenerates() {
    const Outcome outcome = Await(*Submit("again", 10, 5, 3));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_THAT(outcome.tokens, ElementsAre(11, 12, 13));
  }

  FleetOptions options_;
  std::vector<FakeWorker::Behaviour> behaviours_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<Fleet> fleet_;  // Ends before its workers.
};

TEST_F(FleetTest, FormsAndGenerates) {
  options_.settings.set_parallel(2);
  behaviours_.resize(3);
  behaviours_[1].context = 48;
  Start(3);
  ASSERT_TRUE(WaitReady().ok());
  const v1::ClusterState state = fleet_->State();
  EXPECT_EQ(state.context(), 48u);  // The least that any rank offers.
  EXPECT_GT(state.epoch(), 0u);
  EXPECT_EQ(state.load_bytes_done(), 300u);
  EXPECT_EQ(state.load_bytes_total(), 300u);
  ASSERT_EQ(state.workers_size(), 3);
  for (const v1::WorkerState& worker : state.workers()) {
    EXPECT_EQ(worker.state(), v1::MEMBER_STATE_READY);
    EXPECT_EQ(worker.resident_bytes(), 200u);
    EXPECT_EQ(worker.cache_bytes(), 300u);
  }
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 10; ++i) {
    jobs.push_back(Submit(absl::StrCat("j", i), 100 * i, 1 + 4 * i, 7));
  }
  for (int i = 0; i < 10; ++i) {
    const Outcome outcome = Await(*jobs[i]);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    std::vector<uint32_t> want(7);
    std::iota(want.begin(), want.end(), 100 * i + 1);
    EXPECT_EQ(outcome.tokens, want);
    EXPECT_EQ(outcome.reason, v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(fleet_->State().requests_running(), 0u);
}

TEST_F(FleetTest, AResetOfExpertCountsReachesEveryWorker) {
  behaviours_.resize(3);
  behaviours_[2].reset_error = absl::InternalError("no");
  Start(3);
  ASSERT_TRUE(WaitReady().ok());
  const auto statistics = [this](bool reset) {
    return fleet_->Statistics(reset, Deadline::After(kFleetLimit));
  };
  EXPECT_THAT(statistics(false)->layers(0).tokens(), ElementsAre(7));
  EXPECT_EQ(workers_[1]->expert_tokens(), 8u);

  const auto failed = statistics(true);
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("worker 2"));
  workers_[2]->SetBehaviour({});
  const auto last = statistics(true);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_THAT(last->layers(0).tokens(), ElementsAre(7));  // Not lost.
  for (const auto& worker : workers_) EXPECT_EQ(worker->expert_tokens(), 0u);
}

TEST_F(FleetTest, TellsWorkersWhatTheyMustAgreeIn) {
  options_.memory_gib = {0, 2};
  options_.collectives =
      cluster::AlgorithmTable::Only(cluster::Algorithm::kTwoShot);
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  const auto first = workers_[0]->loads();
  const auto second = workers_[1]->loads();
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].layout().rank(), 0u);
  EXPECT_EQ(second[0].layout().rank(), 1u);
  EXPECT_EQ(second[0].layout().mesh().tensor(), 2u);
  // Half of 90 % of the host's 1000 bytes; what is configured.
  EXPECT_EQ(first[0].memory_limit_bytes(), 450u);
  EXPECT_EQ(second[0].memory_limit_bytes(), 2ull << 30);
  const auto connect = workers_[1]->connects();
  ASSERT_THAT(connect, SizeIs(1));
  EXPECT_THAT(connect[0].addresses(),
              ElementsAre(workers_[0]->address(), workers_[1]->address()));
  EXPECT_EQ(connect[0].ranks_on_host(), 2u);
  EXPECT_EQ(connect[0].context(), 64u);
  EXPECT_EQ(connect[0].config_hash(), ConfigHash(options_, "f00d", 64, 1024));
  EXPECT_NE(connect[0].config_hash(), ConfigHash(options_, "beef", 64, 1024));
  EXPECT_EQ(connect[0].algorithm_table(), options_.collectives.ToJson());
  FleetOptions rings = options_;
  rings.collectives = cluster::AlgorithmTable::Only(cluster::Algorithm::kRing);
  EXPECT_NE(connect[0].config_hash(), ConfigHash(rings, "f00d", 64, 1024));
  EXPECT_EQ(connect[0].tile_table(), options_.tiles.ToJson());
  FleetOptions tuned = options_;
  tuned.tiles.Set({.key = {.cpu = "x"}, .segment_bytes = 1});
  EXPECT_NE(connect[0].config_hash(), ConfigHash(tuned, "f00d", 64, 1024));
}

TEST_F(FleetTest, CountsMachinesAndNotTheirNames) {
  for (const bool one : {true, false}) {
    behaviours_.assign(2, {.host = "node", .cpus = 5});
    behaviours_[0].machine = "boot 1";
    behaviours_[1].machine = one ? "boot 1" : "boot 2";
    if (one) behaviours_[1].host = "node.example.com";
    Start(2);
    ASSERT_TRUE(WaitReady().ok());
    const auto loads = workers_[1]->loads();
    ASSERT_THAT(loads, SizeIs(1));
    EXPECT_EQ(loads[0].memory_limit_bytes(), one ? 450u : 900u);
    EXPECT_EQ(loads[0].threads(), one ? 2u : 5u);
    EXPECT_EQ(workers_[1]->connects()[0].ranks_on_host(), one ? 2u : 1u);
    EXPECT_EQ(fleet_->CountHosts(), one ? 1 : 2);
    fleet_->Shutdown();
  }
}

// The clock of a predecessor was an hour ahead. Workers would refuse an epoch
// that is not later than all they have seen.
TEST_F(FleetTest, AnEpochIsLaterThanAllThatItsWorkersHaveSeen) {
  const auto seen =
      static_cast<uint64_t>(absl::ToUnixMicros(absl::Now() + absl::Hours(1)));
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  const uint64_t first = fleet_->State().epoch();
  ASSERT_LT(first, seen);
  v1::RegisterRequest again = workers_[1]->Registration();
  again.set_last_epoch(seen);
  ASSERT_TRUE(fleet_->Register(again).ok());
  uint64_t version = 0;
  while (fleet_->State().epoch() == first) {
    ASSERT_TRUE(fleet_->WaitForChange(&version, Deadline::After(kFleetLimit)));
  }
  ASSERT_TRUE(WaitReady().ok());
  EXPECT_GT(fleet_->State().epoch(), seen);
  for (const auto& worker : workers_) {
    EXPECT_GT(worker->connects().back().epoch(), seen);
  }
}

TEST_F(FleetTest, AnotherCheckpointFailsUntilAWorkerRegisters) {
  behaviours_.resize(2);
  behaviours_[0].hang_in_load = true;  // Ends only because it is cancelled.
  behaviours_[1].fingerprint = "beef";
  Start(2);
  const absl::Status status = WaitReady();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("worker 1 reads another checkpoint: fingerprint beef, "
                        "worker 0 has f00d"));
  EXPECT_EQ(fleet_->State().state(), v1::FLEET_STATE_FAILED);
  EXPECT_EQ(fleet_->State().error_code(),
            static_cast<uint32_t>(absl::StatusCode::kDataLoss));
  workers_[0]->SetBehaviour({});
  behaviours_[1].fingerprint = "f00d";
  workers_[1]->SetBehaviour(behaviours_[1]);
  ASSERT_TRUE(fleet_->Register(workers_[1]->Registration()).ok());
  ASSERT_TRUE(WaitReady().ok());
  ExpectGenerates();
}

// All workers agree on what they read, but the fleet has begun with something
// else.
TEST_F(FleetTest, ACheckpointThatChangesUnderTheFleetIsNotServed) {
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  for (const auto& worker : workers_) {
    worker->SetBehaviour({.fingerprint = "beef"});
  }
  ASSERT_TRUE(fleet_->Register(workers_[1]->Registration()).ok());
  uint64_t version = 0;
  while (fleet_->State().state() != v1::FLEET_STATE_FAILED ||
         fleet_->State().error_code() !=
             static_cast<uint32_t>(absl::StatusCode::kDataLoss)) {
    ASSERT_TRUE(fleet_->WaitForChange(&version, testing::Soon()));
  }
  EXPECT_THAT(fleet_->State().error(),
              MatchesRegex("worker [01]: the checkpoint has changed since the "
                           "fleet began: fingerprint beef, want f00d .*; to "
                           "serve what is there now, restart the fleet"));
  // As it was before.
  for (const auto& worker : workers_) worker->SetBehaviour({});
  ASSERT_TRUE(fleet_->Register(workers_[1]->Registration()).ok());
  ASSERT_TRUE(WaitReady().ok());
  ExpectGenerates();
}

TEST_F(FleetTest, AnIncurableLoadErrorNamesTheWorkerAndStays) {
  behaviours_.resize(2);
  behaviours_[1].load_error =
      absl::ResourceExhaustedError("shard of 9 GiB, want at most 4");
  Start(2);
  const absl::Status status = WaitReady();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      MatchesRegex("worker 1 \\(127.0.0.1:[0-9]+, pid 1001\\) failed while "
                   "loading: shard of 9 GiB, want at most 4"));
  EXPECT_EQ(fleet_->State().state(), v1::FLEET_STATE_FAILED);
}

// A coordinator that was stopped while another took its workers.
TEST_F(FleetTest, AReplacedCoordinatorEndsItsJobsAndSaysSo) {
  behaviours_.resize(2);
  std::atomic<bool> replaced{false};
  behaviours_[1].on_step = [&](const v1::StepPlan&, v1::StepResult* result) {
    if (!replaced) return absl::OkStatus();
    result->mutable_error()->set_superseded(true);
    return absl::FailedPreconditionError("registered with another");
  };
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  ExpectGenerates();
  replaced = true;
  const Outcome outcome = Await(*Submit("j", 100, 3, 5));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  const char kWhy[] =
      "worker 1 \\(127.0.0.1:[0-9]+, pid 1001\\) serves another coordinator "
      "during step [0-9]+: registered with another";
  EXPECT_THAT(std::string(outcome.status.message()), MatchesRegex(kWhy));
  const v1::ClusterState state = fleet_->State();
  EXPECT_EQ(state.state(), v1::FLEET_STATE_FAILED);
  EXPECT_THAT(state.error(), MatchesRegex(kWhy));
  EXPECT_EQ(state.workers(1).state(), v1::MEMBER_STATE_LOST);
  // The worker has come back.
  replaced = false;
  ASSERT_TRUE(fleet_->Register(workers_[1]->Registration()).ok());
  ASSERT_TRUE(WaitReady().ok());
  ExpectGenerates();
}

TEST_F(FleetTest, ARefusedLoadOfAReplacedCoordinatorIsFinal) {
  behaviours_.resize(2);
  behaviours_[0].load_error = cluster::SupersededError("registered elsewhere");
  Start(2);
  EXPECT_THAT(std::string(WaitReady().message()),
              HasSubstr("serves another coordinator while loading: registered "
                        "elsewhere"));
}

TEST_F(FleetTest, CallsCarryTheIdThatWorkersGetAsTheyRegister) {
  Start(1);
  ASSERT_TRUE(WaitReady().ok());
  ExpectGenerates();
  const auto registered = fleet_->Register(workers_[0]->Registration());
  ASSERT_TRUE(registered.ok()) << registered.status();
  EXPECT_THAT(registered->coordinator_id(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_THAT(workers_[0]->callers(),
              ElementsAre(registered->coordinator_id()));
  EXPECT_NE(FleetOptions().coordinator_id, registered->coordinator_id());
}

TEST_F(FleetTest, AFailedConnectionIsTriedAgain) {
  behaviours_.resize(2);
  behaviours_[1].connect_error =
      absl::DeadlineExceededError("rank 0 is silent");
  Start(2);
  EXPECT_THAT(WaitState(v1::FLEET_STATE_FAILED).error(),
              HasSubstr("failed while connecting: rank 0 is silent"));
  workers_[1]->SetBehaviour({});
  ASSERT_TRUE(WaitReady().ok());
  ExpectGenerates();
}

TEST_F(FleetTest, ALostWorkersJobGoesOnWithItsReplacement) {
  behaviours_.resize(2);
  std::atomic<FakeWorker*> victim{nullptr};
  behaviours_[1].on_step = [&victim](const v1::StepPlan& plan,
                                     v1::StepResult*) {
    if (plan.step() == 5) victim.load()->DieFromInside();
    return absl::OkStatus();
  };
  // The peer tells at once, and about the loss only.
  options_.cause_grace = absl::Seconds(10);
  behaviours_[0].on_step = [](const v1::StepPlan& plan, v1::StepResult*) {
    return plan.step() == 5 ? absl::AbortedError("rank 1 gave up")
                            : absl::OkStatus();
  };
  Start(2);
  victim = workers_[1].get();
  ASSERT_TRUE(WaitReady().ok());
  const uint64_t epoch = fleet_->State().epoch();
  const auto running = Submit("running", 10, 5, 40);
  ASSERT_TRUE(AwaitJob(*running, [](const JobProgress& progress) {
    return progress.waits_for.find("it waits for worker 1 of 2") !=
           std::string::npos;
  })) << running->progress().waits_for;
  EXPECT_THAT(running->progress().waits_for,
              MatchesRegex(".*\\(worker 1 \\(127.0.0.1:[0-9]+, pid 1001\\) was "
                           "lost during step [45]: .*"));
  EXPECT_EQ(running->progress().state, v1::JOB_STATE_WAITING);
  // The result of step 4 may have been cut off on its way.
  EXPECT_THAT(running->progress().tokens, AnyOf(3, 4));
  const auto waiting = Submit("waiting", 20, 5, 3);
  const v1::ClusterState failed = WaitState(v1::FLEET_STATE_FAILED);
  EXPECT_EQ(failed.workers(0).state(), v1::MEMBER_STATE_REGISTERED);
  EXPECT_EQ(failed.workers(1).state(), v1::MEMBER_STATE_LOST);
  EXPECT_THAT(
      std::string(
          fleet_->WaitReady(Deadline::After(absl::ZeroDuration())).message()),
      HasSubstr("it waits for worker 1 of 2"));

  workers_[0]->SetBehaviour({});
  behaviours_[1] = {};
  StartWorker(1);
  ASSERT_TRUE(WaitReady().ok());
  EXPECT_GT(fleet_->State().epoch(), epoch);
  const Outcome outcome = Await(*running);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  std::vector<uint32_t> want(40);
  std::iota(want.begin(), want.end(), 11);
  EXPECT_EQ(outcome.tokens, want);
  EXPECT_THAT(Await(*waiting).tokens, ElementsAre(21, 22, 23));
}

TEST_F(FleetTest, AHostThatStaysAwayEndsItsJobsAndNamesTheRank) {
  behaviours_.resize(2);
  options_.recovery_wait = absl::Seconds(1);
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  workers_[1]->Die();
  const Outcome outcome = Await(*Submit("a", 10, 5, 40));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("it waits for worker 1 of 2"));
}

TEST_F(FleetTest, AJobWaitsForTheFleetsFirstEpoch) {
  behaviours_.resize(2);
  behaviours_[0].context = 16;
  options_.name = "test";
  options_.settings.set_model("/models/none");
  options_.mesh.tensor = 2;
  options_.lease = absl::Hours(1);
  fleet_ = std::make_unique<Fleet>(options_, cluster::GetBuildInfo());
  const auto early = Submit("early", 10, 5, 3);
  const auto long_prompt = Submit("long", 10, 17, 3);
  ASSERT_TRUE(AwaitJob(*early, [](const JobProgress& progress) {
    return progress.waits_for.find("it waits for worker 0, 1 of 2") !=
           std::string::npos;
  })) << early->progress().waits_for;
  workers_.resize(2);
  for (const int rank : {0, 1}) StartWorker(rank);
  EXPECT_THAT(Await(*early).tokens, ElementsAre(11, 12, 13));
  EXPECT_EQ(Await(*long_prompt).status,
            absl::InvalidArgumentError(
                "prompt: 17 tokens, want at most 16 (the context)"));
}

// CANCELLED would tell the callers that they had cancelled their jobs.
TEST_F(FleetTest, AWorkerThatCancelsItsRunIsUnavailable) {
  behaviours_.resize(1);
  behaviours_[0].on_step = [](const v1::StepPlan&, v1::StepResult*) {
    return absl::CancelledError("stopping");
  };
  Start(1);
  ASSERT_TRUE(WaitReady().ok());
  const Outcome outcome = Await(*Submit("running", 10, 5, 40));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("stopping"));
}

TEST_F(FleetTest, DivergingRanksEndTheEpoch) {
  behaviours_.resize(2);
  behaviours_[1].on_step = [](const v1::StepPlan& plan,
                              v1::StepResult* result) {
    if (plan.step() == 3) result->mutable_slots(0)->set_tokens(0, 666);
    return absl::OkStatus();
  };
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  const auto job = Submit("a", 10, 5, 6);
  ASSERT_TRUE(AwaitJob(*job, [](const JobProgress& progress) {
    return progress.waits_for.find(
               "step 3, slot 0: worker 1 has token 666, worker 0 has token "
               "13") != std::string::npos;
  })) << job->progress().waits_for;
  EXPECT_EQ(job->progress().tokens, 2u);  // What all had agreed on.
  workers_[1]->SetBehaviour({});          // All ranks are there: forms again.
  const Outcome outcome = Await(*job);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.tokens, ElementsAre(11, 12, 13, 14, 15, 16));
}

TEST_F(FleetTest, TheCauseIsPreferredToItsEchoes) {
  behaviours_.resize(3);
  const auto echoed = std::make_shared<Gate>();
  for (const int rank : {0, 2}) {
    behaviours_[rank].on_step = [echoed](const v1::StepPlan&, v1::StepResult*) {
      echoed->Open();
      return absl::AbortedError("rank 1 gave up");
    };
  }
  behaviours_[1].on_step = [echoed](const v1::StepPlan&, v1::StepResult*) {
    echoed->Wait();
    return absl::InternalError("layer 3: not a number");
  };
  options_.cause_grace = absl::Seconds(5);
  Start(3);
  ASSERT_TRUE(WaitReady().ok());
  const Outcome outcome = Await(*Submit("a", 10, 5, 40));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(
      std::string(outcome.status.message()),
      MatchesRegex("worker 1 \\(.*\\) failed during step 1: layer 3: not a "
                   "number"));
}

// A worker that is being stopped tells so; its peers, which report the same
// code and may be quicker, only echo it.
TEST_F(FleetTest, AStoppingWorkerIsTheCause) {
  behaviours_.resize(2);
  const auto echoed = std::make_shared<Gate>();
  behaviours_[0].on_step = [echoed](const v1::StepPlan&, v1::StepResult*) {
    echoed->Open();
    return absl::UnavailableError("layer 1: rank 1: the worker was stopped");
  };
  behaviours_[1].on_step = [echoed](const v1::StepPlan&,
                                    v1::StepResult* result) {
    echoed->Wait();
    result->mutable_error()->set_stopping(true);
    return absl::UnavailableError("the worker was stopped");
  };
  options_.cause_grace = absl::Seconds(5);
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  const Outcome outcome = Await(*Submit("a", 10, 5, 40));
  EXPECT_THAT(std::string(outcome.status.message()),
              MatchesRegex("worker 1 \\(.*\\) failed during step 1: the worker "
                           "was stopped"));
}

TEST_F(FleetTest, AnExpiredLeaseEndsAHangingStep) {
  const auto never = std::make_shared<Gate>();
  behaviours_.resize(2);
  behaviours_[1].on_step = [never](const v1::StepPlan&, v1::StepResult*) {
    never->Wait();
    return absl::OkStatus();
  };
  options_.lease = absl::Seconds(2);
  options_.recovery_wait = absl::Milliseconds(100);
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  const Outcome outcome = Await(*Submit("a", 10, 5, 40));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("was lost during step 1: no heartbeat for 2s"));
  never->Open();
}

TEST_F(FleetTest, RanksWithoutFilesAreToldWhoHasThem) {
  behaviours_.resize(3);
  behaviours_[1].missing = "/models/none: no such folder";
  Start(3);
  ASSERT_TRUE(WaitReady().ok());
  const v1::ClusterState state = fleet_->State();
  EXPECT_EQ(state.workers(0).fetches_from(), "");
  EXPECT_EQ(state.workers(1).fetches_from(), "worker 0, worker 2");
  EXPECT_EQ(workers_[0]->loads()[0].sources_size(), 0);
  const v1::LoadRequest request = workers_[1]->loads()[0];
  ASSERT_EQ(request.sources_size(), 2);
  EXPECT_EQ(request.sources(0).name(), "worker 0");
  EXPECT_EQ(request.sources(0).address(), workers_[0]->address());
  EXPECT_EQ(request.sources(1).address(), workers_[2]->address());
}

TEST_F(FleetTest, AStepThatNeverEndsIsEnded) {
  const auto never = std::make_shared<Gate>();
  behaviours_.resize(2);
  behaviours_[1].on_step = [never](const v1::StepPlan&, v1::StepResult*) {
    never->Wait();
    return absl::OkStatus();
  };
  options_.step_timeout = absl::Milliseconds(500);
  Start(2);
  ASSERT_TRUE(WaitReady().ok());
  const Outcome outcome = Await(*Submit("a", 10, 5, 40));
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(outcome.status.message()),
              MatchesRegex("worker 1 \\(.*\\) failed during step 1: no result "
                           "of step 1 for 500ms"));
  never->Open();
}

TEST_F(FleetTest, AFleetThatStartsOnceGivesUpBeforeItIsReady) {
  behaviours_.resize(1);
  behaviours_[0].connect_error = absl::InternalError("broken");
  options_.start_once = true;
  Start(1);
  const absl::Status status = WaitReady();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("broken"));
  EXPECT_EQ(fleet_->State().state(), v1::FLEET_STATE_FAILED);
  workers_[0]->SetBehaviour({});
  ASSERT_TRUE(fleet_->Register(workers_[0]->Registration()).ok());
  EXPECT_EQ(WaitReady(), status);
}

TEST_F(FleetTest, AFleetThatStartsOnceFormsAgainOnceItWasReady) {
  behaviours_.resize(1);
  behaviours_[0].on_step = [](const v1::StepPlan& plan, v1::StepResult*) {
    return plan.step() == 3 ? absl::InternalError("broken") : absl::OkStatus();
  };
  options_.start_once = true;
  Start(1);
  ASSERT_TRUE(WaitReady().ok());
  const auto job = Submit("a", 10, 5, 4);
  ASSERT_TRUE(AwaitJob(*job, [](const JobProgress& progress) {
    return progress.waits_for.find("broken") != std::string::npos;
  }));
  workers_[0]->SetBehaviour({});
  const Outcome outcome = Await(*job);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.tokens, ElementsAre(11, 12, 13, 14));
}

TEST_F(FleetTest, TheCauseOfAnEndReachesJobsAndLaterCalls) {
  Start(1);
  ASSERT_TRUE(WaitReady().ok());
  workers_[0]->Die();
  const auto job = Submit("a", 10, 5, 4);
  const absl::Status cause = absl::UnavailableError("worker 0 dies always");
  fleet_->End(cause);
  EXPECT_EQ(Await(*job).status, cause);
  EXPECT_EQ(WaitReady(), cause);
  EXPECT_EQ(fleet_->Register(workers_[0]->Registration()).status(), cause);
}

// A data group goes on alone. When the other one has a worker again, that
// worker loads beside it, the request that runs ends in its epoch, and the
// request that waits enters the next one.
TEST_F(FleetTest, ANarrowedFleetBecomesWholeAgain) {
  options_.mesh.data = 2;
  options_.settings.set_parallel(2);
  behaviours_.resize(2);
  const auto loaded = std::make_shared<Gate>();
  behaviours_[0] = OneOfTwoGroups(0, [loaded](const v1::StepPlan& plan) {
    if (plan.step() == 5) loaded->Wait();
  });
  behaviours_[1] = OneOfTwoGroups(1, [](const v1::StepPlan&) {});
  Start(2);
  WaitGroups(2);
  workers_[1]->Die();
  const v1::ClusterState narrowed = WaitGroups(1);
  EXPECT_EQ(narrowed.workers(1).state(), v1::MEMBER_STATE_LOST);

  const auto running = Submit("running", 10, 5, 8);
  const auto waiting = Submit("waiting", 20, 5, 3);
  StartWorker(1);
  const Deadline deadline = Deadline::After(kFleetLimit);
  while (workers_[1]->loads().empty() && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(fleet_->State().epoch(), narrowed.epoch());
  loaded->Open();
  const Outcome first = Await(*running);
  EXPECT_TRUE(first.status.ok()) << first.status;
  EXPECT_THAT(first.tokens, ElementsAre(11, 12, 13, 14, 15, 16, 17, 18));
  const Outcome second = Await(*waiting);
  EXPECT_TRUE(second.status.ok()) << second.status;
  EXPECT_THAT(second.tokens, ElementsAre(21, 22, 23));
  EXPECT_GT(WaitGroups(2).epoch(), narrowed.epoch());
  EXPECT_THAT(workers_[1]->loads(), SizeIs(2));
  ExpectGenerates();
}

// The request that runs does not end in its epoch. It goes on in the whole one
// from its tokens.
TEST_F(FleetTest, ANarrowedFleetBecomesWholeUnderARunningRequest) {
  options_.mesh.data = 2;
  options_.settings.set_parallel(2);
  options_.handover_hold = absl::Milliseconds(500);
  options_.handover_limit = absl::Milliseconds(500);
  behaviours_.resize(2);
  const auto ended = std::make_shared<Gate>();
  const auto narrowed = std::make_shared<std::atomic<uint64_t>>(0);
  behaviours_[0] =
      OneOfTwoGroups(0, [ended, narrowed](const v1::StepPlan& plan) {
        if (plan.epoch() == *narrowed && plan.step() >= 5) ended->Wait();
      });
  behaviours_[1] = OneOfTwoGroups(1, [](const v1::StepPlan&) {});
  Start(2);
  WaitGroups(2);
  workers_[1]->Die();
  *narrowed = WaitGroups(1).epoch();
  const auto running = Submit("running", 10, 5, 8);
  const auto waiting = Submit("waiting", 20, 5, 3);
  ASSERT_TRUE(AwaitJob(*running, [](const JobProgress& progress) {
    return progress.tokens > 0;
  }));
  StartWorker(1);
  ASSERT_TRUE(AwaitJob(*waiting, [](const JobProgress& progress) {
    return progress.waits_for.find("all workers are there again") !=
           std::string::npos;
  }));
  EXPECT_GT(WaitGroups(2).epoch(), *narrowed);
  const Outcome first = Await(*running);
  EXPECT_TRUE(first.status.ok()) << first.status;
  EXPECT_THAT(first.tokens, ElementsAre(11, 12, 13, 14, 15, 16, 17, 18));
  const Outcome second = Await(*waiting);
  EXPECT_TRUE(second.status.ok()) << second.status;
  EXPECT_THAT(second.tokens, ElementsAre(21, 22, 23));
  ended->Open();
}

TEST_F(FleetTest, CancelFreesTheSlotForTheNext) {
  options_.settings.set_parallel(1);
  behaviours_.resize(1);
  const auto cancelled = std::make_shared<Gate>();
  behaviours_[0].on_step = [cancelled](const v1::StepPlan& plan,
                                       v1::StepResult*) {
    if (plan.step() == 3) cancelled->Wait();
    return absl::OkStatus();
  };
  Start(1);
  ASSERT_TRUE(WaitReady().ok());
  const auto first = Submit("first", 10, 5, 50);
  const auto second = Submit("second", 20, 5, 2);
  ASSERT_TRUE(fleet_->Cancel("first").ok());
  EXPECT_EQ(fleet_->Cancel("first").code(), absl::StatusCode::kNotFound);
  cancelled->Open();
  EXPECT_EQ(Await(*first).status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Await(*second).tokens, ElementsAre(21, 22));
}

TEST_F(FleetTest, ShutdownFailsWhatRuns) {
  const auto never = std::make_shared<Gate>();
  behaviours_.resize(1);
  behaviours_[0].on_step = [never](const v1::StepPlan&, v1::StepResult*) {
    never->Wait();
    return absl::OkStatus();
  };
  Start(1);
  ASSERT_TRUE(WaitReady().ok());
  const auto job = Submit("a", 10, 5, 40);
  std::thread shutdown([this] { fleet_->Shutdown(); });
  const Outcome outcome = Await(*job);
  EXPECT_EQ(outcome.status,
            absl::UnavailableError("the coordinator is stopping"));
  shutdown.join();
  never->Open();
  EXPECT_EQ(fleet_->State().state(), v1::FLEET_STATE_STOPPING);
  EXPECT_EQ(WaitReady().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(fleet_->Register(workers_[0]->Registration()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(FleetTest, ShutdownEndsALoad) {
  behaviours_.resize(1);
  behaviours_[0].hang_in_load = true;
  Start(1);
  WaitState(v1::FLEET_STATE_LOADING);
  fleet_->Shutdown();
  EXPECT_EQ(fleet_->State().state(), v1::FLEET_STATE_STOPPING);
}

}  // namespace
}  // namespace ringfleet::coordinator
