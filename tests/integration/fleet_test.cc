// SPDX-License-Identifier: Apache-2.0
// Fleets of daemons: started by hand and by `up`, used, stopped.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <random>
#include <sstream>
#include <thread>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

class DaemonTest : public HandFleet {
 protected:
  Arguments Submit(const std::string& prompt, int tokens = 24) const {
    return {"submit",
            "--cluster",
            cluster(),
            "-p",
            prompt,
            "-n",
            std::to_string(tokens),
            "--temp",
            "0",
            "--ignore-eos",
            "--json"};
  }
};

TEST_F(DaemonTest, AWorkerStartedBeforeTheCoordinatorJoins) {
  const int port = testing::FreePort();
  workers_[0] =
      Start(RINGFLEET_WORKER_BINARY,
            {"--rank", "0", "--listen", "127.0.0.1:0", "--coordinator",
             "127.0.0.1:" + std::to_string(port), "--threads", "1"});
  ASSERT_TRUE(WaitUntil(10, [&] {
    return workers_[0]->errors().find("listening on port") != std::string::npos;
  }));
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(1, {}, {}, port));
  EXPECT_EQ(WaitForState("ready")["state"], "ready");
}

TEST_F(DaemonTest, SigtermEndsDaemonsWithCodeZero) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  for (Process* process :
       {workers_[0].get(), coordinator_.get(), workers_[1].get()}) {
    process->Signal(SIGTERM);
    EXPECT_EQ(process->Wait(5), 0) << process->errors();
  }
}

// A shell's soft limit is often 1024, its hard limit far more.
TEST_F(DaemonTest, DaemonsRaiseTheirLimitOfOpenFiles) {
  constexpr char kLowered[] = "ulimit -S -n 200; exec \"$0\" \"$@\"";
  const std::string port_file = File("port");
  const auto coordinator =
      Start("/bin/sh",
            {"-c", kLowered, RINGFLEET_COORDINATOR_BINARY, "--model", Model(),
             "--listen", "127.0.0.1:0", "--port-file", port_file});
  const auto worker =
      Start("/bin/sh",
            {"-c", kLowered, RINGFLEET_WORKER_BINARY, "--listen", "127.0.0.1:0",
             "--port-file", port_file + "2", "--coordinator", "127.0.0.1:1"});
  ASSERT_TRUE(WaitUntil(10,
                        [&] {
                          return std::filesystem::exists(port_file) &&
                                 std::filesystem::exists(port_file + "2");
                        }))
      << coordinator->errors() << worker->errors();
  for (const Process* daemon : {coordinator.get(), worker.get()}) {
    const std::string limits =
        testing::ReadFile("/proc/" + std::to_string(daemon->pid()) + "/limits");
    std::istringstream line(limits.substr(limits.find("Max open files")));
    std::string word, soft, hard;
    line >> word >> word >> word >> soft >> hard;
    EXPECT_EQ(soft, hard);
  }
}

