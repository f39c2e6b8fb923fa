// SPDX-License-Identifier: Apache-2.0
// Jobs outlive a network that loses everything between two hosts. They go on
// with the ids and log probabilities of a run that nothing disturbs.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/test_network.h"

namespace ringfleet::integration {
namespace {

constexpr int kPartitionJobs = kSanitized ? 4 : 16;
constexpr int kPartitionRounds = kSanitized ? 1 : 3;

// The coordinator and its callers are on host 0, the workers on hosts 1 and 2.
class PartitionTest : public FleetTest {
 protected:
  void SetUp() override {
    const absl::Status available = testing::TestNetwork::Available();
    if (!available.ok()) GTEST_SKIP() << available;
    network_.emplace(testing::TestNetworkOptions{.hosts = 3});
    const std::string port_file = File("port");
    coordinator_ = StartOn(
        0, RINGFLEET_COORDINATOR_BINARY,
        {"--model", Model(), "--world", "2", "--transport", "grpc",
         "--parallel", std::to_string(kPartitionJobs), "--listen",
         network_->Address(0) + ":0", "--insecure", "--port-file", port_file});
    ASSERT_TRUE(WaitUntil(20, [&] {
      return std::filesystem::exists(port_file);
    })) << coordinator_->errors();
    address_ = network_->Address(0) + ":" +
               std::to_string(std::stoi(testing::ReadFile(port_file)));
    for (int rank = 0; rank < 2; ++rank) {
      workers_.push_back(
          StartOn(rank + 1, RINGFLEET_WORKER_BINARY,
                  {"--rank", std::to_string(rank), "--listen",
                   network_->Address(rank + 1) + ":0", "--insecure",
                   "--coordinator", address_, "--threads", "1"}));
    }
    ASSERT_TRUE(WaitUntil(20, [this] { return Status()["state"] == "ready"; }))
        << coordinator_->errors();
    right_ = Results(StartJobs());
  }

  std::unique_ptr<Process> StartOn(int host, const std::string& program,
                                   Arguments arguments) {
    arguments.insert(arguments.begin(), program);
    Arguments command = network_->Command(host, std::move(arguments));
    const std::string path = command[0];
    command.erase(command.begin());
    return Start(path, std::move(command));
  }

  json Status() {
    const auto process =
        StartOn(0, RINGFLEET_BINARY,
                {"status", "--coordinator", address_, "-o", "json"});
    return Finish(*process).document();
  }

  // Greedy and seeded jobs, in turns.
  std::vector<std::unique_ptr<Process>> StartJobs() {
    std::vector<std::unique_ptr<Process>> jobs;
    for (int i = 0; i < kPartitionJobs; ++i) {
      const std::string number = std::to_string(i);
      Arguments command = {"submit",       "--coordinator",   address_,
                           "--prompt-ids", "0,318," + number, "-n",
                           "300",          "--ignore-eos",    "--json"};
      const Arguments sampling =
          i % 2 == 0 ? Arguments{"--temp", "0"}
                     : Arguments{"--temp", "0.8", "--seed", number};
      command.insert(command.end(), sampling.begin(), sampling.end());
      jobs.push_back(StartOn(0, RINGFLEET_BINARY, std::move(command)));
    }
    return jobs;
  }

  std::vector<json> Results(std::vector<std::unique_ptr<Process>> jobs) {
    std::vector<json> results;
    for (const auto& job : jobs) {
      const Finished finished = Finish(*job, 60);
      EXPECT_EQ(finished.code, 0) << finished.errors;
      const json document = finished.code == 0 ? finished.document() : json();
      results.push_back({document["ids"], document["logprobs"]});
    }
    return results;
  }

  std::optional<testing::TestNetwork> network_;
  std::unique_ptr<Process> coordinator_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::string address_;
  std::vector<json> right_;
};

// The link between the workers, or the cable of a host, in turns.
TEST_F(PartitionTest, JobsGoOnWhenTheLinkIsBack) {
  for (int round = 0; round < kPartitionRounds && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const json epoch = Status()["epoch"];
    auto jobs = StartJobs();
    ASSERT_TRUE(WaitUntil(20, [this] {
      return Status()["requests"]["running"].get<int>() > kPartitionJobs / 2;
    }));
    const bool cable = round % 2 == 1;
    if (cable) {
      network_->LinkDown(2);
    } else {
      network_->Partition(1, 2);
    }
    EXPECT_TRUE(WaitUntil(30, [this] { return Status()["state"] != "ready"; }));
    if (cable) {
      network_->LinkUp(2);
    } else {
      network_->HealAll();
    }
    EXPECT_EQ(Results(std::move(jobs)), right_) << coordinator_->errors();
    EXPECT_GT(Status()["epoch"], epoch);
  }
}

}  // namespace
}  // namespace ringfleet::integration
