// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cluster/process/log.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// The first bytes of every HTTP/2 client (RFC 9113, 3.4).
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr int kMinReserve = 64;
// Connections taken from one listening socket before others get their turn.
constexpr int kMaxAccepts = 64;
constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kWarnInterval = absl::Minutes(1);

bool WantsDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

}  // namespace

int Acceptor::MaxDescriptors() {
  rlimit limit = {};
  RF_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlim_t all = std::min<rlim_t>(limit.rlim_cur, INT_MAX);
  const rlim_t reserve = std::max<rlim_t>(all / 8, kMinReserve);
  return static_cast<int>(all - std::min(reserve, all / 2));
}

Acceptor::Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(
    ListeningSockets sockets, const Options& options, HandOver hand_over) {
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(std::move(sockets), options, std::move(hand_over)));
  if (acceptor->epoll_.get() < 0 || acceptor->stop_.get() < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot accept connections: ", std::strerror(errno)));
  }
  epoll_event stop = {.events = EPOLLIN, .data = {.fd = acceptor->stop_.get()}};
  RF_CHECK(epoll_ctl(acceptor->epoll_.get(), EPOLL_CTL_ADD, stop.data.fd,
                     &stop) == 0);
  acceptor->Listen(EPOLL_CTL_ADD, EPOLLIN);
  acceptor->thread_ = std::thread([self = acceptor.get()] { self->Loop(); });
  return acceptor;
}

Acceptor::Acceptor(ListeningSockets sockets, const Options& options,
                   HandOver hand_over)
    : sockets_(std::move(sockets)),
      options_(options),
      hand_over_(std::move(hand_over)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Acceptor::~Acceptor() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  RF_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  while (CloseOldest()) {
  }
}

void Acceptor::Loop() {
  epoll_event events[64];
  while (true) {
    const int count = epoll_wait(
        epoll_.get(), events, static_cast<int>(std::size(events)), TimeoutMs());
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == stop_.get()) return;
      if (IsListening(fd)) {
        AcceptFrom(fd);
      } else {
        OnReadable(fd);
      }
    }
    CloseExpired();
    if (resumes_at_.Expired()) Resume();
  }
}

bool Acceptor::IsListening(int fd) const {
  const auto& fds = sockets_.fds();
  return std::find(fds.begin(), fds.end(), fd) != fds.end();
}

void Acceptor::AcceptFrom(int listening) {
  for (int i = 0; i < kMaxAccepts; ++i) {
    const int fd =
        accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Keep(fd);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (WantsDescriptors(errno)) {
      // Others have taken the descriptors that were free. Only at first is it
      // certain that a connection waits.
      if (i > 0) return;
      Warn(std::strerror(errno));
      if (!CloseOldest()) return Pause();
    }
    // Another error is that of one connection, which has gone.
  }
}

void Acceptor::Keep(int fd) {
  // The kernel gives the lowest free number. So the numbers below the bound are
  // all taken, and stay so: the new connection takes that of the oldest one.
  if (fd >= options_.max_descriptors) {
    Warn("the limit of open files is near");
    int taken = -1;
    if (!silent_.empty()) {
      const int oldest = Forget(silent_.begin());
      taken = dup3(fd, oldest, O_CLOEXEC);  // Closes the oldest.
      if (taken < 0) close(oldest);
    }
    close(fd);
    if (taken < 0) return;
    fd = taken;
  }
  // By edges: a part of the preface stays readable.
  epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    Warn(std::strerror(errno));
    close(fd);
    return;
  }
  silent_.push_back({fd, Deadline::After(options_.silence)});
  by_fd_[fd] = std::prev(silent_.end());
}

void Acceptor::OnReadable(int fd) {
  const auto found = by_fd_.find(fd);
  // It was closed for another one after it had become readable.
  if (found == by_fd_.end()) return;
  char bytes[kPreface.size()];
  const ssize_t size = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const absl::string_view said(bytes, std::max<ssize_t>(size, 0));
  const bool right = !said.empty() && absl::StartsWith(kPreface, said);
  if (right && said.size() < kPreface.size()) return;  // More will come.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  Forget(found->second);
  if (right) {
    hand_over_(fd);
  } else {
    close(fd);  // The client has gone, or speaks another protocol.
  }
}

int Acceptor::Forget(std::list<Silent>::iterator silent) {
  const int fd = silent->fd;
  by_fd_.erase(fd);
  silent_.erase(silent);
  return fd;
}

bool Acceptor::CloseOldest() {
  if (silent_.empty()) return false;
  close(Forget(silent_.begin()));  // Also takes it out of the epoll set.
  return true;
}

void Acceptor::CloseExpired() {
  while (!silent_.empty() && silent_.front().closed_at.Expired()) CloseOldest();
}

void Acceptor::Pause() {
  Listen(EPOLL_CTL_MOD, 0);
  resumes_at_ = Deadline::After(kPause);
}

void Acceptor::Resume() {
  resumes_at_ = Deadline::Infinite();
  Listen(EPOLL_CTL_MOD, EPOLLIN);
}

void Acceptor::Listen(int operation, uint32_t events) {
  for (const int fd : sockets_.fds()) {
    epoll_event event = {.events = events, .data = {.fd = fd}};
    RF_CHECK(epoll_ctl(epoll_.get(), operation, fd, &event) == 0);
  }
}

int Acceptor::TimeoutMs() const {
  auto next = resumes_at_.when();
  if (!silent_.empty()) {
    next = std::min(next, silent_.front().closed_at.when());
  }
  const Deadline deadline(next);
  if (deadline.infinite()) return -1;
  return static_cast<int>(
      absl::ToInt64Milliseconds(deadline.Remaining() + absl::Milliseconds(1)));
}

void Acceptor::Warn(const char* why) {
  ++unserved_;
  if (!may_warn_at_.Expired()) return;
  RF_LOG(kWarning, "connections: ", why, ": ", unserved_,
         " closed before they were served, those that say nothing first; "
         "connections may use ",
         options_.max_descriptors, " descriptors (ulimit -n)");
  may_warn_at_ = Deadline::After(kWarnInterval);
  unserved_ = 0;
}

}  // namespace ringfleet::cluster