TEST_F(DaemonTest, AnotherModelIsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const Finished finished = Cli({"generate", "--cluster", cluster(), "--model",
                                 Model("tiny-v2"), "-p", "x", "-n", "1"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.error_line(),
              AllOf(HasSubstr(Model("tiny-v2")), HasSubstr(Model("tiny-v3"))));
  EXPECT_EQ(Cli({"generate", "--cluster", cluster(), "--model", Model(), "-p",
                 "x", "-n", "1"})
                .code,
            0);
}

// By the coordinator's address: nobody has a file of this fleet.
TEST_F(DaemonTest, DoctorExaminesTheWorkersThatAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  const Arguments doctor = {"doctor",
                            "--coordinator",
                            "127.0.0.1:" + std::to_string(port()),
                            "--time-ms",
                            "1",
                            "-o",
                            "json"};
  workers_[0]->Signal(SIGKILL);
  workers_[0]->Wait(5);
  const Finished some = Cli(doctor, {.seconds = 120});
  EXPECT_EQ(some.code, 3);
  EXPECT_THAT(some.errors, HasSubstr("ringfleet: doctor: rank 0 (127.0.0.1:"));
  const json document = some.document();
  EXPECT_EQ(document["model"], Model());
  ASSERT_EQ(document["workers"].size(), 1u);
  EXPECT_EQ(document["workers"][0]["rank"], 1);
  EXPECT_EQ(document["absent"][0]["rank"], 0);
}

TEST_F(DaemonTest, ExpertCountsAreThoseOfTheGolden) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2, {"--dtype", "f32", "--wire", "f32"}));
  const json golden = Golden("tiny-v3");
  const Finished scored =
      Cli({"score", "--cluster", cluster(), "--ids",
           JoinIds(golden["cases"].back()["prompt_ids"]), "--mtp", "--json"});
  ASSERT_EQ(scored.code, 0) << scored.errors;
  const Arguments counts = {"--experts", "--counts", "--reset"};
  EXPECT_EQ(Status(counts)["experts"], golden["expert_counts_last_prompt"]);
  const json zeroed = Status(counts)["experts"];
  ASSERT_FALSE(zeroed.empty());
  for (const auto& [layer, values] : zeroed.items()) {
    EXPECT_EQ(values, json(std::vector<int>(values.size(), 0)))
        << "layer " << layer << " was not reset";
  }
}

// Prompts that begin together may be enough tokens for another strategy.
TEST_F(DaemonTest, MoreJobsThanSlotsAllFinishAsAlone) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2, {"--parallel", "4"}));
  std::vector<std::string> prompts;
  std::vector<json> alone;
  for (int i = 0; i < 6; ++i) {
    prompts.push_back(std::string(1 + 7 * i, 'a') + "def f" +
                      std::to_string(i) + "(");
    alone.push_back(Cli(Submit(prompts.back())).document()["ids"]);
    ASSERT_EQ(alone.back().size(), 24u);
  }
  std::vector<std::unique_ptr<Process>> jobs;
  for (const std::string& prompt : prompts) {
    jobs.push_back(StartCli(Submit(prompt)));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Finished finished = Finish(*jobs[i]);
    ASSERT_EQ(finished.code, 0) << finished.errors;
    EXPECT_EQ(finished.document()["ids"], alone[i]) << "job " << i;
  }
  const json requests = Status()["requests"];
  EXPECT_EQ(requests, json({{"running", 0}, {"waiting", 0}}));
}

TEST_F(DaemonTest, AWorkersLastCollectivesAreReadable) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  ASSERT_EQ(Cli(Submit("def f(")).code, 0);
  const std::string address = Status()["workers"][1]["address"];
  const Finished call =
      Cli({"call", address, "ringfleet.v1.Worker/FlightRecords",
           R"({"limit": 3})"});
  ASSERT_EQ(call.code, 0) << call.errors;
  const json records = call.document()["records"];
  ASSERT_EQ(records.size(), 3u) << call.output;
  EXPECT_EQ(records[2]["state"], "STATE_DONE");
  // Rank 0, and so left out as a default.
  EXPECT_EQ(records[2].value("waitingFor", 0), 0);
  EXPECT_FALSE(records[2]["operation"].get<std::string>().empty());
}

TEST_F(DaemonTest, ADetachedJobRunsOn) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  Arguments command = {"submit", "--cluster", cluster(),     "-p",
                       "def ",   "-n",        "300",         "--temp",
                       "0",      "--detach",  "--ignore-eos"};
  EXPECT_EQ(Cli(command).code, 0);
  EXPECT_TRUE(
      WaitUntil(20, [this] { return Status()["requests"]["running"] == 0; }));
  // 4 prompt tokens or so and 300 new ones went through the experts.
  const json experts = Status({"--experts", "--counts"})["experts"];
  int tokens = 0;
  for (const json& count : experts.begin().value()) tokens += count.get<int>();
  EXPECT_GE(tokens, 299 * 4);  // Four experts a token.
}

