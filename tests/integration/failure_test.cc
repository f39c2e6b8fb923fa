// SPDX-License-Identifier: Apache-2.0
// Processes that are interrupted, killed or frozen at any moment: everybody
// else learns why, within a deadline, and the fleet comes back.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::integration {
namespace {

Arguments LongGeneration(Arguments target) {
  target.insert(target.begin(), "generate");
  target.insert(target.end(),
                {"-p", "def main(", "-n", "-1", "--ignore-eos", "--temp", "0"});
  return target;
}

// The worker process of a local fleet, by its --rank.
pid_t WorkerOf(const Process& cli, int rank) {
  for (const pid_t pid : testing::ChildrenOf(cli.pid())) {
    const std::vector<std::string> command = testing::CommandLine(pid);
    const auto option = std::find(command.begin(), command.end(), "--rank");
    if (option != command.end() && option + 1 != command.end() &&
        *(option + 1) == std::to_string(rank)) {
      return pid;
    }
  }
  return -1;
}

// Whether the process blocks the signal, as one that waits for it does.
bool Blocks(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  const std::string field = "SigBlk:";
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, field.size(), field) != 0) continue;
    const uint64_t blocked =
        std::stoull(line.substr(field.size()), nullptr, 16);
    return ((blocked >> (signal - 1)) & 1) != 0;
  }
  return false;
}

class LocalFailureTest : public FleetTest {
 protected:
  std::unique_ptr<Process> StartGeneration(int world) {
    return StartCli(
        LongGeneration({"--model", Model(), "--local", std::to_string(world)}));
  }
  bool WaitForText(const Process& process) {
    return WaitUntil(15, [&] { return !process.output().empty(); });
  }
};

class SignalTest : public LocalFailureTest,
                   public ::testing::WithParamInterface<int> {};

TEST_P(SignalTest, InMidGenerationEndsWith130) {
  const auto cli = StartGeneration(2);
  ASSERT_TRUE(WaitForText(*cli)) << cli->errors();
  cli->Signal(GetParam());
  EXPECT_EQ(cli->Wait(5), 130) << cli->errors();
  EXPECT_THAT(cli->errors(), HasSubstr("ringfleet: interrupted\n"));
  ExpectNoProcesses(0.5);
}

TEST_P(SignalTest, WhileAWorkerIsFrozenInTheLoadEndsWith130) {
  const auto cli = StartGeneration(2);
  pid_t worker = -1;
  ASSERT_TRUE(WaitUntil(10, [&] { return (worker = WorkerOf(*cli, 1)) > 0; }));
  kill(worker, SIGSTOP);
  ASSERT_TRUE(cli->output().empty()) << "too late to be in the load";
  cli->Signal(GetParam());
  EXPECT_EQ(cli->Wait(7), 130) << cli->errors();
  ExpectNoProcesses(2);
  RemoveKeptLogs();  // The grace may have passed: no time to clean up.
}

TEST_P(SignalTest, WhileAPromptIsTypedEndsWith130) {
  ASSERT_EQ(mkfifo(File("input").c_str(), 0600), 0);
  for (const char* verb : {"generate", "tokenize"}) {
    const auto cli = Start(
        "/bin/bash", {"-c", "exec \"$0\" \"$@\" 0<>" + File("input"),
                      RINGFLEET_BINARY, verb, "--model", Model(), "-f", "-"});
    // Once it has asked for signals it reads.
    ASSERT_TRUE(WaitUntil(10, [&] {
      const auto command = testing::CommandLine(cli->pid());
      return !command.empty() && command[0] == RINGFLEET_BINARY &&
             Blocks(cli->pid(), GetParam());
    })) << cli->errors();
    cli->Signal(GetParam());
    // Before the grace is over, after which nothing would be said.
    EXPECT_EQ(cli->Wait(4), 130) << cli->errors();
    EXPECT_EQ(cli->errors(), "ringfleet: interrupted\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest,
                         ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& info) {
                           return info.param == SIGINT ? "Interrupt"
                                                       : "Terminate";
                         });

// A shell's pipeline: the command's exit code becomes the shell's.
class ClosedOutputTest : public HandFleet {
 protected:
  std::unique_ptr<Process> StartPiped(Arguments arguments,
                                      const std::string& into) {
    arguments.insert(arguments.begin(), RINGFLEET_BINARY);
    arguments.insert(arguments.begin(), {"-c", "\"$0\" \"$@\" " + into +
                                                   "; exit ${PIPESTATUS[0]}"});
    return Start("/bin/bash", arguments);
  }
};

// The fixture sees that no folder and no worker is left.
TEST_F(ClosedOutputTest, AReaderThatLeavesEndsALocalFleet) {
  const auto text =
      StartPiped(LongGeneration({"--model", Model()}), "| head -c 1");
  EXPECT_EQ(text->Wait(20), 141) << text->errors();
  EXPECT_EQ(text->errors(), "");
  EXPECT_EQ(text->output().size(), 1u);
  ExpectNoProcesses(0.5);
  const auto document = StartPiped(
      {"score", "--model", Model(), "-p", "def ", "--json"}, "| true");
  EXPECT_EQ(document->Wait(20), 141) << document->errors();
  EXPECT_EQ(document->errors(), "");
}

TEST_F(ClosedOutputTest, AReaderThatLeavesCancelsTheJob) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const auto job =
      StartPiped(LongGeneration({"--cluster", cluster()}), "| head -c 1");
  EXPECT_EQ(job->Wait(20), 141) << job->errors();
  EXPECT_TRUE(
      WaitUntil(5, [this] { return Status()["requests"]["running"] == 0; }));
}

