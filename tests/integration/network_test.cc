// SPDX-License-Identifier: Apache-2.0
// The network that other tests build upon keeps what it promises: the rate of
// a link, faults in one direction only, and nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/process.h"
#include "tests/testing/relay_mesh.h"
#include "tests/testing/sockets.h"
#include "tests/testing/test_network.h"

namespace ringfleet::testing {
namespace {

using ::testing::AnyOf;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Clock = std::chrono::steady_clock;

// Of a full TCP segment: what tbf counts, and what it carries (1500 bytes of
// IPv4 less 20 + 32 of headers, in a frame with 14).
constexpr double kFrameBytes = 1514;
constexpr double kPayloadBytes = 1448;

class TestNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status available = TestNetwork::Available();
    if (!available.ok()) GTEST_SKIP() << available.message();
  }
};

std::vector<std::string> NamespacesWith(const std::string& prefix) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator("/run/netns", none)) {
    const std::string name = entry.path().filename().string();
    if (name.compare(0, prefix.size(), prefix) == 0) found.push_back(name);
  }
  return found;
}

bool Readable(const Socket& socket, int timeout_ms) {
  pollfd wait = {socket.fd(), POLLIN, 0};
  return poll(&wait, 1, timeout_ms) == 1;
}

Socket Listener(const TestNetwork& network, int host) {
  Socket listener;
  network.OnHost(host, [&] {
    listener = BoundSocket(network.Address(host) + ":0", SOCK_STREAM);
  });
  return listener;
}

Socket Connect(const TestNetwork& network, int host,
               const std::string& address) {
  Socket socket;
  network.OnHost(host, [&] { socket = ConnectTo(address); });
  return socket;
}