TEST_F(DaemonTest, AJobWhoseCallerLeavesIsCancelled) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const auto job = StartCli({"submit", "--cluster", cluster(), "-p", "def ",
                             "-n", "-1", "--ignore-eos", "--temp", "0"});
  ASSERT_TRUE(WaitUntil(10, [&] { return !job->output().empty(); }));
  job->Signal(SIGINT);
  EXPECT_EQ(job->Wait(5), 130);
  EXPECT_TRUE(
      WaitUntil(5, [this] { return Status()["requests"]["running"] == 0; }));
}

TEST_F(DaemonTest, AJobThatSomebodyElseCancelsIsNoInterrupt) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  // Four digits of the coordinator and four that count its jobs.
  const std::string id = Cli({"submit", "--cluster", cluster(), "-p", "def ",
                              "-n", "1", "--detach"})
                             .document()["id"];
  ASSERT_EQ(id.size(), 8u);
  std::ostringstream next;
  next << id.substr(0, 4) << std::hex << std::setw(4) << std::setfill('0')
       << std::stoul(id.substr(4), nullptr, 16) + 1;
  const auto job = StartCli({"submit", "--cluster", cluster(), "-p", "def ",
                             "-n", "-1", "--ignore-eos", "--temp", "0"});
  ASSERT_TRUE(WaitUntil(10, [&] { return !job->output().empty(); }));
  const Finished cancel = Cli({"call", "127.0.0.1:" + std::to_string(port()),
                               "ringfleet.v1.Coordinator/CancelJob",
                               R"({"id":")" + next.str() + "\"}"});
  ASSERT_EQ(cancel.code, 0) << cancel.errors;
  const Finished finished = Finish(*job, 10);
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.error_line(),
              AllOf(HasSubstr(next.str()), HasSubstr("cancelled")));
}

TEST_F(DaemonTest, ACoordinatorThatDiesIsNamed) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  for (const char* verb : {"submit", "score"}) {
    SCOPED_TRACE(verb);
    Arguments command = {verb, "--cluster", cluster(), "--json"};
    const bool score = command[0] == "score";
    if (score) {  // 40 windows of the context's length.
      std::string ids = "1";
      for (int i = 1; i < 40 * 1024; ++i) ids += ",1";
      command.insert(command.end(), {"--ids", ids});
    } else {
      command.insert(command.end(), {"-p", "def ", "-n", "-1", "--ignore-eos"});
    }
    const auto job = StartCli(command);
    ASSERT_TRUE(
        WaitUntil(10, [this] { return Status()["requests"]["running"] == 1; }));
    const std::string address = "127.0.0.1:" + std::to_string(port());
    coordinator_->Signal(SIGKILL);
    const Finished finished = Finish(*job, 10);
    EXPECT_EQ(finished.code, 3);
    EXPECT_THAT(finished.error_line(), HasSubstr("coordinator " + address));
    coordinator_.reset();
    if (score) break;
    ASSERT_NO_FATAL_FAILURE(StartCoordinator(1, {}, {}, port()));
    ASSERT_EQ(WaitForState("ready")["state"], "ready");
  }
}

class UpTest : public FleetTest {
 protected:
  void SetUp() override {
    testing::WriteFile(cluster(),
                       "name: integration\nmodel: " + Model() +
                           "\ndtype: f32\nwire: f32\ncoordinator: {port: " +
                           std::to_string(testing::FreePort()) +
                           "}\nworkers:\n  - {port: 0, threads: 1}\n"
                           "  - {port: 0, threads: 1}\n");
  }
  void TearDown() override {
    Cli({"down", "--cluster", cluster()}, {.seconds = 40});
  }
  std::string cluster() const { return File("fleet.yaml"); }
  Finished Up() {
    return Cli({"up", "--cluster", cluster(), "-o", "json"}, {.seconds = 60});
  }
  Finished Down() {
    return Cli({"down", "--cluster", cluster(), "-o", "json"}, {.seconds = 40});
  }
};

std::vector<int> Pids(const json& summary) {
  std::vector<int> pids;
  for (const json& worker : summary["workers"]) pids.push_back(worker["pid"]);
  return pids;
}

