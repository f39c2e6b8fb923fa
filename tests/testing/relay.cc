// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/relay.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "tests/testing/sockets.h"

namespace ringfleet::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Before bytes are due the thread asks without sleeping: waking it takes about
// this long on an idle virtual machine.
constexpr std::chrono::microseconds kSpin(50);
constexpr size_t kReadBytes = 256 << 10;

[[noreturn]] void FailRelay(const std::string& what) {
  std::fprintf(stderr, "relay: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

bool WouldBlock() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

// An event of epoll carries the address of a listener or a connection; its two
// lowest bits say which: 0 and 1 are the sides of a connection.
constexpr uint64_t kIsListener = 2;

struct Relay::Listener {
  Socket socket;
  sockaddr_in to = {};
};

// Side 0 is the one that was accepted, side 1 the one that was connected. Flow
// i carries what is read from side i to the other.
class Relay::Connection {
 public:
  Connection(int epoll, Socket accepted, const sockaddr_in& to,
             const RelayOptions& options)
      : epoll_(epoll), options_(options) {
    sides_[0].socket = std::move(accepted);
    sides_[1].socket =
        Socket(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    for (const Side& side : sides_) SetNoDelay(side.fd());
    if (connect(sides_[1].fd(), reinterpret_cast<const sockaddr*>(&to),
                sizeof(to)) != 0) {
      if (errno == EINPROGRESS) {
        connecting_ = true;
      } else {
        Broken(1);
      }
    }
    for (int side : {0, 1}) Watch(side);
  }

  bool done() const { return flows_[0].ended && flows_[1].ended; }

  // Takes what the sockets report.
  void OnEvents(int side, uint32_t events) {
    if (side == 1 && connecting_) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(sides_[1].fd(), SOL_SOCKET, SO_ERROR, &error, &size);
      connecting_ = false;
      if (error != 0) Broken(1);
    }
    if ((events & (EPOLLERR | EPOLLHUP)) != 0 || !full(side)) Read(side);
    if ((events & EPOLLOUT) != 0) flows_[1 - side].blocked = false;
  }

  // Passes on what is due; afterwards sockets report what is of use.
  void Deliver(Clock::time_point at) {
    for (int side : {0, 1}) {
      while (!done() && due(side) <= at && DeliverFront(side)) {
      }
    }
    for (int side : {0, 1}) Watch(side);
  }

  // When the first byte is to be passed on; never if its socket is not ready.
  Clock::time_point next_due() const { return std::min(due(0), due(1)); }

 private:
  enum class End { kNone, kClose, kReset };
  struct Block {
    Clock::time_point due;
    std::vector<char> bytes;
    End end = End::kNone;  // Instead of bytes.
  };
  struct Flow {
    std::deque<Block> blocks;
    size_t bytes = 0;       // In the blocks.
    size_t written = 0;     // Of the first block.
    bool read_all = false;  // Nothing is read any more.
    bool blocked = false;   // Its target takes no bytes for the moment.
    bool broken = false;    // Its target is gone: bytes are thrown away.
    bool ended = false;     // The end was passed on.
  };
  struct Side {
    Socket socket;
    int fd() const { return socket.fd(); }
    uint32_t watched = 0;
  };

  bool full(int side) const {
    return flows_[side].bytes >= options_.buffer_bytes;
  }

  Clock::time_point due(int side) const {
    const Flow& flow = flows_[side];
    const bool waits = flow.blocked || (side == 0 && connecting_);
    return flow.blocks.empty() || waits ? Clock::time_point::max()
                                        : flow.blocks.front().due;
  }

  void Push(int side, std::vector<char> bytes, End end) {
    Flow& flow = flows_[side];
    flow.bytes += bytes.size();
    flow.blocks.push_back(
        {Clock::now() + options_.delay, std::move(bytes), end});
    if (end != End::kNone) flow.read_all = true;
  }

  void Read(int side) {
    static std::vector<char> buffer(kReadBytes);
    Flow& flow = flows_[side];
    if (flow.read_all) return;
    const ssize_t size = read(sides_[side].fd(), buffer.data(), buffer.size());
    if (size > 0) {
      if (!flow.broken) {
        Push(side, {buffer.begin(), buffer.begin() + size}, End::kNone);
      }
    } else if (size == 0) {
      Push(side, {}, End::kClose);
    } else if (!WouldBlock()) {
      Broken(side);
    }
  }

  // A socket has failed: the other side hears of it as late as of its bytes.
  void Broken(int side) {
    Flow& to = flows_[1 - side];
    to.broken = true;
    to.blocked = false;
    to.blocks.clear();
    to.bytes = to.written = 0;
    if (flows_[side].broken) {
      flows_[0].ended = flows_[1].ended = true;  // Nobody is left to tell.
    } else {
      Push(side, {}, End::kReset);
    }
  }

  // False: the target takes no more for the moment.
  bool DeliverFront(int side) {
    Flow& flow = flows_[side];
    const int target = sides_[1 - side].fd();
    Block& block = flow.blocks.front();
    if (block.end == End::kReset) {
      const linger reset = {1, 0};  // close() then sends one.
      setsockopt(target, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      flows_[0].ended = flows_[1].ended = true;
      return false;
    }
    if (block.end == End::kClose) {
      shutdown(target, SHUT_WR);
      flow.ended = true;
      flow.blocks.pop_front();
      return true;
    }
    const ssize_t sent = send(target, block.bytes.data() + flow.written,
                              block.bytes.size() - flow.written, MSG_NOSIGNAL);
    if (sent < 0) {
      if (WouldBlock()) {
        flow.blocked = true;
      } else {
        Broken(1 - side);
      }
      return false;
    }
    flow.written += sent;
    if (flow.written == block.bytes.size()) {
      flow.bytes -= block.bytes.size();
      flow.written = 0;
      flow.blocks.pop_front();
    }
    return true;
  }

  // Asks epoll for what can be used. A socket that has nothing to say any more
  // is left out, because its hang-up would be reported for ever.
  void Watch(int side) {
    const Flow& from = flows_[side];
    const Flow& to = flows_[1 - side];
    uint32_t events = 0;
    if (!from.read_all && !full(side)) events |= EPOLLIN;
    if (to.blocked || (side == 1 && connecting_)) events |= EPOLLOUT;
    Side& at = sides_[side];
    if (events == at.watched) return;
    epoll_event event = {};
    event.events = events;
    event.data.u64 = reinterpret_cast<uint64_t>(this) | (side == 1 ? 1 : 0);
    const int change = at.watched == 0 ? EPOLL_CTL_ADD
                       : events == 0   ? EPOLL_CTL_DEL
                                       : EPOLL_CTL_MOD;
    if (epoll_ctl(epoll_, change, at.fd(), &event) != 0) FailRelay("epoll_ctl");
    at.watched = events;
  }

  const int epoll_;
  const RelayOptions& options_;
  Side sides_[2];
  Flow flows_[2];
  bool connecting_ = false;
};

Relay::Relay(RelayOptions options) : options_(std::move(options)) {
  // Sleeping is late by the slack, 50 us unless it is set.
  prctl(PR_SET_TIMERSLACK, 1);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) FailRelay("epoll_create1");
  for (const RelayRoute& route : options_.routes) {
    auto listener = std::make_unique<Listener>();
    listener->socket = BoundSocket(route.listen, SOCK_STREAM | SOCK_NONBLOCK);
    listener->to = ParseAddress(route.to);
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = reinterpret_cast<uint64_t>(listener.get()) | kIsListener;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, listener->socket.fd(), &event) != 0) {
      FailRelay("epoll_ctl");
    }
    listeners_.push_back(std::move(listener));
  }
}

