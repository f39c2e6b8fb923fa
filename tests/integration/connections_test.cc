// SPDX-License-Identifier: Apache-2.0
// Daemons whose ports strangers connect to: port scanners, load balancers,
// monitoring.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/sockets.h"

namespace ringfleet::integration {
namespace {

constexpr int kOpenFiles = 256;  // Of a daemon.
constexpr int kStrangers = 600;

class ConnectionsTest : public HandFleet {
 protected:
  ConnectionsTest() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit raised = before_;
    raised.rlim_cur = raised.rlim_max;
    setrlimit(RLIMIT_NOFILE, &raised);
  }
  ~ConnectionsTest() override { setrlimit(RLIMIT_NOFILE, &before_); }

  void StartSmallFleet() {
    const RunOptions few = {.open_files = kOpenFiles};
    StartCoordinator(2, {}, few);
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
  void Connect(const std::string& address, const std::string& words = "") {
    for (int i = 0; i < kStrangers; ++i) {
      strangers_.push_back(testing::ConnectTo(address));
      send(strangers_.back().fd(), words.data(), words.size(), MSG_NOSIGNAL);
    }
  }

  std::string worker_;
  std::vector<testing::Socket> strangers_;

 private:
  rlimit before_ = {};
};

TEST_F(ConnectionsTest, SilentStrangersTakeNoDescriptorsThatAreNeeded) {
  ASSERT_NO_FATAL_FAILURE(StartSmallFleet());
  Connect("127.0.0.1:" + std::to_string(port()));
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
  Connect("127.0.0.1:" + std::to_string(port()), "GET / HTTP/1.1\r\n\r\n");
  Connect(worker_, "SSH-2.0-OpenSSH_9.2\r\n");
  // A call beside hundreds of strangers may be sent away with them.
  EXPECT_TRUE(WaitUntil(30, [this] {
    return Cli({"generate", "--cluster", cluster(), "-p", "x", "-n", "3",
                "--ignore-eos", "--json"})
               .code == 0;
  }));
}

}  // namespace
}  // namespace ringfleet::integration
