// SPDX-License-Identifier: Apache-2.0
// A coordinator that is killed, or stopped while another takes its place.
#include <csignal>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

const Arguments kSameBits = {"--mesh", "1x2x1",  "--dtype",
                             "f32",    "--wire", "f32"};

class RestartTest : public HandFleet {
 protected:
  json Greedy(const std::string& fleet) {
    const Finished job =
        Cli({"submit", "--cluster", fleet, "--prompt-ids", "5,6,7", "-n", "12",
             "--temp", "0", "--ignore-eos", "--json"});
    EXPECT_EQ(job.code, 0) << job.errors;
    return job.document()["ids"];
  }

  // Kills the coordinator and starts it again on its port.
  void Restart(const Arguments& settings) {
    coordinator_->Signal(SIGKILL);
    ASSERT_TRUE(coordinator_->Wait(20).has_value());
    ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, settings, {}, port()));
    ASSERT_EQ(WaitForState("ready")["state"], "ready")
        << coordinator_->errors();
  }
};

TEST_F(RestartTest, WorkersKeepTheirWeightsAndMovedExperts) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2, kSameBits));
  const json ids = Greedy(cluster());
  // One token a thousand times, so that experts are unevenly busy.
  ASSERT_EQ(Cli({"score", "--cluster", cluster(), "--ids",
                 JoinIds(json(std::vector<int>(1000, 300)))})
                .code,
            0);
  const Finished moved =
      Cli({"rebalance", "--cluster", cluster(), "--slots", "24", "-o", "json"});
  ASSERT_EQ(moved.code, 0) << moved.errors;
  ASSERT_GT(moved.document()["bytes_to_load"], 0);
  const json before = Status({"--experts"});

  ASSERT_NO_FATAL_FAILURE(Restart(kSameBits));
  json after = Status({"--experts"});
  EXPECT_GT(after["epoch"], before["epoch"]);
  for (size_t rank = 0; rank < 2; ++rank) {
    const json& worker = after["workers"][rank];
    EXPECT_EQ(worker["pid"], before["workers"][rank]["pid"]);
    EXPECT_EQ(worker["kept"], true) << worker;
    EXPECT_EQ(worker["tensor_bytes_read"], 0);
    EXPECT_EQ(worker["reload_cause"], "");
    EXPECT_EQ(worker["resident_bytes"],
              before["workers"][rank]["resident_bytes"]);
  }
  EXPECT_EQ(after["expert_balance"]["1"]["held"], 24);
  EXPECT_EQ(Greedy(cluster()), ids);

  ASSERT_NO_FATAL_FAILURE(
      Restart({"--mesh", "1x2x1", "--dtype", "bf16", "--wire", "f32"}));
  after = Status();
  for (const json& worker : after["workers"]) {
    EXPECT_EQ(worker["kept"], false);
    EXPECT_EQ(worker["reload_cause"], "dtype bf16, held f32");
  }
  EXPECT_THAT(coordinator_->errors(),
              HasSubstr("the weights load again: dtype bf16, held f32"));
}

// Workers reach their coordinator through a relay, which leads to another one
// while the first is stopped.
TEST_F(RestartTest, AStoppedCoordinatorThatWasReplacedCanDoNothing) {
  std::string address = "127.0.0.1:0";
  std::unique_ptr<Process> relay;
  const auto lead_to = [&](int port) {
    static constexpr char kWord[] = "listening ";
    relay.reset();
    relay = Start(
        RINGFLEET_DELAY_RELAY_BINARY,
        {"--listen", address, "--to", "127.0.0.1:" + std::to_string(port)});
    ASSERT_TRUE(WaitUntil(10, [&] {
      return relay->output().find('\n') != std::string::npos;
    })) << relay->errors();
    address = relay->output().substr(sizeof(kWord) - 1);
    address.pop_back();
  };
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, kSameBits));
  ASSERT_NO_FATAL_FAILURE(lead_to(port()));
  for (int rank = 0; rank < 2; ++rank) {
    workers_[rank] =
        Start(RINGFLEET_WORKER_BINARY,
              {"--rank", std::to_string(rank), "--listen", "127.0.0.1:0",
               "--threads", "1", "--coordinator", address});
  }
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  const json ids = Greedy(cluster());
  const auto job =
      StartCli({"submit", "--cluster", cluster(), "--prompt-ids", "5,6,7", "-n",
                "1000", "--temp", "0", "--ignore-eos"});
  ASSERT_TRUE(WaitUntil(20, [&] { return !job->output().empty(); }));
  coordinator_->Signal(SIGSTOP);
  const auto stopped = std::move(coordinator_);
  const int stopped_port = port();

  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, kSameBits));
  ASSERT_NO_FATAL_FAILURE(lead_to(port()));
  const json ready = WaitForState("ready", 40);
  ASSERT_EQ(ready["state"], "ready") << coordinator_->errors();
  for (const json& worker : ready["workers"]) EXPECT_EQ(worker["kept"], true);
  EXPECT_EQ(Greedy(cluster()), ids);

  stopped->Signal(SIGCONT);
  const Finished ended = Finish(*job);
  EXPECT_EQ(ended.code, 3) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("serves another coordinator"));
  const Finished told =
      Cli({"status", "--coordinator",
           "127.0.0.1:" + std::to_string(stopped_port), "-o", "json"});
  EXPECT_EQ(told.code, 3);
  EXPECT_THAT(told.document()["error"].get<std::string>(),
              HasSubstr("serves another coordinator"));
  const json now = Status();
  EXPECT_EQ(now["epoch"], ready["epoch"]);
  EXPECT_EQ(now["epochs"]["failed"], 0);
  EXPECT_EQ(Greedy(cluster()), ids);
}

}  // namespace
}  // namespace ringfleet::integration