TEST_F(UpTest, UpAndDownAreIdempotent) {
  const Finished first = Up();
  ASSERT_EQ(first.code, 0) << first.errors;
  const json up = first.document();
  EXPECT_EQ(up["state"], "ready");
  EXPECT_TRUE(up["epoch"].is_number_unsigned());
  ASSERT_EQ(up["workers"].size(), 2u);
  for (const json& worker : up["workers"]) {
    EXPECT_EQ(worker["state"], "ready");
    EXPECT_TRUE(worker["address"].is_string());
    EXPECT_TRUE(worker["rank"].is_number_unsigned());
  }
  EXPECT_EQ(Processes().size(), 3u);

  const Finished again = Up();
  ASSERT_EQ(again.code, 0) << again.errors;
  EXPECT_EQ(again.document(), up);

  for (const char* verb : {"generate", "submit"}) {
    const Finished generated = Cli({verb, "--cluster", cluster(), "-p", "def ",
                                    "-n", "5", "--temp", "0", "--json"});
    EXPECT_EQ(generated.code, 0) << generated.errors;
    EXPECT_EQ(generated.document()["ids"].size(), 5u);
  }
  const json golden = Golden("tiny-v3")["cases"][0];
  const Finished scored = Cli({"score", "--cluster", cluster(), "--ids",
                               JoinIds(golden["prompt_ids"]), "--json"});
  EXPECT_EQ(scored.document()["top_ids"], golden["top_ids"]);

  const Finished down = Down();
  ASSERT_EQ(down.code, 0) << down.errors;
  const json summary = down.document();
  ASSERT_EQ(summary["workers"].size(), 2u);
  EXPECT_EQ(summary["epoch"], up["epoch"]);
  for (const json& worker : summary["workers"]) {
    EXPECT_EQ(worker["state"], "stopped");
  }
  ExpectNoProcesses(0.1);
  EXPECT_EQ(Down().code, 0);

  const Finished status = Cli({"status", "--cluster", cluster(), "-o", "json"});
  EXPECT_EQ(status.code, 3);
  EXPECT_EQ(status.document()["error"]["code"], "UNAVAILABLE");
  EXPECT_THAT(status.error_line(), HasSubstr("127.0.0.1:"));
}

TEST_F(UpTest, AFleetThatRunsIsNotTakenForWhatTheFileSaysNow) {
  ASSERT_EQ(Up().code, 0);
  const std::string before = testing::ReadFile(cluster());
  testing::WriteFile(cluster(), before + "parallel: 2\n");
  const Finished changed = Up();
  EXPECT_EQ(changed.code, 3);
  EXPECT_EQ(changed.error_line(),
            "up: fleet integration runs with 'parallel: 4', not "
            "'parallel: 2'; `ringfleet down --cluster " +
                cluster() + "` ends it first");
  testing::WriteFile(cluster(), before);
  EXPECT_EQ(Up().code, 0);

  // What is in the file no longer is stopped as well.
  const std::string last_worker = "  - {port: 0, threads: 1}\n";
  ASSERT_TRUE(before.ends_with(last_worker));
  testing::WriteFile(cluster(),
                     before.substr(0, before.size() - last_worker.size()));
  const Finished shrunk = Up();
  EXPECT_EQ(shrunk.code, 3);
  EXPECT_THAT(shrunk.error_line(), HasSubstr("tensor: 2}', not 'mesh: "));
  EXPECT_EQ(Processes().size(), 3u);
  EXPECT_EQ(Down().code, 0);
  ExpectNoProcesses(0.1);
}

