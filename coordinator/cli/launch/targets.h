// SPDX-License-Identifier: Apache-2.0
// `ringfleet targets`: the processes of a fleet as lines that
// cluster/launch/ssh/fleet.sh reads, so that cluster.yaml has one reader.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_TARGETS_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_TARGETS_H_

#include <ostream>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/config/config.h"
#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Whether processes start over ssh: an ssh section is there, or a host is no
// loopback name.
bool UsesSsh(const cluster::ClusterConfig& config);

// Writes one line a fact, fields separated by tabs, "-" where nothing is set:
//
//   fleet        NAME
//   log_dir      DIR | -
//   insecure     yes | no
//   coordinator  HOST:PORT
//   ssh_option   ARGUMENT               any number, in order
//   target       LABEL DEST HOST LISTEN THREADS NUMA_NODE MEMORY_GIB
//
// LABEL is a rank or "coordinator". DEST is what ssh connects to, or "local"
// where the process starts on this machine: when the file has no ssh section
// and every host is a loopback name. THREADS is a number, or "cores/N" for
// one of N workers of a host. `hosts` picks ranks as ParseHostRange does, or
// "coordinator"; "" picks every worker and the coordinator, which comes last.
//
// Errors: INVALID_ARGUMENT: `hosts` is malformed or beyond the last rank.
absl::Status PrintTargets(const cluster::ClusterConfig& config,
                          absl::string_view hosts, std::ostream& out);

void RegisterTargets(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_TARGETS_H_
