// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/reachability_probe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

using Result = ReachabilityProbe::Result;

// A socket that listens on a port of loopback, and never accepts.
class Listener {
 public:
  explicit Listener(int backlog, int family = AF_INET)
      : socket_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    RF_CHECK(socket_ >= 0);
    sockaddr_storage storage = {};
    socklen_t size = sizeof(sockaddr_in);
    if (family == AF_INET) {
      auto* address = reinterpret_cast<sockaddr_in*>(&storage);
      address->sin_family = AF_INET;
      address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      size = sizeof(sockaddr_in6);
      auto* address = reinterpret_cast<sockaddr_in6*>(&storage);
      address->sin6_family = AF_INET6;
      address->sin6_addr = in6addr_loopback;
    }
    bound_ =
        bind(socket_, reinterpret_cast<sockaddr*>(&storage), size) == 0 &&
        listen(socket_, backlog) == 0 &&
        getsockname(socket_, reinterpret_cast<sockaddr*>(&storage), &size) == 0;
    port_ = ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
  }
  ~Listener() { Close(); }
  void Close() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }

  bool bound() const { return bound_; }
  std::string port() const { return std::to_string(port_); }

 private:
  int socket_;
  bool bound_ = false;
  int port_ = 0;
};

// Polls on the real clock until there is a result, for a minute at most.
Result Await(ReachabilityProbe& probe,
             Deadline::Clock::time_point now = Deadline::Clock::now()) {
  const Deadline give_up = Deadline::After(absl::Minutes(1));
  while (probe.Poll(now) == Result::kPending && !give_up.Expired()) {
    std::this_thread::yield();
  }
  return probe.Poll(now);
}

TEST(ReachabilityProbeTest, AListenerThatNeverAcceptsIsConnected) {
  const Listener listener(16);
  ASSERT_TRUE(listener.bound());
  for (int i = 0; i < 3; ++i) {
    ReachabilityProbe probe("127.0.0.1:" + listener.port());
    EXPECT_EQ(Await(probe), Result::kConnected);
    EXPECT_EQ(probe.Poll(), Result::kConnected);
  }
}

TEST(ReachabilityProbeTest, ConnectsOverIpv6) {
  const Listener listener(16, AF_INET6);
  if (!listener.bound()) GTEST_SKIP() << "this machine has no ::1";
  ReachabilityProbe probe("[::1]:" + listener.port());
  EXPECT_EQ(Await(probe), Result::kConnected);
}

TEST(ReachabilityProbeTest, APortThatNobodyListensOnIsRefused) {
  Listener listener(16);
  ASSERT_TRUE(listener.bound());
  listener.Close();
  ReachabilityProbe probe("127.0.0.1:" + listener.port());
  EXPECT_EQ(Await(probe), Result::kRefused);
}

// A kernel drops the first packet of a connection when the listener's queue is
// full, as a network does that loses it.
TEST(ReachabilityProbeTest, ADroppedFirstPacketIsNoAnswerAfterTheTimeout) {
  const Listener listener(0);
  ASSERT_TRUE(listener.bound());
  const std::string address = "127.0.0.1:" + listener.port();
  const auto start = Deadline::Clock::now();
  const auto before =
      start + absl::ToChronoNanoseconds(ReachabilityProbe::kTimeout -
                                        absl::Milliseconds(1));
  const auto after =
      start + absl::ToChronoNanoseconds(ReachabilityProbe::kTimeout);
  // The queue holds one connection more than its length; these fill it.
  std::vector<int> sockets;
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  target.sin_port = htons(static_cast<uint16_t>(std::stoi(listener.port())));
  for (int i = 0; i < 4; ++i) {
    sockets.push_back(
        socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    connect(sockets.back(), reinterpret_cast<sockaddr*>(&target),
            sizeof(target));
  }
  ReachabilityProbe probe(address, start);
  EXPECT_EQ(probe.Poll(before), Result::kPending);
  EXPECT_EQ(probe.Poll(after), Result::kNoAnswer);
  EXPECT_EQ(probe.Poll(after), Result::kNoAnswer);
  for (const int socket : sockets) close(socket);
}

// Which of the two answers comes depends on the machine's routes: none at all,
// or one that leads nowhere. 192.0.2.0/24 is reserved for documentation.
TEST(ReachabilityProbeTest, AnAddressWithoutAHostIsNotConnected) {
  const auto start = Deadline::Clock::now();
  ReachabilityProbe probe("192.0.2.1:9", start);
  const Result result =
      Await(probe, start + absl::ToChronoNanoseconds(absl::Seconds(1)));
  if (result == Result::kConnected) {
    GTEST_SKIP() << "something on this network answers for 192.0.2.1";
  }
  EXPECT_TRUE(result == Result::kNoAnswer || result == Result::kRefused)
      << static_cast<int>(result);
}

TEST(ReachabilityProbeTest, LooksUpNoNames) {
  for (const char* address :
       {"localhost:9", "host", "", "1.2.3.4:x", "[::1]"}) {
    ReachabilityProbe probe(address);
    EXPECT_EQ(probe.Poll(), Result::kUnknown) << address;
  }
}

TEST(ReachabilityProbeTest, HoldsNoSocketOnceSettled) {
  const Listener listener(16);
  ASSERT_TRUE(listener.bound());
  const int before = dup(0);
  close(before);
  std::vector<std::unique_ptr<ReachabilityProbe>> probes;
  for (int i = 0; i < 8; ++i) {
    probes.push_back(
        std::make_unique<ReachabilityProbe>("127.0.0.1:" + listener.port()));
    EXPECT_EQ(Await(*probes.back()), Result::kConnected);
  }
  const int after = dup(0);
  close(after);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace ringfleet::cluster