// Examples call their file pool.yaml, so files in two folders have one name.
TEST_F(UpTest, AFileOfAnotherFolderWithItsNameCostsNoFleet) {
  const json up = Up().document();
  ASSERT_EQ(up["state"], "ready");
  std::filesystem::create_directories(File("other"));
  const std::string other = File("other/fleet.yaml");
  testing::WriteFile(other, "name: integration\nmodel: " + Model("tiny-v2") +
                                "\ncoordinator: {port: " +
                                std::to_string(testing::FreePort()) +
                                "}\nworkers:\n  - {port: 0}\n");
  for (const char* verb : {"up", "down"}) {
    const Finished refused =
        Cli({verb, "--cluster", other, "-o", "json"}, {.seconds = 40});
    EXPECT_EQ(refused.code, 2) << refused.errors;
    EXPECT_THAT(
        refused.document()["error"]["message"].get<std::string>(),
        AllOf(HasSubstr("fleet integration was started from " + cluster()),
              HasSubstr("instead of " + other)));
  }
  EXPECT_EQ(Up().document(), up);
  // Rank 1 is not in this file.
  const Finished forced =
      Cli({"down", "--cluster", other, "--force"}, {.seconds = 40});
  EXPECT_EQ(forced.code, 0) << forced.errors;
  EXPECT_EQ(Processes().size(), 1u);
  EXPECT_EQ(Down().code, 0);
  ExpectNoProcesses(0.1);
}

TEST_F(UpTest, ACoordinatorThatDoesNotAnswerThereCostsNoFleet) {
  const json up = Up().document();
  ASSERT_EQ(up["state"], "ready");
  const std::string before = testing::ReadFile(cluster());
  const size_t at = before.find("{port: ") + 7;
  testing::WriteFile(cluster(), before.substr(0, at) +
                                    std::to_string(testing::FreePort()) +
                                    before.substr(before.find('}', at)));
  const Finished moved = Up();
  EXPECT_EQ(moved.code, 3);
  EXPECT_THAT(moved.document()["error"]["message"].get<std::string>(),
              AllOf(HasSubstr("up: the coordinator of fleet integration runs"),
                    HasSubstr("nothing answers at 127.0.0.1:")));
  EXPECT_EQ(Processes().size(), 3u);
  testing::WriteFile(cluster(), before);
  EXPECT_EQ(Up().document(), up);
}

TEST_F(UpTest, AWorkerThatRunsElsewhereIsNotTakenForTheFiles) {
  const std::string before = testing::ReadFile(cluster());
  const auto with_port = [&](int port) {
    const size_t at = before.rfind("{port: 0");
    testing::WriteFile(cluster(), before.substr(0, at) +
                                      "{port: " + std::to_string(port) +
                                      before.substr(at + 8));
  };
  const int port = testing::FreePort();
  with_port(port);
  ASSERT_EQ(Up().code, 0);
  for (const pid_t pid : Processes()) {
    const auto command = testing::CommandLine(pid);
    if (!command.empty() && command[0] == RINGFLEET_COORDINATOR_BINARY) {
      kill(pid, SIGKILL);
    }
  }
  ASSERT_TRUE(WaitUntil(10, [&] { return Processes().size() == 2; }));
  const int other = testing::FreePort();
  with_port(other);
  const Finished elsewhere = Up();
  EXPECT_EQ(elsewhere.code, 3);
  EXPECT_THAT(elsewhere.document()["error"]["message"].get<std::string>(),
              HasSubstr("runs at 127.0.0.1:" + std::to_string(port) +
                        ", want 127.0.0.1:" + std::to_string(other)));
  with_port(port);
  EXPECT_EQ(Up().code, 0);
}

TEST_F(UpTest, AFleetThatLostAWorkerKeepsTheOthers) {
  const json up = Up().document();
  ASSERT_EQ(up["state"], "ready");
  kill(up["workers"][1]["pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(WaitUntil(20, [&] {
    const json state =
        Cli({"status", "--cluster", cluster(), "-o", "json"}).document();
    return state["state"] == "failed" && state.contains("error");
  }));
  const json again = Up().document();
  EXPECT_EQ(again["state"], "ready");
  EXPECT_EQ(again["workers"][0], up["workers"][0]);
  EXPECT_NE(again["workers"][1]["pid"], up["workers"][1]["pid"]);
  EXPECT_GT(again["epoch"], up["epoch"]);
}

TEST_F(UpTest, WhatTheCoordinatorRefusesIsTheAnswer) {
  const std::string before = testing::ReadFile(cluster());
  testing::WriteFile(cluster(), before + "context: 100000\n");
  const Finished up = Up();
  EXPECT_EQ(up.code, 2);
  EXPECT_THAT(up.document()["error"]["message"].get<std::string>(),
              AllOf(HasSubstr("launch start: coordinator (127.0.0.1): "),
                    HasSubstr("context: 100000, want at most")));
  ExpectNoProcesses(0.1);
  testing::WriteFile(cluster(), before);
}