void SendZeros(const Socket& socket, size_t bytes) {
  const std::vector<char> zeros(1 << 20);
  while (bytes > 0) {
    const ssize_t sent = send(socket.fd(), zeros.data(),
                              std::min(bytes, zeros.size()), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes -= sent;
  }
}

// Reads until the peer closes.
size_t Drain(const Socket& socket) {
  std::vector<char> buffer(1 << 20);
  size_t bytes = 0;
  ssize_t size;
  while ((size = read(socket.fd(), buffer.data(), buffer.size())) > 0) {
    bytes += size;
  }
  return bytes;
}

// Gbit/s of Ethernet frames, in all, while `bytes` are sent from the first to
// the second host of each pair at the same time.
double Rate(const TestNetwork& network,
            const std::vector<std::pair<int, int>>& pairs, size_t bytes) {
  std::vector<Socket> senders, receivers;
  for (const auto& [from, to] : pairs) {
    const Socket listener = Listener(network, to);
    senders.push_back(Connect(network, from, LocalAddress(listener)));
    receivers.push_back(AcceptFrom(listener));
  }
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  std::vector<size_t> received(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    threads.emplace_back([&, i] {
      SendZeros(senders[i], bytes);
      shutdown(senders[i].fd(), SHUT_WR);
    });
    threads.emplace_back([&, i] { received[i] = Drain(receivers[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds =
      std::chrono::duration<double>(Clock::now() - start).count();
  for (const size_t size : received) EXPECT_EQ(size, bytes);
  return bytes * pairs.size() * (kFrameBytes / kPayloadBytes) * 8 / seconds /
         1e9;
}

// Datagrams between two hosts, numbered, so that a test can say which arrived
// without waiting for the one that must not.
class Datagrams {
 public:
  Datagrams(const TestNetwork& network, int from, int to) {
    network.OnHost(to, [&] {
      receiver_ = BoundSocket(network.Address(to) + ":0", SOCK_DGRAM);
    });
    network.OnHost(from, [&] {
      sender_ = BoundSocket(network.Address(from) + ":0", SOCK_DGRAM);
    });
    to_ = ParseAddress(LocalAddress(receiver_));
  }
  void Send(char number) {
    sendto(sender_.fd(), &number, 1, 0, reinterpret_cast<const sockaddr*>(&to_),
           sizeof(to_));
  }
  // The next one, or -1 after `timeout_ms`.
  int Receive(int timeout_ms = 10000) {
    char number = 0;
    if (!Readable(receiver_, timeout_ms)) return -1;
    return recv(receiver_.fd(), &number, 1, 0) == 1 ? number : -1;
  }

 private:
  Socket receiver_, sender_;
  sockaddr_in to_ = {};
};

// A link never carries more than its rate, and a bulk transfer reaches it: in
// the best of some attempts, because other work on the machine can only slow
// it.
TEST_F(TestNetworkTest, LinkCarriesItsRateEachWay) {
  constexpr double kRate = 1;  // Gbit/s
  const TestNetwork network({.hosts = 2, .gbit_per_second = kRate});
  for (const auto& [from, to] : {std::pair{0, 1}, std::pair{1, 0}}) {
    double best = 0;
    for (int attempt = 0; attempt < 100 && best < 0.9 * kRate; ++attempt) {
      const double rate = Rate(network, {{from, to}}, 20'000'000);
      EXPECT_LE(rate, 1.1 * kRate);
      best = std::max(best, rate);
    }
    EXPECT_GE(best, 0.9 * kRate);
  }
}

TEST_F(TestNetworkTest, ConnectionsOfAHostShareItsLink) {
  const TestNetwork network({.hosts = 3, .gbit_per_second = 1});
  EXPECT_LE(Rate(network, {{1, 0}, {2, 0}}, 10'000'000), 1.1);
  EXPECT_LE(Rate(network, {{0, 1}, {0, 2}}, 10'000'000), 1.1);
}

TEST_F(TestNetworkTest, CommandRunsInTheNamespaceOfItsHost) {
  const TestNetwork network({.hosts = 2});
  struct stat expected = {};
  ASSERT_EQ(stat(("/run/netns/" + network.Namespace(1)).c_str(), &expected), 0);
  const std::string capture =
      ::testing::TempDir() + "network_test." + std::to_string(getpid());
  Process process({.command = network.Command(
                       1, {"/usr/bin/readlink", "/proc/self/ns/net"}),
                   .capture = capture});
  ASSERT_EQ(process.Wait(10), 0) << process.errors();
  EXPECT_EQ(process.output(),
            "net:[" + std::to_string(expected.st_ino) + "]\n");
  std::filesystem::remove(capture + ".out");
  std::filesystem::remove(capture + ".err");
}

TEST_F(TestNetworkTest, DropLosesOneDirectionOnly) {
  TestNetwork network({.hosts = 2});
  Datagrams there(network, 1, 0), back(network, 0, 1);
  there.Send(1);
  back.Send(1);
  ASSERT_EQ(there.Receive(), 1);
  ASSERT_EQ(back.Receive(), 1);

  network.DropFrom(/*host=*/0, /*other=*/1);
  there.Send(2);
  back.Send(2);
  EXPECT_EQ(back.Receive(), 2);
  network.Heal(0, 1);
  there.Send(3);
  EXPECT_EQ(there.Receive(), 3);  // And not 2.
}

TEST_F(TestNetworkTest, PartitionLosesBothDirectionsBetweenTwoHosts) {
  TestNetwork network({.hosts = 3});
  Datagrams there(network, 1, 0), back(network, 0, 1), aside(network, 2, 0);
  network.Partition(0, 1);
  there.Send(1);
  back.Send(1);
  aside.Send(1);
  EXPECT_EQ(aside.Receive(), 1);
  network.HealAll();
  there.Send(2);
  back.Send(2);
  EXPECT_EQ(there.Receive(), 2);
  EXPECT_EQ(back.Receive(), 2);
}

TEST_F(TestNetworkTest, ResetEndsConnectionsOfThatPeer) {
  TestNetwork network({.hosts = 3});
  const Socket listener = Listener(network, 0);
  const Socket other = Connect(network, 1, LocalAddress(listener));
  const Socket other_end = AcceptFrom(listener);
  const Socket third = Connect(network, 2, LocalAddress(listener));
  const Socket third_end = AcceptFrom(listener);

  network.ResetFrom(/*host=*/0, /*other=*/1);
  char byte = 1;
  ASSERT_EQ(write(other.fd(), &byte, 1), 1);
  ASSERT_TRUE(Readable(other, 10000));
  EXPECT_EQ(read(other.fd(), &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  ASSERT_EQ(write(third.fd(), &byte, 1), 1);
  EXPECT_TRUE(Readable(third_end, 10000));
  EXPECT_FALSE(Readable(other_end, 0));
}

TEST_F(TestNetworkTest, PulledCableLosesEverythingUntilItIsBack) {
  TestNetwork network({.hosts = 2});
  Datagrams there(network, 1, 0), back(network, 0, 1);
  there.Send(1);
  back.Send(1);
  ASSERT_EQ(there.Receive(), 1);
  ASSERT_EQ(back.Receive(), 1);
  network.LinkDown(0);
  there.Send(2);
  back.Send(2);
  EXPECT_EQ(back.Receive(/*timeout_ms=*/50), -1);
  network.LinkUp(0);
  // Until the kernel has noticed, packets are still lost.
  const auto next = [](Datagrams& datagrams) {
    int number = -1;
    WaitUntil(20, [&] {
      datagrams.Send(3);
      number = datagrams.Receive(/*timeout_ms=*/20);
      return number != -1;
    });
    return number;
  };
  EXPECT_EQ(next(there), 3);  // And not 2.
  // The host without a link may have kept its own until it found the other.
  EXPECT_THAT(next(back), AnyOf(2, 3));
}

TEST_F(TestNetworkTest, LeavesNoNamespaceBehind) {
  std::string prefix;
  {
    const TestNetwork network({.hosts = 3, .gbit_per_second = 1});
    prefix = network.prefix();
    EXPECT_THAT(NamespacesWith(prefix), SizeIs(4));  // The switch is one.
  }
  EXPECT_THAT(NamespacesWith(prefix), IsEmpty());
}

TEST_F(TestNetworkTest, NextNetworkRemovesThoseOfDeadProcessesOnly) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const TestNetwork network({.hosts = 1});
    if (write(ready[1], "", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const std::string prefix = "ringfleet." + std::to_string(child) + ".";
  { const TestNetwork network({.hosts = 1}); }
  EXPECT_THAT(NamespacesWith(prefix), SizeIs(2));

  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(NamespacesWith(prefix), Not(IsEmpty()));
  { const TestNetwork network({.hosts = 1}); }
  EXPECT_THAT(NamespacesWith(prefix), IsEmpty());
  close(ready[0]);
  close(ready[1]);
}

// A link has both: the rate of tbf and the delay of a relay at its end.
TEST_F(TestNetworkTest, RelayOnAHostDelaysWhatCrossedTheLink) {
  constexpr absl::Duration kDelay = absl::Milliseconds(20);
  const TestNetwork network({.hosts = 2});
  const Socket listener = Listener(network, 1);
  const RelayProcess relay(
      {.routes = {{network.Address(1) + ":0", LocalAddress(listener)}},
       .delay = kDelay,
       .launcher = network.Command(1, {})});
  const Socket client = Connect(network, 0, relay.addresses()[0]);
  const Socket server = AcceptFrom(listener);
  const Clock::time_point start = Clock::now();
  char byte = 7;
  ASSERT_EQ(write(client.fd(), &byte, 1), 1);
  ASSERT_EQ(read(server.fd(), &byte, 1), 1);
  EXPECT_GE(absl::FromChrono(Clock::now() - start), kDelay);
  EXPECT_EQ(byte, 7);
}

}  // namespace
}  // namespace ringfleet::testing
