// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/acceptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/mutex.h"
#include "tests/testing/sockets.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::ConnectTo;
using ::ringfleet::testing::Socket;
using ::ringfleet::testing::Soon;

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Takes the connections of an acceptor on a free port.
class Port {
 public:
  explicit Port(const Acceptor::Options& options) {
    auto sockets = ListeningSockets::Open({"127.0.0.1", 0});
    RF_CHECK(sockets.ok());
    address_ = absl::StrCat("127.0.0.1:", sockets->port());
    auto acceptor =
        Acceptor::Start(*std::move(sockets), options, [this](int fd) {
          MutexLock lock(&mu_);
          taken_.emplace_back(fd);
          changed_.NotifyAll();
        });
    RF_CHECK(acceptor.ok());
    acceptor_ = *std::move(acceptor);
  }

  const std::string& address() const { return address_; }

  // Waits until `count` connections were handed over. Returns the byte behind
  // the preface of the last one, or 0.
  char FirstByte(size_t count) {
    const Deadline deadline = Soon();
    MutexLock lock(&mu_);
    while (taken_.size() < count && changed_.WaitUntil(&mu_, deadline.when())) {
    }
    if (taken_.size() != count) return 0;
    char bytes[kPreface.size() + 1] = {};
    return recv(taken_.back().fd(), bytes, sizeof(bytes), MSG_WAITALL) ==
                   static_cast<ssize_t>(sizeof(bytes))
               ? bytes[kPreface.size()]
               : '\0';
  }

 private:
  std::string address_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Socket> taken_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Acceptor> acceptor_;
};

// Waits for the other end to close.
bool IsClosed(const Socket& socket) {
  pollfd closed = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
  char byte;
  return poll(&closed, 1, 60'000) == 1 &&
         recv(socket.fd(), &byte, 1, MSG_DONTWAIT) <= 0;
}

void Send(const Socket& socket, absl::string_view bytes) {
  EXPECT_EQ(send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

// Begins as a client of HTTP/2 does.
void Say(const Socket& socket, char byte) {
  Send(socket, absl::StrCat(kPreface, absl::string_view(&byte, 1)));
}

void ConnectSocket(const Socket& socket, const std::string& to) {
  const sockaddr_in address = testing::ParseAddress(to);
  RF_CHECK(connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)) == 0);
}

int LowestFreeDescriptor() {
  const int fd = dup(STDERR_FILENO);
  close(fd);
  return fd;
}

TEST(AcceptorTest, HandsOverWhoSpeaks) {
  Port port({.max_descriptors = INT_MAX});
  const Socket silent = ConnectTo(port.address());
  const Socket client = ConnectTo(port.address());
  Say(client, 'a');
  EXPECT_EQ(port.FirstByte(1), 'a');
  Say(silent, 'b');
  EXPECT_EQ(port.FirstByte(2), 'b');
}

TEST(AcceptorTest, WaitsForTheWholePreface) {
  Port port({.max_descriptors = INT_MAX});
  const Socket slow = ConnectTo(port.address());
  Send(slow, kPreface.substr(0, 5));
  const Socket client = ConnectTo(port.address());
  Say(client, 'a');
  EXPECT_EQ(port.FirstByte(1), 'a');
  Send(slow, absl::StrCat(kPreface.substr(5), "b"));
  EXPECT_EQ(port.FirstByte(2), 'b');
}

TEST(AcceptorTest, ClosesWhoSpeaksAnotherProtocol) {
  Port port({.max_descriptors = INT_MAX, .silence = absl::Hours(1)});
  for (const char* words : {"GET / HTTP/1.1\r\n\r\n", "S", "PRI * HTTP/1"}) {
    const Socket stranger = ConnectTo(port.address());
    Send(stranger, words);
    EXPECT_TRUE(IsClosed(stranger)) << words;
  }
}

TEST(AcceptorTest, ClosesWhoSaysNothing) {
  Port port({.max_descriptors = INT_MAX, .silence = absl::Milliseconds(10)});
  EXPECT_TRUE(IsClosed(ConnectTo(port.address())));
}

TEST(AcceptorTest, SilentConnectionsMakeWayForOthers) {
  // The clients' descriptors are taken before the bound is set.
  std::vector<Socket> silent;
  for (int i = 0; i < 100; ++i) {
    silent.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  const Socket client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int bound = LowestFreeDescriptor() + 30;
  Port port({.max_descriptors = bound, .silence = absl::Hours(1)});
  for (const Socket& socket : silent) ConnectSocket(socket, port.address());
  ConnectSocket(client, port.address());
  Say(client, 'a');
  EXPECT_EQ(port.FirstByte(1), 'a');
  EXPECT_TRUE(IsClosed(silent.front()));
  EXPECT_LE(LowestFreeDescriptor(), bound);
  EXPECT_LT(fcntl(bound + 1, F_GETFD), 0);
  Say(silent.back(), 'b');
  EXPECT_EQ(port.FirstByte(2), 'b');
}

TEST(AcceptorTest, BeyondTheBoundNewConnectionsAreClosed) {
  Port port({.max_descriptors = 0});
  const Socket client = ConnectTo(port.address());
  EXPECT_TRUE(IsClosed(client));
}

// In a process of its own, whose limit it lowers.
TEST(AcceptorDeathTest, AcceptsAgainWhenDescriptorsAreFree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Port port({.max_descriptors = INT_MAX});
        Socket first = ConnectTo(port.address());
        Say(first, 'a');
        RF_CHECK(port.FirstByte(1) == 'a');
        Socket second(socket(AF_INET, SOCK_STREAM, 0));
        rlimit limit;
        limit.rlim_cur = limit.rlim_max = LowestFreeDescriptor();
        RF_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        RF_CHECK(LowestFreeDescriptor() < 0);
        ConnectSocket(second, port.address());
        Say(second, 'b');
        // The acceptor tries and finds none, several times.
        poll(nullptr, 0, 300);
        first = Socket();
        exit(port.FirstByte(2) == 'b' ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "Too many open files");
}

TEST(AcceptorTest, KeepsDescriptorsForOthers) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto of = [&](rlim_t files) {
    rlimit limit = before;
    limit.rlim_cur = files;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return Acceptor::MaxDescriptors();
  };
  EXPECT_EQ(of(64), 32);
  EXPECT_EQ(of(192), 128);
  EXPECT_EQ(of(1024), 896);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace ringfleet::cluster