TEST_F(UpTest, DownOfSomeHostsSaysWhatIsLeft) {
  const json up = Up().document();
  ASSERT_EQ(up["state"], "ready");
  const Finished one =
      Cli({"down", "--cluster", cluster(), "--hosts", "1", "-o", "json"},
          {.seconds = 40});
  ASSERT_EQ(one.code, 0) << one.errors;
  const json rest = one.document();
  EXPECT_THAT(rest["state"].get<std::string>(),
              ::testing::AnyOf("waiting", "loading", "failed"));
  ASSERT_EQ(rest["workers"].size(), 2u);
  EXPECT_EQ(rest["workers"][0]["pid"], up["workers"][0]["pid"]);
  EXPECT_EQ(rest["workers"][0]["address"], up["workers"][0]["address"]);
  EXPECT_NE(rest["workers"][0]["state"], "stopped");
  EXPECT_EQ(rest["workers"][1]["state"], "stopped");
  EXPECT_EQ(rest["workers"][1]["pid"], 0);
  EXPECT_EQ(Processes().size(), 2u);
  // Without a coordinator nobody knows of the worker that still runs.
  const Finished coordinator = Cli(
      {"down", "--cluster", cluster(), "--hosts", "coordinator", "-o", "json"},
      {.seconds = 40});
  ASSERT_EQ(coordinator.code, 0) << coordinator.errors;
  const json unknown = coordinator.document();
  EXPECT_EQ(unknown["state"], "unknown");
  EXPECT_EQ(unknown["workers"][0]["state"], "unknown");
  EXPECT_EQ(Processes().size(), 1u);
}

// Both workers count every token; only what came after the reset is shown.
TEST_F(UpTest, ExpertCountsSinceAResetAreThoseOfTheGolden) {
  ASSERT_EQ(Up().code, 0);
  const json golden = Golden("tiny-v3");
  const std::string ids = JoinIds(golden["cases"].back()["prompt_ids"]);
  const Arguments reset = {"status",    "--cluster", cluster(),
                           "--experts", "--counts",  "--reset"};
  Arguments counts = reset;
  counts.insert(counts.end(), {"-o", "json"});
  const Arguments score = {"score", "--cluster", cluster(),
                           "--ids", ids,         "--json"};
  // The one token that is drawn is not fed to the model.
  const Arguments submit = {"submit", "--cluster", cluster(), "--prompt-ids",
                            ids,      "-n",        "1",       "--json"};
  for (const Arguments& command : {score, submit}) {
    ASSERT_EQ(
        Cli({"generate", "--cluster", cluster(), "-p", "def ", "-n", "3"}).code,
        0);
    ASSERT_EQ(Cli(reset).code, 0);
    const Finished finished = Cli(command);
    ASSERT_EQ(finished.code, 0) << finished.errors;
    EXPECT_EQ(Cli(counts).document()["experts"],
              golden["expert_counts_last_prompt"]);
  }
  // The last of these has zeroed them.
  const Finished text = Cli(reset);
  EXPECT_THAT(text.output,
              AllOf(HasSubstr("    1        -  ................\n"),
                    HasSubstr("layer 1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")));
  EXPECT_EQ(text.output.find('\033'), std::string::npos);
}

TEST_F(UpTest, TwoAtOnceStartOneFleet) {
  const Arguments command = {"up", "--cluster", cluster(), "-o", "json"};
  const auto first = StartCli(command);
  const auto second = StartCli(command);
  const Finished a = Finish(*first, 60);
  const Finished b = Finish(*second, 60);
  ASSERT_EQ(a.code, 0) << a.errors;
  ASSERT_EQ(b.code, 0) << b.errors;
  EXPECT_EQ(Pids(a.document()), Pids(b.document()));
  EXPECT_EQ(Processes().size(), 3u);
}