TEST_F(ClosedOutputTest, AFullDiskIsAnError) {
  const auto job =
      StartPiped({"tokenize", "--model", Model(), "-p", "def "}, ">/dev/full");
  EXPECT_EQ(job->Wait(20), 1);
  EXPECT_THAT(job->errors(), HasSubstr("ringfleet: stdout: cannot be written: "
                                       "No space left on device\n"));
}

TEST_F(LocalFailureTest, WorkersFollowAKilledCommand) {
  const auto cli = StartGeneration(2);
  ASSERT_TRUE(WaitForText(*cli)) << cli->errors();
  EXPECT_EQ(Processes().size(), 3u);
  cli->Signal(SIGKILL);
  cli->Wait(1);
  ExpectNoProcesses(2);
  RemoveKeptLogs();
}

// The fleet was ready: the worker starts again and the job goes on, with the
// text of a run that nothing disturbs.
TEST_F(LocalFailureTest, AKilledWorkersJobGoesOn) {
  const Arguments command = {
      "generate",  "--model", Model(), "--local", "2", "-p",
      "def main(", "-n",      "120",   "--temp",  "0", "--ignore-eos"};
  const Finished right = Cli(command);
  ASSERT_EQ(right.code, 0) << right.errors;
  const auto cli = StartCli(command);
  ASSERT_TRUE(WaitForText(*cli)) << cli->errors();
  kill(WorkerOf(*cli, 1), SIGKILL);
  const Finished finished = Finish(*cli);
  EXPECT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.output, right.output);
  EXPECT_THAT(finished.errors,
              HasSubstr("worker 1 was killed by signal 9 (Killed), starting it "
                        "again\n"));
}

// Each time that the fleet is ready again, the worker dies again.
TEST_F(LocalFailureTest, AWorkerThatDiesAgainAndAgainEndsTheCommand) {
  const auto cli = StartGeneration(1);
  ASSERT_TRUE(WaitForText(*cli)) << cli->errors();
  pid_t last = -1;
  for (int deaths = 0; deaths < 5; ++deaths) {
    pid_t worker = -1;
    ASSERT_TRUE(WaitUntil(10, [&] {
      worker = WorkerOf(*cli, 0);
      return worker > 0 && worker != last;
    })) << cli->errors();
    kill(worker, SIGKILL);
    last = worker;
  }
  EXPECT_EQ(cli->Wait(10), 3);
  EXPECT_THAT(cli->errors(),
              HasSubstr("ringfleet: local: worker 0 was killed by signal 9 "
                        "(Killed), end 5 within 10m"));
  // The logs stay for the user, and the message says where.
  EXPECT_THAT(cli->errors(), HasSubstr("worker logs are in " + File("tmp")));
  RemoveKeptLogs();
}

TEST_F(LocalFailureTest, AWorkerKilledInTheLoadIsNamed) {
  const auto cli = StartGeneration(2);
  pid_t worker = -1;
  ASSERT_TRUE(WaitUntil(10, [&] { return (worker = WorkerOf(*cli, 0)) > 0; }));
  kill(worker, SIGKILL);
  EXPECT_EQ(cli->Wait(10), 3);
  EXPECT_THAT(cli->errors(), HasSubstr("worker 0"));
  RemoveKeptLogs();
}

