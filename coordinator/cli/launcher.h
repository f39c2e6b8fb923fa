// SPDX-License-Identifier: Apache-2.0
// Runs cluster/launch/ssh/fleet.sh for `up`, `down`, `status`, `logs` and
// `convert`. A lock keeps two commands from changing one fleet at a time.
// Requires an Interrupt in the process.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCHER_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCHER_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/config/config.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator::cli {

// Runs "fleet.sh VERB --targets - -- ARGUMENTS" (LaunchScriptPath). The script
// reads the targets that FormatTargets returns for `config` and `hosts`. Copies
// the script's output to stderr, and to `output` if not null. Lines appear as
// they arrive; those of "status" appear at the end, in the order of ranks. The
// deadline, an interrupt and the death of this process end the script. The
// script then ends all processes that it has started on this machine to reach
// the hosts. RunLaunchScript returns after the script has ended. Call it from a
// thread that lives as long as the process.
//
// Errors:
//   UNAVAILABLE: some hosts failed. The message names the hosts, or quotes the
//     last line of a process that ended just after its start.
//   INVALID_ARGUMENT: `hosts` is wrong, a process ended just after its start
//     with the exit code for bad input, or a process was started from another
//     cluster file of the fleet's name. An empty path of `config` is not
//     compared.
//   DEADLINE_EXCEEDED.
//   NOT_FOUND: there is no script.
//   CANCELLED: an interrupt, if `interruptible`. Clean-ups after an interrupt
//     pass false.
absl::Status RunLaunchScript(
    absl::string_view verb, const cluster::ClusterConfig& config,
    absl::string_view hosts, std::string* output,
    cluster::Deadline deadline = cluster::Deadline::After(absl::Minutes(3)),
    bool interruptible = true, const std::vector<std::string>& arguments = {});

// Runs the script's verb "logs" for the processes that `hosts` selects. Gives
// `print` whole lines "[LABEL HOST] LINE" as they come, and stderr all other
// lines. Prints lines of the last `since` only, or all if it is infinite. Ends
// with the last line, and if `follow` with an interrupt or an error of `print`.
//
// Errors: those of `print`; those of RunLaunchScript.
absl::Status ReadLogs(const cluster::ClusterConfig& config,
                      absl::string_view hosts, absl::Duration since,
                      bool follow,
                      absl::FunctionRef<absl::Status(absl::string_view)> print);

// Stops processes that a command has started and must not leave behind. Runs
// the script for one element of `hosts` after the other. Skips hosts that
// cannot be reached in time. Prints a line on stderr after an interrupt.
void TakeBack(const cluster::ClusterConfig& config,
              const std::vector<std::string>& hosts);

// One "[LABEL HOST] TEXT" line of the script's output.
struct LaunchLine {
  std::string label;  // A rank, or "coordinator".
  std::string host;
  std::string text;
  int pid = 0;  // The number after "pid " in `text`. 0: none.
};
// Returns the lines of this form in the script's output.
std::vector<LaunchLine> ParseLaunchOutput(absl::string_view output);

// Returns the folder for the state of `fleet` on this machine, and makes it if
// it does not exist: $XDG_STATE_HOME/ringfleet/FLEET if the variable is set,
// else ~/.local/state/ringfleet/FLEET. `fleet` is the name in a ClusterConfig.
absl::StatusOr<std::string> StateDir(absl::string_view fleet);

// A lock that a command holds while it starts or stops a fleet from this
// machine. The kernel releases the lock if the holder dies. Not thread-safe.
class FleetLock {
 public:
  // Acquires the lock. Waits for another holder until the deadline or an
  // interrupt.
  //
  // Errors: UNAVAILABLE: another command still holds the lock. The message
  // names its pid, if the holder could write it. CANCELLED: an interrupt.
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
