// SPDX-License-Identifier: Apache-2.0
// The delay relay carries every byte, in order, and late by its delay.
#include "tests/testing/relay.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/process.h"
#include "tests/testing/relay_mesh.h"
#include "tests/testing/sockets.h"

namespace ringfleet::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A connection through a relay on loopback.
struct Relayed {
  explicit Relayed(absl::Duration delay, int buffer_mib = 64)
      : listener(BoundSocket("127.0.0.1:0", SOCK_STREAM)),
        relay({.routes = {{"127.0.0.1:0", LocalAddress(listener)}},
               .delay = delay,
               .buffer_mib = buffer_mib}),
        client(ConnectTo(relay.addresses()[0])),
        server(AcceptFrom(listener)) {}

  const Socket listener;
  RelayProcess relay;
  Socket client, server;
};

std::vector<char> Pattern(size_t size) {
  std::vector<char> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * i >> 3);
  return bytes;
}

void SendAll(const Socket& socket, const std::vector<char>& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t size = send(socket.fd(), bytes.data() + sent,
                              bytes.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) return;
    sent += size;
  }
}

// Reads until the peer closes.
std::vector<char> ReceiveAll(const Socket& socket) {
  std::vector<char> bytes, buffer(1 << 16);
  ssize_t size;
  while ((size = read(socket.fd(), buffer.data(), buffer.size())) > 0) {
    bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + size);
  }
  return bytes;
}

// How long a byte takes from one socket to the other.
absl::Duration OneWay(const Socket& from, const Socket& to) {
  const Clock::time_point start = Clock::now();
  char byte = 1;
  EXPECT_EQ(write(from.fd(), &byte, 1), 1);
  EXPECT_EQ(read(to.fd(), &byte, 1), 1);
  return absl::FromChrono(Clock::now() - start);
}

// Never early; and, when the machine lets it run, soon after the delay.
TEST(RelayTest, EachByteArrivesTheDelayLaterBothWays) {
  constexpr absl::Duration kDelay = absl::Milliseconds(20);
  const Relayed connection(kDelay);
  for (const bool back : {false, true}) {
    const Socket& from = back ? connection.server : connection.client;
    const Socket& to = back ? connection.client : connection.server;
    absl::Duration best = absl::InfiniteDuration();
    for (int attempt = 0; attempt < 100; ++attempt) {
      const absl::Duration took = OneWay(from, to);
      EXPECT_GE(took, kDelay);
      best = std::min(best, took);
      if (best <= kDelay + absl::Milliseconds(2)) break;
    }
    EXPECT_LE(best, kDelay + absl::Milliseconds(2));
  }
}

// Bytes of several connections wait together, not one after the other.
TEST(RelayTest, DelaysDoNotAddUp) {
  constexpr absl::Duration kDelay = absl::Milliseconds(200);
  constexpr int kConnections = 10;
  const Socket listener = BoundSocket("127.0.0.1:0", SOCK_STREAM);
  const RelayProcess relay(
      {.routes = {{"127.0.0.1:0", LocalAddress(listener)}}, .delay = kDelay});
  std::vector<Socket> clients, servers;
  for (int i = 0; i < kConnections; ++i) {
    clients.push_back(ConnectTo(relay.addresses()[0]));
    servers.push_back(AcceptFrom(listener));
  }
  const Clock::time_point start = Clock::now();
  char byte = 1;
  for (const Socket& client : clients) {
    ASSERT_EQ(write(client.fd(), &byte, 1), 1);
  }
  for (const Socket& server : servers) {
    ASSERT_EQ(read(server.fd(), &byte, 1), 1);
  }
  EXPECT_LT(absl::FromChrono(Clock::now() - start), kConnections * kDelay / 2);
}

TEST(RelayTest, KeepsContentAndTheEndOfEachDirection) {
  const Relayed connection(absl::Milliseconds(5));
  const std::vector<char> sent = Pattern(20'000'000);
  std::thread sender([&] {
    SendAll(connection.client, sent);
    shutdown(connection.client.fd(), SHUT_WR);
  });
  EXPECT_TRUE(ReceiveAll(connection.server) == sent);
  sender.join();
  // The other direction is still open.
  const std::vector<char> answer = Pattern(1000);
  SendAll(connection.server, answer);
  shutdown(connection.server.fd(), SHUT_WR);
  EXPECT_TRUE(ReceiveAll(connection.client) == answer);
}

