// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/http_crowd.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace ringfleet::testing {
namespace {

constexpr int kMaxEvents = 512;

}  // namespace

HttpCrowd::HttpCrowd(int port) : port_(port), epoll_(epoll_create1(0)) {
  RF_CHECK(epoll_.fd() >= 0);
}

void HttpCrowd::SetEvents(size_t number, const Client& client, int operation) {
  epoll_event event = {};
  event.events = EPOLLIN | (client.unsent.empty() ? 0U : EPOLLOUT);
  event.data.u64 = number;
  RF_CHECK(epoll_ctl(epoll_.fd(), operation, client.socket.fd(), &event) == 0);
}

size_t HttpCrowd::Connect(std::string bytes) {
  const size_t number = next_++;
  Client& client = clients_[number];
  client.socket = Socket(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  RF_CHECK(client.socket.fd() >= 0);
  SetNoDelay(client.socket.fd());
  client.unsent = std::move(bytes);
  const sockaddr_in address = ParseAddress(absl::StrCat("127.0.0.1:", port_));
  // A refusal comes with Poll.
  RF_CHECK(connect(client.socket.fd(),
                   reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)) == 0 ||
           errno == EINPROGRESS || errno == ECONNREFUSED);
  SetEvents(number, client, EPOLL_CTL_ADD);
  return number;
}

void HttpCrowd::Send(size_t number, absl::string_view bytes) {
  Client& client = clients_.at(number);
  if (client.ended || bytes.empty()) return;
  absl::StrAppend(&client.unsent, bytes);
  SetEvents(number, client, EPOLL_CTL_MOD);
}

void HttpCrowd::Leave(size_t number, bool reset) {
  const Client& client = clients_.at(number);
  if (reset) {
    const linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(client.socket.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  clients_.erase(number);
}

bool HttpCrowd::SendSome(Client& client) {
  const ssize_t sent = send(client.socket.fd(), client.unsent.data(),
                            client.unsent.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  client.unsent.erase(0, static_cast<size_t>(sent));
  return true;
}

bool HttpCrowd::ReceiveAll(Client& client, bool* news) {
  char buffer[1 << 14];
  while (true) {
    const ssize_t got = recv(client.socket.fd(), buffer, sizeof(buffer), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    client.received.append(buffer, static_cast<size_t>(got));
    *news = true;
  }
}

std::vector<size_t> HttpCrowd::Poll(int wait_ms) {
  epoll_event events[kMaxEvents];
  const int count = epoll_wait(epoll_.fd(), events, kMaxEvents, wait_ms);
  RF_CHECK(count >= 0 || errno == EINTR);
  std::vector<size_t> changed;
  for (int i = 0; i < count; ++i) {
    const size_t number = events[i].data.u64;
    Client& client = clients_.at(number);
    bool news = false;
    // Bytes that the server sent before its end are received first.
    bool lives = ReceiveAll(client, &news);
    if (lives && (events[i].events & EPOLLOUT) != 0) lives = SendSome(client);
    if (lives && (events[i].events & (EPOLLERR | EPOLLHUP)) != 0) lives = false;
    if (!lives) {
      client.ended = true;
      epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, client.socket.fd(), nullptr);
    } else if ((events[i].events & EPOLLOUT) != 0 && client.unsent.empty()) {
      SetEvents(number, client, EPOLL_CTL_MOD);
    }
    if (news || !lives) changed.push_back(number);
  }
  return changed;
}

size_t HttpCrowd::open() const {
  return static_cast<size_t>(
      std::count_if(clients_.begin(), clients_.end(),
                    [](const auto& entry) { return !entry.second.ended; }));
}

}  // namespace ringfleet::testing