// As a sanitizer ends a program that was fine until then: with a report in its
// log and an exit code of its own.
TEST_F(LocalFailureTest, AWorkerThatFailsInTheEndIsNoticed) {
  std::filesystem::create_directories(File("bin"));
  const std::string wrapper = File("bin/ringfleet-worker");
  // It starts with SIGTERM blocked, as every worker: bit 14 of what is pending
  // tells of the signal.
  testing::WriteFile(wrapper, "#!/bin/bash\n" +
                                  std::string(RINGFLEET_WORKER_BINARY) +
                                  " \"$@\" &\n"
                                  "worker=$!\n"
                                  "until ((0x$(awk '/^ShdPnd/ {print $2}' "
                                  "/proc/$$/status) & 0x4000)); do\n"
                                  "  kill -0 $worker 2>/dev/null || exit 9\n"
                                  "  sleep 0.01\n"
                                  "done\n"
                                  "kill -TERM $worker\n"
                                  "wait $worker\n"
                                  "echo 'SUMMARY: 40 bytes leaked' >&2\n"
                                  "exit 23\n");
  std::filesystem::permissions(wrapper, std::filesystem::perms::owner_all);
  const RunOptions options = {
      .environment = {{"RINGFLEET_BIN_DIR", File("bin")}}};
  const Arguments target = {"--model", Model(), "--local", "2", "--json"};
  for (Arguments command : {Arguments{"generate", "-p", "def ", "-n", "2"},
                            Arguments{"score", "-p", "def f(x):"}}) {
    command.insert(command.end(), target.begin(), target.end());
    const Finished finished = Cli(command, options);
    EXPECT_EQ(finished.code, 1) << finished.errors;
    EXPECT_THAT(finished.errors,
                HasSubstr("worker logs are in " + File("tmp")));
    EXPECT_THAT(finished.errors, HasSubstr("SUMMARY: 40 bytes leaked"));
    EXPECT_THAT(finished.errors,
                HasSubstr("ringfleet: local: worker 0 ended with code 23"));
    // One document, and that is the result, which was there before.
    EXPECT_FALSE(finished.document().contains("error")) << finished.document();
    RemoveKeptLogs();
  }
}

// Signals at random moments of start, load, generation and end.
class KillPointTest : public LocalFailureTest {
 protected:
  void KillAtRandom(std::mt19937_64& random) {
    const int signals[] = {SIGINT, SIGTERM, SIGKILL};
    const int signal = signals[random() % 3];
    const auto delay = std::chrono::milliseconds(
        static_cast<int>((random() % 700) * testing::kSlowdown));
    const bool worker_dies = random() % 2 == 0;
    SCOPED_TRACE(::testing::Message()
                 << "signal " << signal << " to "
                 << (worker_dies ? "worker 1" : "the command") << " after "
                 << delay.count() << " ms");
    Arguments command = {"generate", "--model", Model(), "--local", "2", "-p",
                         "def ",     "-n",      "40",    "--temp",  "0"};
    const auto cli = StartCli(command);
    std::this_thread::sleep_for(delay);
    const pid_t target = worker_dies ? WorkerOf(*cli, 1) : cli->pid();
    if (target > 0 && cli->Running()) kill(target, signal);
    const Finished finished = Finish(*cli, 15);
    // It may have been over, or not have set its handlers up yet. A worker may
    // be killed when its work is done.
    const std::vector<int> allowed =
        worker_dies ? std::vector<int>{0, 1, 3}
                    : std::vector<int>{0, 130, 128 + signal};
    EXPECT_THAT(allowed, ::testing::Contains(finished.code)) << finished.errors;
    ExpectNoProcesses(3);
    if (finished.code == 0 || finished.code == 130) return;
    RemoveKeptLogs();
  }
};

TEST_F(KillPointTest, NothingIsLeftAfterASignalAtAnyMoment) {
  std::mt19937_64 random(17);
  for (int i = 0; i < (kSanitized ? 4 : 14); ++i) KillAtRandom(random);
}

TEST_F(KillPointTest, SoakNothingIsLeftAfterASignalAtAnyMoment) {
  const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(
                       60.0 * std::atof(minutes == nullptr ? "1" : minutes));
  std::mt19937_64 random(std::random_device{}());
  int rounds = 0;
  for (; std::chrono::steady_clock::now() < end && !HasFailure(); ++rounds) {
    KillAtRandom(random);
  }
  RecordProperty("rounds", rounds);
}

class FleetFailureTest : public HandFleet {
 protected:
  std::unique_ptr<Process> StartGeneration() {
    auto job = StartCli(LongGeneration({"--cluster", cluster()}));
    EXPECT_TRUE(WaitUntil(15, [&] { return !job->output().empty(); }))
        << job->errors();
    return job;
  }

  json Ids() {
    const Finished finished =
        Cli({"generate", "--cluster", cluster(), "-p", "def main(", "-n", "12",
             "--temp", "0", "--json"});
    EXPECT_EQ(finished.code, 0) << finished.errors;
    return finished.document()["ids"];
  }
};

