// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/congestion_control.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cluster/rpc/channel.h"
#include "cluster/rpc/server.h"
#include "kernels/check.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(CongestionControlTest, OnlyBbrIsReplaced) {
  EXPECT_THAT(CongestionControls("bbr", ""), ElementsAre("cubic", "reno"));
  EXPECT_THAT(CongestionControls("bbr2", ""), ElementsAre("cubic", "reno"));
  EXPECT_THAT(CongestionControls("cubic", ""), IsEmpty());
  EXPECT_THAT(CongestionControls("dctcp", ""), IsEmpty());
}

TEST(CongestionControlTest, TheEnvironmentHasTheLastWord) {
  EXPECT_THAT(CongestionControls("bbr", "system"), IsEmpty());
  EXPECT_THAT(CongestionControls("bbr", "vegas"), ElementsAre("vegas"));
  EXPECT_THAT(CongestionControls("cubic", "reno"), ElementsAre("reno"));
}

int PortOf(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_in6 address = {};  // As large as any of the two families.
  socklen_t size = sizeof(address);
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  if (address.sin6_family != AF_INET && address.sin6_family != AF_INET6) {
    return -1;
  }
  return ntohs(address.sin6_port);  // At the same place in both.
}

// Of this process's connections to or from `port`.
std::vector<std::string> ConnectionsOf(int port) {
  std::vector<std::string> found;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* const entry = readdir(folder)) {
    const int fd = atoi(entry->d_name);
    const int peer = PortOf(fd, getpeername);
    if (peer < 0 || (peer != port && PortOf(fd, getsockname) != port)) continue;
    char name[16] = {};
    socklen_t size = sizeof(name) - 1;
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
    found.push_back(name);
  }
  closedir(folder);
  return found;
}

class ConnectionsTest : public ::testing::Test {
 protected:
  ~ConnectionsTest() override {
    channel_.reset();
    server_.reset();
    unsetenv("RINGFLEET_CONGESTION_CONTROL");
  }

  // Both ends of a new connection.
  std::vector<std::string> Connect() {
    auto server = DaemonServer::Start({"127.0.0.1", 0}, false,
                                      [](grpc::ServerBuilder&) {});
    RF_CHECK(server.ok());
    server_ = *std::move(server);
    channel_ = OpenChannel(absl::StrCat("127.0.0.1:", server_->port()));
    const Deadline deadline = testing::Soon();
    EXPECT_TRUE(AwaitConnection(*channel_, deadline.Remaining()));
    return ConnectionsOf(server_->port());
  }

 private:
  std::unique_ptr<DaemonServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ConnectionsTest, NeitherEndPaces) {
  const std::vector<std::string> names = Connect();
  EXPECT_THAT(names, SizeIs(2));
  EXPECT_THAT(names, Each(Not(StartsWith("bbr"))));
}

TEST_F(ConnectionsTest, BothEndsTakeTheNamedOne) {
  setenv("RINGFLEET_CONGESTION_CONTROL", "reno", 1);  // Every kernel has it.
  EXPECT_THAT(Connect(), ElementsAre("reno", "reno"));
}

std::string Systems() {
  std::string name;
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> name;
  EXPECT_NE(name, "");
  return name;
}

TEST_F(ConnectionsTest, BothEndsKeepTheSystems) {
  setenv("RINGFLEET_CONGESTION_CONTROL", "system", 1);
  EXPECT_THAT(Connect(), ElementsAre(Systems(), Systems()));
}

// The process says so once.
TEST_F(ConnectionsTest, AnUnknownNameLeavesTheSystems) {
  setenv("RINGFLEET_CONGESTION_CONTROL", "no_such_name", 1);
  ::testing::internal::CaptureStderr();
  const std::vector<std::string> names = Connect();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("RINGFLEET_CONGESTION_CONTROL=no_such_name: not "
                        "available here"));
  EXPECT_THAT(names, ElementsAre(Systems(), Systems()));
}

}  // namespace
}  // namespace ringfleet::cluster
