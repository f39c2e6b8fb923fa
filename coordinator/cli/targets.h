// SPDX-License-Identifier: Apache-2.0
// `ringfleet targets`: a cluster file as lines that cluster/launch/ssh/fleet.sh
// reads. The scripts never read the file itself.
#ifndef RINGFLEET_COORDINATOR_CLI_TARGETS_H_
#define RINGFLEET_COORDINATOR_CLI_TARGETS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/config/config.h"
#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Returns true if processes start over ssh: the file has an ssh section, or a
// host that is no loopback name.
bool UsesSsh(const cluster::ClusterConfig& config);

// Returns one line a fact, fields separated by tabs, "-" where nothing is set:
//
//   fleet        NAME
//   log_dir      DIR | -
//   insecure     yes | no
//   coordinator  HOST:PORT
//   ssh_option   ARGUMENT               any number, in order
//   target       LABEL DEST HOST LISTEN THREADS NUMA_NODE MEMORY_GIB
//   file         LINE                   of the resolved cluster file, in order
//
// LABEL is a rank or "coordinator". DEST is the host that ssh connects to, or
// "local" where the process starts on this machine without ssh. THREADS is a
// number, or "cores/N" for one of N workers of a host. The resolved file has
// its defaults filled in and its paths absolute; the coordinator reads it.
// `hosts` picks ranks as ParseHostRange does, or "coordinator"; "" picks every
// worker and the coordinator, which comes last.
//
// Errors: INVALID_ARGUMENT: `hosts` is malformed or beyond the last rank.
absl::StatusOr<std::string> FormatTargets(const cluster::ClusterConfig& config,
                                          absl::string_view hosts);

void RegisterTargets(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_TARGETS_H_
