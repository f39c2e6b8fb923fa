// SPDX-License-Identifier: Apache-2.0
// The verb `ringfleet targets` prints a cluster file as lines that
// cluster/launch/ssh/fleet.sh reads. The launch scripts never read the cluster
// file itself.
#ifndef RINGFLEET_COORDINATOR_CLI_TARGETS_H_
#define RINGFLEET_COORDINATOR_CLI_TARGETS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/config/config.h"
#include "coordinator/cli/command.h"

namespace ringfleet::coordinator::cli {

// Returns whether processes are started over ssh: if the file has an ssh
// section, or a host that is not a loopback name.
bool UsesSsh(const cluster::ClusterConfig& config);

// Returns lines of fields that are separated by tabs. "-" stands for a value
// that is not set:
//
//   fleet        NAME
//   path         PATH | -               of the cluster file; -: of any file
//   log_dir      DIR | -
//   insecure     yes | no
//   coordinator  HOST:PORT
//   ssh_option   ARGUMENT               any number, in order
//   target       LABEL DEST HOST LISTEN THREADS NUMA_NODE MEMORY_GIB
//   file         LINE                   of the resolved cluster file, in order
//
// LABEL is a rank or "coordinator". DEST is the host that ssh connects to, or
// "local" if the process starts on this machine without ssh. THREADS is a
// number, or "cores/N" for one of N workers on a host. The resolved cluster
// file has all defaults and absolute paths; the coordinator reads it. `hosts`
// selects ranks in the form of ParseHostRange, or is "coordinator". An empty
// `hosts` selects all workers and then the coordinator.
//
// Errors: INVALID_ARGUMENT: `hosts` is malformed or beyond the last rank.
absl::StatusOr<std::string> FormatTargets(const cluster::ClusterConfig& config,
                                          absl::string_view hosts);

// Adds the verb `ringfleet targets`.
void RegisterTargets(CLI::App& app, Invocation& invocation);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_TARGETS_H_