TEST_F(FleetFailureTest, AJobSaysWhatItWaitsForAndGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  const auto job = StartGeneration();
  workers_[1]->Signal(SIGTERM);
  EXPECT_TRUE(WaitUntil(10, [&] {
    return job->errors().find(
               "waiting: the fleet is not ready: it waits for "
               "worker 1 of 2") != std::string::npos;
  })) << job->errors();
  EXPECT_EQ(workers_[1]->Wait(5), 0);
  StartWorker(1);
  EXPECT_TRUE(WaitUntil(20, [&] {
    return job->errors().find("the fleet is ready again") != std::string::npos;
  })) << job->errors();
  EXPECT_TRUE(job->Running());
}

TEST_F(FleetFailureTest, AHostThatStaysAwayEndsTheJob) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2, {"--recovery-wait", "1"}));
  const auto job = StartGeneration();
  workers_[1]->Signal(SIGKILL);
  EXPECT_EQ(job->Wait(10), 3);
  EXPECT_THAT(job->errors(), HasSubstr("it waits for worker 1 of 2"));
  const auto timed = StartCli(
      {"submit", "--cluster", cluster(), "-p", "def ", "--timeout", "100ms"});
  EXPECT_EQ(timed->Wait(10), 3);
}

TEST_F(FleetFailureTest, ADetachedJobIsShownFollowedAndCancelled) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const json right = Ids();
  const Finished submitted =
      Cli({"submit", "--cluster", cluster(), "-p", "def main(", "-n", "12",
           "--temp", "0", "--detach", "--json"});
  ASSERT_EQ(submitted.code, 0) << submitted.errors;
  const std::string id = submitted.document()["id"];
  const Finished followed =
      Cli({"show", id, "--cluster", cluster(), "--follow", "--output"});
  ASSERT_EQ(followed.code, 0) << followed.errors;
  EXPECT_EQ(followed.document()["ids"], right);
  EXPECT_EQ(followed.document()["id"], id);
  const json listed =
      Cli({"jobs", "--cluster", cluster(), "--json"}).document();
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["id"], id);
  EXPECT_EQ(listed[0]["state"], "completed");
  EXPECT_EQ(listed[0]["completed"], 1);
  EXPECT_EQ(Cli({"cancel", id, "--cluster", cluster()}).code, 0);
  EXPECT_EQ(Cli({"cancel", id, "--cluster", cluster()}).code, 2);
  EXPECT_EQ(Cli({"show", id, "--cluster", cluster()}).code, 2);
}

TEST_F(FleetFailureTest, WorkersJoinARestartedCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  const json right = Ids();
  const auto job = StartGeneration();
  coordinator_->Signal(SIGKILL);
  EXPECT_EQ(job->Wait(5), 3);
  EXPECT_THAT(job->errors(), HasSubstr("ringfleet: "));
  coordinator_->Wait(1);
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, {}, {}, port()));
  EXPECT_EQ(WaitForState("ready", 30)["state"], "ready")
      << coordinator_->errors() << workers_[0]->errors();
  EXPECT_EQ(Ids(), right);
}

// As after a coordinator whose clock was far ahead: the worker has seen an
// epoch that its next coordinator would not count to by itself.
TEST_F(FleetFailureTest, ACoordinatorWhoseClockIsBehindFormsALaterEpoch) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const json right = Ids();
  const json before = Status();
  const uint64_t ahead = before["epoch"].get<uint64_t>() + 3'600'000'000;
  const std::string address = before["workers"][0]["address"];
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(1);
  const json request = {{"epoch", ahead},
                        {"addresses", {address}},
                        {"wire", "WIRE_DTYPE_BF16"},
                        {"timeoutMs", 5000},
                        {"collectiveTimeoutMs", 5000},
                        {"context", 16},
                        {"ranksOnHost", 1}};
  const Finished call =
      Cli({"call", address, "ringfleet.v1.Worker/Connect", request.dump()});
  ASSERT_EQ(call.code, 0) << call.errors;
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(1, {}, {}, port()));
  const json after = WaitForState("ready");
  EXPECT_EQ(after["state"], "ready") << coordinator_->errors();
  EXPECT_GT(after["epoch"].get<uint64_t>(), ahead);
  EXPECT_EQ(Ids(), right);
}

TEST_F(FleetFailureTest, AJobWaitsForAFleetThatForms) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2));
  StartWorker(0);
  const auto job = StartCli({"submit", "--cluster", cluster(), "-p", "def ",
                             "-n", "4", "--temp", "0", "--json"});
  ASSERT_TRUE(
      WaitUntil(10, [this] { return Status()["workers"].size() == 1; }));
  EXPECT_TRUE(job->Running());
  StartWorker(1);
  EXPECT_EQ(Finish(*job).code, 0) << job->errors();
}

}  // namespace
}  // namespace ringfleet::integration
