// SPDX-License-Identifier: Apache-2.0
// Runs cluster/launch/ssh/fleet.sh for `up`, `down`, `status` and `convert`,
// and keeps two commands from working on one fleet at the same time. Needs the
// process's Interrupt.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCHER_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCHER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/config/config.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator::cli {

// Runs "fleet.sh VERB --targets -" (LaunchScriptPath) and gives it the targets
// of `config` that `hosts` picks, as FormatTargets does. The script's output
// goes to stderr line by line as it comes, and into `output` if not null. A
// deadline, an interrupt and the death of this process end the script, and with
// it every process that it started on this machine to reach the hosts. The call
// waits for that end. Call from a thread that lives as long as the process.
//
// Errors:
//   UNAVAILABLE: some hosts failed. The message names them, or quotes the last
//     line of a process that ended at once.
//   INVALID_ARGUMENT: the range is wrong, or a process that ended at once said
//     so of its own arguments.
//   DEADLINE_EXCEEDED. NOT_FOUND: no script. CANCELLED: Interrupt's status,
//     unless `interruptible` is false, as for a clean-up after an interrupt.
absl::Status RunLaunchScript(
    absl::string_view verb, const cluster::ClusterConfig& config,
    absl::string_view hosts, std::string* output,
    cluster::Deadline deadline = cluster::Deadline::After(absl::Minutes(3)),
    bool interruptible = true);

// Stops processes that a command has started and must not leave behind. Takes
// the elements of `hosts` in turn, as far as the hosts can be reached in time.
// Prints a line on stderr after an interrupt.
void TakeBack(const cluster::ClusterConfig& config,
              const std::vector<std::string>& hosts);

// One "[LABEL HOST] TEXT" line of the script's output.
struct LaunchLine {
  std::string label;  // A rank, or "coordinator".
  std::string host;
  std::string text;
  int pid = 0;  // The number after "pid " in `text`, if any.
};
std::vector<LaunchLine> ParseLaunchOutput(absl::string_view output);

// Returns $XDG_STATE_HOME/ringfleet/FLEET, else ~/.local/state/ringfleet/FLEET,
// on this machine. Creates it if absent. `fleet` is a ClusterConfig's name.
absl::StatusOr<std::string> StateDir(absl::string_view fleet);

// A lock that a command holds while it starts or stops a fleet from this
// machine. The kernel releases it when its holder dies. Not thread-safe.
class FleetLock {
 public:
  // Waits for another holder until the deadline or an interrupt.
  //
  // Errors: UNAVAILABLE: still held; the message names the holder's pid.
  // CANCELLED: Interrupt's status.
  static absl::StatusOr<FleetLock> Acquire(absl::string_view fleet,
                                           cluster::Deadline deadline);

  FleetLock(FleetLock&& other) noexcept;
  FleetLock& operator=(FleetLock&& other) noexcept;
  ~FleetLock();

 private:
  explicit FleetLock(int fd) : fd_(fd) {}

  int fd_;  // -1: moved from.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCHER_H_