// Hosts that take a connection and then say nothing: `ssh` hangs with the verb
// that it is given, and fails with any other.
class HangingHostsTest : public UpTest {
 protected:
  void StartHanging(const std::string& verb) {
    std::filesystem::create_directories(File("path"));
    const std::string ssh = File("path/ssh");
    testing::WriteFile(ssh, "#!/bin/sh\ncase \"$*\" in\n*\"'" + verb +
                                "'\"*) exec sleep 600 ;;\nesac\necho >>" +
                                File("others") + "\nexit 255\n");
    std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
    plain_ = testing::ReadFile(cluster());
    testing::WriteFile(cluster(), plain_ + "ssh: {user: nobody}\n");
    command_ = StartCli(
        {verb == "stop" ? "down" : "up", "--cluster", cluster()},
        {.environment = {{"PATH", File("path:") + std::getenv("PATH")}}});
    EXPECT_TRUE(WaitUntil(20, [this] {
      const std::vector<pid_t> pids = Processes();
      return std::count_if(pids.begin(), pids.end(), [](pid_t pid) {
               // Empty when the process has just ended.
               const auto words = testing::CommandLine(pid);
               return !words.empty() && words[0] == "sleep";
             }) == 3;
    })) << command_->errors();
  }
  void TearDown() override { testing::WriteFile(cluster(), plain_); }
  void ExpectInterrupted() {
    command_->Signal(SIGINT);
    EXPECT_EQ(command_->Wait(20), 130);
    ExpectNoProcesses(0);
    // It has come to its end, and was not ended by the clock.
    EXPECT_THAT(command_->errors(), HasSubstr("ringfleet: interrupted\n"));
  }

  std::unique_ptr<Process> command_;

 private:
  std::string plain_;
};

TEST_F(HangingHostsTest, AnInterruptedUpLeavesNothingHereAndTakesBack) {
  ASSERT_NO_FATAL_FAILURE(StartHanging("start"));
  ExpectInterrupted();
  // Each of three processes was to be stopped.
  ASSERT_TRUE(std::filesystem::exists(File("others")));
  EXPECT_EQ(testing::ReadFile(File("others")), "\n\n\n");
}

TEST_F(HangingHostsTest, AnInterruptedDownLeavesNothingHere) {
  ASSERT_NO_FATAL_FAILURE(StartHanging("stop"));
  ExpectInterrupted();
}

TEST_F(UpTest, AnInterruptAtAnyMomentLeavesNothing) {
  std::mt19937_64 random(23);
  for (int i = 0; i < (kSanitized ? 2 : 6); ++i) {
    const auto delay = std::chrono::milliseconds(
        static_cast<int>((random() % 1200) * testing::kSlowdown));
    SCOPED_TRACE(::testing::Message() << "after " << delay.count() << " ms");
    const auto up = StartCli({"up", "--cluster", cluster()});
    std::this_thread::sleep_for(delay);
    up->Signal(SIGINT);
    const Finished finished = Finish(*up, 40);
    if (finished.code == 0) {
      EXPECT_EQ(Down().code, 0);
    } else {
      EXPECT_EQ(finished.code, 130) << finished.errors;
    }
    ExpectNoProcesses(0.1);
  }
}

TEST_F(UpTest, AFleetThatCannotLoadIsTakenDownAgain) {
  const std::string model = CopyModel();
  testing::WriteFile(model + "/model-00001-of-00002.safetensors", "short");
  testing::WriteFile(cluster(), "name: integration\nmodel: " + model +
                                    "\ncoordinator: {port: " +
                                    std::to_string(testing::FreePort()) +
                                    "}\nworkers:\n  - {port: 0}\n");
  const Finished up = Up();
  EXPECT_EQ(up.code, 4) << up.errors;
  EXPECT_THAT(up.document()["error"]["message"].get<std::string>(),
              HasSubstr("model-00001-of-00002.safetensors"));
  ExpectNoProcesses(1);
}

