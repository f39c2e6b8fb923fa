// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_RPC_LISTENING_SOCKETS_H_
#define RINGFLEET_CLUSTER_RPC_LISTENING_SOCKETS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/rpc/host_address.h"

namespace ringfleet::cluster {

// The sockets that listen on one address: several where a name has several
// addresses. They do not block. Connections that they accept inherit their
// options: packets leave at once, congestion control (congestion_control.h),
// and bytes that the peer does not acknowledge for 20 s end the connection.
class ListeningSockets {
 public:
  // Listens. Port 0: any free port, the same for all sockets. 0.0.0.0 and ::
  // listen for IPv4 and IPv6.
  //
  // Errors:
  //   UNAVAILABLE: the port is in use.
  //   PERMISSION_DENIED: the port is reserved for privileged processes.
  //   INVALID_ARGUMENT: no such host, or not an address of this machine.
  static absl::StatusOr<ListeningSockets> Open(const ServerAddress& address);

  ListeningSockets(ListeningSockets&& other) noexcept;
  ListeningSockets& operator=(ListeningSockets&&) = delete;
  ~ListeningSockets();  // Closes them.

  const std::vector<int>& fds() const { return fds_; }
  int port() const { return port_; }

 private:
  ListeningSockets() = default;

  std::vector<int> fds_;
  int port_ = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_LISTENING_SOCKETS_H_
