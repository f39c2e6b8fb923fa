// SPDX-License-Identifier: Apache-2.0
// TCP congestion control of the connections between the processes of a fleet.
//
// BBR, the default of some systems, lets packets leave at the rate that it
// estimates, held back by a timer of the kernel for each few of them
// (tcp_bbr.c, "internal pacing"). Between hosts of one network these timers
// cost more than they save: two ranks over loopback took 1.5 times as long
// for 7.3 MB, and links of 10 Gbit/s were not filled (perf/results/
// collectives.md).
// So connections use CUBIC where the system's choice is BBR, or Reno where the
// process may not choose CUBIC (net.ipv4.tcp_allowed_congestion_control). Any
// other choice of the system stays.
//
// The environment variable RINGFLEET_CONGESTION_CONTROL names another one, or
// "system" for the system's.
#ifndef RINGFLEET_CLUSTER_RPC_CONGESTION_CONTROL_H_
#define RINGFLEET_CLUSTER_RPC_CONGESTION_CONTROL_H_

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// What a socket tries in turn, the first that the kernel allows; none: what
// `system`, the kernel's name, stands for. `wanted` is the environment's, or
// "".
std::vector<std::string> CongestionControls(absl::string_view system,
                                            absl::string_view wanted);

// For the sockets of a channel, and of a server and of what connects to it.
void SetCongestionControl(grpc::ChannelArguments& arguments);
void SetCongestionControl(grpc::ServerBuilder& builder);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_CONGESTION_CONTROL_H_
