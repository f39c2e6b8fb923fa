// SPDX-License-Identifier: Apache-2.0
// TCP congestion control of the connections between the processes of a fleet.
//
// BBR, the default of some systems, sends packets at its estimate of the rate,
// by a timer of the kernel for every few packets (tcp_bbr.c, "internal
// pacing"). Between hosts of one network these timers cost more than they save:
// 7.3 MB between two ranks over loopback take 1.5 times as long, and links of
// 10 Gbit/s are not filled (perf/results/collectives.md).
//
// Connections therefore use CUBIC where the system's choice is BBR, and Reno
// where the process may not choose CUBIC
// (net.ipv4.tcp_allowed_congestion_control). Any other choice of the system
// stays. The environment variable RINGFLEET_CONGESTION_CONTROL names another
// algorithm, or "system" for the system's.
#ifndef RINGFLEET_CLUSTER_RPC_CONGESTION_CONTROL_H_
#define RINGFLEET_CLUSTER_RPC_CONGESTION_CONTROL_H_

#include <grpcpp/support/channel_arguments.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// Returns the algorithms that a socket tries in order until the kernel allows
// one. Empty: the kernel's default stays. `system` is the kernel's default,
// `wanted` the environment's choice or "".
std::vector<std::string> CongestionControls(absl::string_view system,
                                            absl::string_view wanted);

// Sets the algorithm for the sockets of a channel.
void SetCongestionControl(grpc::ChannelArguments& arguments);
// Sets the algorithm of a socket. Connections inherit that of the socket that
// accepts them. Does nothing to a socket that is not TCP's.
void SetCongestionControl(int fd);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_CONGESTION_CONTROL_H_
