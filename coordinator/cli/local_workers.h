// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LOCAL_WORKERS_H_
#define RINGFLEET_COORDINATOR_CLI_LOCAL_WORKERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cli/child_process.h"

namespace ringfleet::coordinator::cli {

// Worker processes on loopback that live as long as one command. They end on
// every exit path: the destructor stops them, and the kernel and a pipe end
// them when this process is killed. A temporary folder holds their logs and
// this process's own log; it is removed unless the command failed. Call from
// main's thread, which must outlive the workers.
class LocalWorkers {
 public:
  // Makes the folder for `count` workers and starts none.
  //
  // Errors: RESOURCE_EXHAUSTED: this process may not open enough files.
  static absl::StatusOr<std::unique_ptr<LocalWorkers>> Create(int count);
  ~LocalWorkers();

  // Starts the workers on ports that the kernel chooses, with `arguments`
  // beside their own. Call once.
  absl::Status Spawn(const std::vector<std::string>& arguments);

  // Waits until all workers listen. Returns HOST:PORT of each rank.
  //
  // Errors: UNAVAILABLE: a worker has ended. CANCELLED: a signal came.
  absl::StatusOr<std::vector<std::string>> WaitAddresses();

  // Errors: UNAVAILABLE: a worker has ended, which a sound one never does by
  // itself. The message says how, and quotes the last line of its log.
  absl::Status CheckRunning();

  // Ends all workers of a command that has succeeded. Later calls do nothing.
  //
  // Errors: INTERNAL: a worker ended by itself with a signal or an exit code
  // other than 0. Its results may be wrong.
  absl::Status Stop();

  // Keeps the logs. Shows on stderr where they are and the last lines of the
  // failing worker's log. Does nothing if `status` explains itself (bad input,
  // bad files, an interrupt).
  void Explain(const absl::Status& status);

 private:
  explicit LocalWorkers(int count) : count_(count) {}
  // Returns the first worker that has ended, or -1.
  int FirstEnded();
  // Returns the first worker that ended by itself with a signal or a code other
  // than 0, or -1.
  int FirstFailed();
  // "worker 2 ended with code 1".
  std::string DescribeEnd(int rank) const;
  std::string LogPath(int rank) const;
  std::string PortPath(int rank) const;
  void EndAll();  // SIGTERM, then SIGKILL.

  const int count_;
  std::string folder_;
  bool keep_folder_ = false;
  int alive_pipe_ = -1;  // Open as long as this process lives.
  std::vector<ChildProcess> children_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LOCAL_WORKERS_H_
