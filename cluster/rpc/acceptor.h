// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a port and keeps them below the limit of open
// files. gRPC 1.51 accepts without a bound, keeps connections that say nothing
// for two minutes, and never accepts again after accept() has failed once for
// want of a descriptor (tcp_server_posix.cc, on_read).
#ifndef RINGFLEET_CLUSTER_RPC_ACCEPTOR_H_
#define RINGFLEET_CLUSTER_RPC_ACCEPTOR_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/rpc/listening_sockets.h"

namespace ringfleet::cluster {

// Has a thread of its own. A connection waits here until its client has sent
// the first 24 bytes of HTTP/2, and then goes to its new owner. A connection
// that begins in another way is closed: gRPC would keep it for its whole
// handshake time. Connections that say nothing are closed after a while, and at
// once when others need their descriptors.
class Acceptor {
 public:
  struct Options {
    // Connections beyond this number of open descriptors of the process take
    // the place of a silent one, or are closed.
    int max_descriptors = MaxDescriptors();
    absl::Duration silence = absl::Seconds(10);  // Before the 24 bytes.
  };
  // Takes a connection over, with its descriptor. Runs on the acceptor's
  // thread.
  using HandOver = std::function<void(int fd)>;

  // Returns the descriptors that connections may use: the limit of open files,
  // less an eighth of it, or 64 files. The rest is for files, connections to
  // others, and gRPC, which crashes when it gets none.
  static int MaxDescriptors();

  // RESOURCE_EXHAUSTED: no descriptor is free.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(
      ListeningSockets sockets, const Options& options, HandOver hand_over);

  ~Acceptor();  // Stops, and closes silent connections.
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  struct Silent {
    int fd;
    Deadline closed_at;
  };
  class Descriptor {
   public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }

   private:
    const int fd_;
  };

  Acceptor(ListeningSockets sockets, const Options& options,
           HandOver hand_over);

  void Loop();
  bool IsListening(int fd) const;
  void AcceptFrom(int listening);
  void Keep(int fd);
  void OnReadable(int fd);
  // Returns its descriptor, which stays open.
  int Forget(std::list<Silent>::iterator silent);
  // Closes the connection that has been silent longest. False: there is none.
  bool CloseOldest();
  void CloseExpired();
  // Stops accepting for a moment, while the system has no descriptor.
  void Pause();
  void Resume();
  void Listen(int operation, uint32_t events);
  int TimeoutMs() const;
  // Logs, at most once a minute, that connections are closed unserved.
  void Warn(const char* why);

  const ListeningSockets sockets_;
  const Options options_;
  const HandOver hand_over_;
  const Descriptor epoll_;
  const Descriptor stop_;  // Readable: the thread ends.

  // Members below belong to the thread.
  std::list<Silent> silent_;  // The oldest first.
  std::unordered_map<int, std::list<Silent>::iterator> by_fd_;
  Deadline resumes_at_ = Deadline::Infinite();  // While paused.
  Deadline may_warn_at_ = Deadline::After(absl::ZeroDuration());
  int unserved_ = 0;  // Closed since the last warning.

  std::thread thread_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_ACCEPTOR_H_