// A quick `doctor` before `up`. The fleet's ports are free at first.
class QuickDoctorTest : public UpTest {
 protected:
  void SetUp() override { Write(Model(), "log_dir: logs\n"); }
  void Write(const std::string& model, const std::string& more) {
    testing::WriteFile(cluster(),
                       "name: integration\nmodel: " + model +
                           "\ncoordinator: {port: " + std::to_string(port_) +
                           "}\nhttp: {port: " + std::to_string(http_port_) +
                           "}\nworkers:\n  - {threads: 1, port: " +
                           std::to_string(testing::FreePort()) + "}\n" + more);
  }
  Finished Doctor() {
    return Cli({"doctor", "--quick", "--cluster", cluster(), "-o", "json"},
               {.seconds = 60});
  }
  // A listener that nobody answers for, or -1.
  static int Listen(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const auto* any = reinterpret_cast<const sockaddr*>(&address);
    if (bind(fd, any, sizeof(address)) == 0 && listen(fd, 5) == 0) return fd;
    close(fd);
    return -1;
  }

  const int port_ = testing::FreePort();
  const int http_port_ = testing::FreePort();
};

TEST_F(QuickDoctorTest, FindsThePortsOfTheCoordinator) {
  const Finished free = Doctor();
  ASSERT_EQ(free.code, 0) << free.errors;
  const json coordinator = free.document()["coordinator"];
  EXPECT_EQ(coordinator["ports_in_use"], json::array());
  ASSERT_EQ(coordinator["folders"].size(), 1u);
  EXPECT_EQ(coordinator["folders"][0]["path"],
            File("state/ringfleet/integration"));
  for (const int port : {port_, http_port_}) {
    const int listener = Listen(port);
    ASSERT_GE(listener, 0);
    const std::string in_use = "coordinator (127.0.0.1): port " +
                               std::to_string(port) + " on 127.0.0.1 is in use";
    const Finished found = Doctor();
    EXPECT_EQ(found.code, 3);
    EXPECT_THAT(found.errors, HasSubstr("ringfleet: doctor: " + in_use + "\n"));
    EXPECT_THAT(found.document()["advice"], ::testing::Contains(in_use));
    close(listener);
  }
  ExpectNoProcesses(1);
}

TEST_F(QuickDoctorTest, ARunningFleetMayHoldItsPorts) {
  ASSERT_EQ(Up().code, 0);
  const Finished doctor = Doctor();
  EXPECT_EQ(doctor.code, 0) << doctor.errors;
  const json document = doctor.document();
  EXPECT_FALSE(document.contains("coordinator"));
  // Folders of the logs, and of the state of this machine's coordinator.
  std::vector<std::string> folders;
  for (const json& folder : document["workers"][0]["folders"]) {
    folders.push_back(folder["path"]);
  }
  EXPECT_THAT(folders, ::testing::UnorderedElementsAre(
                           File("state/ringfleet/integration"), File("logs")));
}

TEST_F(QuickDoctorTest, AModelThatNoHostHasIsMissed) {
  Write(File("nowhere"), "");
  const Finished doctor = Doctor();
  EXPECT_EQ(doctor.code, 2);
  EXPECT_THAT(doctor.errors,
              HasSubstr("ringfleet: doctor: coordinator (127.0.0.1): no "
                        "config.json in " +
                        File("nowhere")));
  EXPECT_THAT(
      doctor.document()["advice"],
      ::testing::Contains(HasSubstr("no weights in " + File("nowhere") +
                                    " on 127.0.0.1, want them on one host")));
  Write("synth:tiny", "");
  EXPECT_EQ(Doctor().code, 0);
}

TEST_F(UpTest, AClusterFileWithAnUnknownKeyNamesLineAndNearestKey) {
  testing::WriteFile(
      cluster(), "name: x\nmodle: " + Model() + "\nworkers:\n  - {port: 0}\n");
  const Finished up = Up();
  EXPECT_EQ(up.code, 2);
  EXPECT_THAT(up.error_line(),
              AllOf(HasSubstr("modle"), HasSubstr("model"), HasSubstr("2")));
  testing::WriteFile(cluster(), "name: x\nmodel: m\nworkers:\n  - {port: 0}\n");
}

}  // namespace
}  // namespace ringfleet::integration
