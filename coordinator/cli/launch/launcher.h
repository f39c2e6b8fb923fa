// SPDX-License-Identifier: Apache-2.0
// Runs cluster/launch/ssh/fleet.sh for `up`, `down` and `convert`, and keeps
// two of them from working on one fleet at the same time. Needs the process's
// Interrupt.
#ifndef RINGFLEET_COORDINATOR_CLI_LAUNCH_LAUNCHER_H_
#define RINGFLEET_COORDINATOR_CLI_LAUNCH_LAUNCHER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator::cli {

// Runs "fleet.sh VERB --cluster CLUSTER_FILE [--hosts HOSTS]" from
// $RINGFLEET_LAUNCH_DIR, else from the source tree this binary was built in.
// Its output goes to stderr line by line as it comes, and into `output` if
// not null. The script is ended, with what it has started on this machine to
// reach the hosts, on a deadline, on an interrupt, and when this process dies;
// except for the last, it is waited for. Call from a thread that lives as long
// as the process.
//
// Errors: UNAVAILABLE: some hosts failed; the message names them, or has the
//   last word of a process that ended at once.
//   INVALID_ARGUMENT: the cluster file or the range is wrong, or such a process
//   said that of what it was given.
//   DEADLINE_EXCEEDED. NOT_FOUND: no script. CANCELLED: Interrupt's status,
//   unless `interruptible` is false, as for what cleans up after one.
absl::Status RunLaunchScript(
    absl::string_view verb, const std::string& cluster_file,
    absl::string_view hosts, std::string* output,
    cluster::Deadline deadline = cluster::Deadline::After(absl::Minutes(3)),
    bool interruptible = true);

// Stops what a command has started and does not leave behind, `hosts` as for
// RunLaunchScript one after the other, as far as they can be reached in time.
// Says so after an interrupt.
void TakeBack(const std::string& cluster_file,
              const std::vector<std::string>& hosts);

// One "[LABEL HOST] TEXT" line of the script's output.
struct LaunchLine {
  std::string label;  // A rank, or "coordinator".
  std::string host;
  std::string text;
  int pid = 0;  // The number after "pid " in `text`, if any.
};
std::vector<LaunchLine> ParseLaunchOutput(absl::string_view output);

// $XDG_STATE_HOME/ringfleet/FLEET, else ~/.local/state/ringfleet/FLEET, on
// this machine; created if absent. `fleet` is a ClusterConfig's name.
absl::StatusOr<std::string> StateDir(absl::string_view fleet);

// Held by whoever starts or stops a fleet from this machine. The kernel gives
// it up when its holder dies. Not thread-safe.
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

#endif  // RINGFLEET_COORDINATOR_CLI_LAUNCH_LAUNCHER_H_
