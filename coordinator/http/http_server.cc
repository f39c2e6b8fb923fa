// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/listening_sockets.h"
#include "coordinator/http/http_connection.h"
#include "kernels/check.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// A process without descriptors tries again after this time.
constexpr std::chrono::milliseconds kAcceptPause{100};

size_t MostConnections() {
  rlimit limit = {};
  RF_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return std::max<size_t>(limit.rlim_cur / 2, 8);
}

class Loop final : public HttpLoop {
 public:
  explicit Loop(asio::io_context* io) : io_(io) {}

  void Post(std::function<void()> function) override {
    {
      MutexLock lock(&mu_);
      functions_.push_back(std::move(function));
      if (functions_.size() > 1) return;  // Woken already.
    }
    asio::post(*io_, [this] { RunAll(); });
  }

 private:
  void RunAll() {
    std::vector<std::function<void()>> functions;
    {
      MutexLock lock(&mu_);
      functions.swap(functions_);
    }
    for (const auto& function : functions) function();
  }

  asio::io_context* const io_;
  Mutex mu_;
  std::vector<std::function<void()>> functions_ ABSL_GUARDED_BY(mu_);
};

class AsioHttpServer final : public HttpServer {
 public:
  AsioHttpServer(const HttpLimits& limits, std::function<TlsContext()> tls)
      : tls_(std::move(tls)), guard_(io_.get_executor()), loop_(&io_) {
    connections_.limits = limits;
    if (limits.connections == 0) {
      connections_.limits.connections = MostConnections();
    }
  }
  ~AsioHttpServer() override { Stop(absl::ZeroDuration()); }

  absl::Status Open(const cluster::ServerAddress& address) {
    RF_ASSIGN_OR_RETURN(const cluster::ListeningSockets sockets,
                        cluster::ListeningSockets::Open(address));
    port_ = sockets.port();
    for (const int fd : sockets.fds()) {
      const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
      sockaddr_storage name = {};
      socklen_t length = sizeof(name);
      if (own < 0 ||
          getsockname(own, reinterpret_cast<sockaddr*>(&name), &length) != 0) {
        if (own >= 0) close(own);
        return absl::ResourceExhaustedError(
            absl::StrCat("cannot listen for HTTP: ", std::strerror(errno)));
      }
      acceptors_.push_back(std::make_unique<Acceptor>(io_));
      acceptors_.back()->socket.assign(
          name.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), own);
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  HttpLoop* loop() override { return &loop_; }

  void Run(HttpHandler* handler) override {
    connections_.handler = handler;
    for (const auto& acceptor : acceptors_) Accept(acceptor.get());
    thread_ = std::thread([this] { io_.run(); });
  }

  void CloseAfterResponses() override {
    asio::post(io_, [this] { connections_.close_after_responses = true; });
  }

  void Stop(absl::Duration grace) override {
    if (!thread_.joinable()) return;
    asio::post(io_, [this, grace] {
      connections_.close_after_responses = true;
      for (const auto& acceptor : acceptors_) StopAccepting(acceptor.get());
      // Connections that were accepted just now are told of before this runs.
      asio::post(io_, [this, grace] {
        CloseAllWhenSent(/*await_requests=*/true);
        AwaitEnd(cluster::Deadline::After(grace),
                 cluster::Deadline::After(
                     std::min(grace, connections_.limits.last_request)));
      });
    });
    thread_.join();
  }

 private:
  struct Acceptor {
    explicit Acceptor(asio::io_context& io) : socket(io), pause(io) {}
    tcp::acceptor socket;
    asio::steady_timer pause;
  };

  void Accept(Acceptor* from) {
    from->socket.async_accept(
        [this, from](const boost::system::error_code& error,
                     tcp::socket socket) {
          if (!error) Begin(std::move(socket));
          if (!from->socket.is_open()) return;
          if (error) {
            MakeRoom();
            from->pause.expires_after(kAcceptPause);
            from->pause.async_wait(
                [this, from](const boost::system::error_code& stopped) {
                  if (!stopped) Accept(from);
                });
            return;
          }
          Accept(from);
        });
  }

  void Begin(tcp::socket socket) {
    if (connections_.all.size() >= connections_.limits.connections &&
        !MakeRoom()) {
      socket.close();  // All connections make responses.
      return;
    }
    HttpConnection::Start(&connections_, std::move(socket),
                          tls_ == nullptr ? nullptr : tls_());
  }

  // Takes the connections that clients have made already, and closes `from`.
  void StopAccepting(Acceptor* from) {
    boost::system::error_code error;
    from->socket.non_blocking(true, error);
    while (!error) {
      tcp::socket socket = from->socket.accept(io_, error);
      if (!error) Begin(std::move(socket));
    }
    from->socket.close(error);
    from->pause.cancel();
  }

  void CloseAllWhenSent(bool await_requests) {
    const auto all = connections_.all;
    for (const auto& connection : all) {
      connection->CloseWhenSent(await_requests);
    }
  }

  // Closes the connection that has waited longest for its client.
  bool MakeRoom() {
    if (connections_.waiting.empty()) return false;
    connections_.waiting.front()->Close("too many connections");
    return true;
  }

  // Stops the loop when nothing is left to send. `requests`: until then
  // connections wait for requests that are on their way.
  void AwaitEnd(cluster::Deadline deadline, cluster::Deadline requests) {
    if (connections_.all.empty() || deadline.Expired()) {
      const auto all = connections_.all;
      for (const auto& connection : all) connection->Close("the server ends");
      guard_.reset();  // Pending operations are cancelled.
      return;
    }
    if (requests.Expired()) CloseAllWhenSent(/*await_requests=*/false);
    const auto timer = std::make_shared<asio::steady_timer>(io_);
    timer->expires_after(std::chrono::milliseconds(5));
    timer->async_wait(
        [this, timer, deadline, requests](const boost::system::error_code&) {
          AwaitEnd(deadline, requests);
        });
  }

  const std::function<TlsContext()> tls_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  Loop loop_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  int port_ = 0;
  HttpConnections connections_;  // For the thread.
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(
    const cluster::ServerAddress& address, const HttpLimits& limits,
    std::function<TlsContext()> tls) {
  auto server = std::make_unique<AsioHttpServer>(limits, std::move(tls));
  RF_RETURN_IF_ERROR(server->Open(address));
  return server;
}

}  // namespace ringfleet::coordinator