Relay::~Relay() {
  connections_.clear();
  listeners_.clear();
  close(epoll_);
}

std::vector<std::string> Relay::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& listener : listeners_) {
    addresses.push_back(LocalAddress(listener->socket));
  }
  return addresses;
}

void Relay::Accept(const Listener& listener) {
  Socket accepted(accept4(listener.socket.fd(), nullptr, nullptr,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.fd() < 0) return;  // It has gone again.
  connections_.push_back(std::make_unique<Connection>(
      epoll_, std::move(accepted), listener.to, options_));
}

void Relay::Run() {
  for (;;) {
    const Clock::time_point at = Clock::now();
    Clock::time_point due = Clock::time_point::max();
    for (const auto& connection : connections_) {
      connection->Deliver(at);
      if (!connection->done()) due = std::min(due, connection->next_due());
    }
    std::erase_if(connections_,
                  [](const auto& connection) { return connection->done(); });

    timespec timeout = {};
    const timespec* limit = nullptr;
    if (due != Clock::time_point::max()) {
      const auto left = std::max<std::chrono::nanoseconds>(
          due - kSpin - Clock::now(), std::chrono::nanoseconds(0));
      timeout.tv_sec = left.count() / 1'000'000'000;
      timeout.tv_nsec = left.count() % 1'000'000'000;
      limit = &timeout;
    }
    epoll_event events[64];
    const int count = epoll_pwait2(epoll_, events, 64, limit, nullptr);
    if (count < 0 && errno != EINTR) FailRelay("epoll_pwait2");
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64 & 3;
      void* const target = reinterpret_cast<void*>(events[i].data.u64 - tag);
      if (tag == kIsListener) {
        Accept(*static_cast<Listener*>(target));
      } else {
        static_cast<Connection*>(target)->OnEvents(static_cast<int>(tag),
                                                   events[i].events);
      }
    }
  }
}

}  // namespace ringfleet::testing
