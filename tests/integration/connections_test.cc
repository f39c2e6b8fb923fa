// SPDX-License-Identifier: Apache-2.0
// Daemons whose ports strangers connect to: port scanners, load balancers,
// monitoring.
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/open_files.h"
#include "tests/testing/sockets.h"

namespace ringfleet::integration {
namespace {

constexpr int kOpenFiles = 256;  // Of a daemon.
constexpr int kStrangers = 600;

// With the usual limit, connections of a coordinator alone.
constexpr int kUsualOpenFiles = 1024;
constexpr int kManyStrangers = 3000;

class ConnectionsTest : public HandFleet {
 protected:
  void StartSmallFleet(int coordinators_files = kOpenFiles) {
    const RunOptions few = {.open_files = kOpenFiles};
    StartCoordinator(2, {}, {.open_files = coordinators_files});
    StartWorker(0, few);
    StartWorker(1, few);
    const json state = WaitForState("ready");
    ASSERT_EQ(state["state"], "ready");
    worker_ = state["workers"][0]["address"];
  }

  void ExpectTokens() {
    const Finished finished = Cli({"generate", "--cluster", cluster(), "-p",
                                   "x", "-n", "3", "--ignore-eos", "--json"});
    EXPECT_EQ(finished.code, 0) << finished.errors;
  }

  // Connects many times. Every connection first says `words`.
  void Connect(const std::string& address, const std::string& words = "",
               int strangers = kStrangers) {
    for (int i = 0; i < strangers; ++i) {
      strangers_.push_back(testing::ConnectTo(address));
      send(strangers_.back().fd(), words.data(), words.size(), MSG_NOSIGNAL);
    }
  }

  std::string coordinator() const {
    return "127.0.0.1:" + std::to_string(port());
  }

  std::string worker_;
  std::vector<testing::Socket> strangers_;
  const testing::RaisedOpenFiles open_files_;
};

TEST_F(ConnectionsTest, SilentStrangersTakeNoDescriptorsThatAreNeeded) {
  ASSERT_NO_FATAL_FAILURE(StartSmallFleet());
  Connect(coordinator());
  Connect(worker_);
  ExpectTokens();
  EXPECT_EQ(Status()["state"], "ready");
  // The leases are renewed beside them.
  EXPECT_FALSE(WaitUntil(3, [this] { return Status()["state"] != "ready"; }));
  strangers_.clear();
  ExpectTokens();
  // The next epoch needs connections between all of them.
  workers_[1]->Signal(SIGKILL);
  workers_[1]->Wait(5);
  workers_.erase(1);
  StartWorker(1, {.open_files = kOpenFiles});
  WaitForState("ready");
  ExpectTokens();
  for (Process* process : {workers_[0].get(), coordinator_.get()}) {
    process->Signal(SIGTERM);
    EXPECT_EQ(process->Wait(10), 0) << process->errors();
  }
}

TEST_F(ConnectionsTest, StrangersOfAnotherProtocolAreSentAway) {
  ASSERT_NO_FATAL_FAILURE(StartSmallFleet());
  Connect(coordinator(), "GET / HTTP/1.1\r\n\r\n");
  Connect(worker_, "SSH-2.0-OpenSSH_9.2\r\n");
  // A call beside hundreds of strangers may be sent away with them.
  EXPECT_TRUE(WaitUntil(30, [this] {
    return Cli({"generate", "--cluster", cluster(), "-p", "x", "-n", "3",
                "--ignore-eos", "--json"})
               .code == 0;
  }));
}

TEST_F(ConnectionsTest, ThreeThousandSilentStrangersKeepNobodyOut) {
  if (!open_files_.Allows(kManyStrangers + 100)) {
    GTEST_SKIP() << "needs a limit of open files above " << kManyStrangers;
  }
  ASSERT_NO_FATAL_FAILURE(StartSmallFleet(kUsualOpenFiles));
  const json epoch = Status()["epoch"];
  Connect(coordinator(), "", kManyStrangers);
  ExpectTokens();
  EXPECT_EQ(Status()["epoch"], epoch);
  strangers_.clear();
  ExpectTokens();
  EXPECT_EQ(Status()["epoch"], epoch);
}

// Idle callers, as far as the coordinator can tell: they begin as HTTP/2 does.
// They may keep others out as long as they are there, but not the workers.
TEST_F(ConnectionsTest, ThreeThousandIdleCallersLeaveTheFleetUp) {
  if (!open_files_.Allows(kManyStrangers + 100)) {
    GTEST_SKIP() << "needs a limit of open files above " << kManyStrangers;
  }
  ASSERT_NO_FATAL_FAILURE(StartSmallFleet(kUsualOpenFiles));
  const json epoch = Status()["epoch"];
  const std::string empty_settings("\0\0\0\4\0\0\0\0\0", 9);
  Connect(coordinator(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings,
          kManyStrangers);
  // Longer than a worker waits for the answer to a heartbeat.
  EXPECT_FALSE(WaitUntil(6 / testing::kSlowdown, [this] {
    return !workers_[0]->Running() || !workers_[1]->Running();
  }));
  strangers_.clear();
  EXPECT_TRUE(WaitUntil(30, [this] {
    return Cli({"status", "--cluster", cluster()}).code == 0;
  }));
  ExpectTokens();
  EXPECT_EQ(Status()["epoch"], epoch);
  for (const auto& [rank, worker] : workers_) {
    EXPECT_THAT(worker->errors(), ::testing::Not(HasSubstr("trying again")));
  }
}

}  // namespace
}  // namespace ringfleet::integration