TEST(RelayTest, ResetArrivesLateAsOne) {
  constexpr absl::Duration kDelay = absl::Milliseconds(20);
  Relayed connection(kDelay);
  const linger reset = {1, 0};
  setsockopt(connection.client.fd(), SOL_SOCKET, SO_LINGER, &reset,
             sizeof(reset));
  const Clock::time_point start = Clock::now();
  connection.client = Socket();
  char byte;
  EXPECT_EQ(read(connection.server.fd(), &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_GE(absl::FromChrono(Clock::now() - start), kDelay);
}

TEST(RelayTest, RefusedConnectionIsReset) {
  const RelayProcess relay(
      {.routes = {{"127.0.0.1:0", "127.0.0.1:" + std::to_string(FreePort())}},
       .delay = absl::Milliseconds(1)});
  const Socket client = ConnectTo(relay.addresses()[0]);
  char byte;
  EXPECT_EQ(read(client.fd(), &byte, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

// A reader that stops makes the sender stop, once the relay and the kernel's
// buffers are full; nothing is lost.
TEST(RelayTest, BuffersNoMoreThanItsBound) {
  constexpr size_t kMost = 64 << 20;
  const Relayed connection(absl::ZeroDuration(), /*buffer_mib=*/1);
  const std::vector<char> piece = Pattern(1 << 16);
  size_t sent = 0;
  for (pollfd wait = {connection.client.fd(), POLLOUT, 0};
       sent < kMost && poll(&wait, 1, /*timeout=*/500) == 1;) {
    const ssize_t size = send(connection.client.fd(), piece.data(),
                              piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    ASSERT_GT(size, 0);
    sent += size;
  }
  EXPECT_LT(sent, kMost);
  EXPECT_LT(StatusBytes(connection.relay.pid(), "RssAnon"), size_t{32} << 20);
  shutdown(connection.client.fd(), SHUT_WR);
  EXPECT_EQ(ReceiveAll(connection.server).size(), sent);
}

TEST(RelayMeshTest, EveryRankReachesItsPeersOverRelaysOfItsOwn) {
  constexpr int kRanks = 3;
  std::vector<Socket> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < kRanks; ++rank) {
    listeners.push_back(BoundSocket("127.0.0.1:0", SOCK_STREAM));
    addresses.push_back(LocalAddress(listeners.back()));
  }
  const RelayMesh mesh(addresses, absl::Milliseconds(1));
  std::set<std::string> relays;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<std::string>& peers = mesh.AddressesFor(rank);
    ASSERT_EQ(peers.size(), addresses.size());
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) {
        EXPECT_EQ(peers[peer], addresses[rank]);
        continue;
      }
      EXPECT_TRUE(relays.insert(peers[peer]).second);
      const Socket client = ConnectTo(peers[peer]);
      const Socket server = AcceptFrom(listeners[peer]);
      EXPECT_GE(OneWay(client, server), absl::Milliseconds(1));
    }
  }
}

// The figure that belongs beside every one that was taken through a relay. What
// the relay adds without a delay may be less than what a busy host's scheduler
// takes away again, so this asks for one.
TEST(RelayTest, SelfTestPrintsWhatTheRelayAdds) {
  const std::string capture =
      ::testing::TempDir() + "relay_test." + std::to_string(getpid());
  Process process({.command = {RINGFLEET_DELAY_RELAY_BINARY, "--self-test",
                               "--delay-us", "200"},
                   .capture = capture});
  ASSERT_EQ(process.Wait(60), 0) << process.errors();
  const auto printed = nlohmann::json::parse(process.output());
  const double direct = printed.at("direct_round_trip_p50_us");
  const double relayed = printed.at("relayed_round_trip_p50_us");
  EXPECT_EQ(printed.at("delay_us"), 200);
  EXPECT_GT(direct, 0);
  EXPECT_GE(relayed, 2 * 200);
  // Every figure is printed with one decimal.
  EXPECT_NEAR(printed.at("added_one_way_us"), (relayed - direct) / 2 - 200,
              0.11);
  std::filesystem::remove(capture + ".out");
  std::filesystem::remove(capture + ".err");
}

}  // namespace
}  // namespace ringfleet::testing
