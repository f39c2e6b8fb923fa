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

// Worker processes on loopback that live as long as one command. The destructor
// stops the workers. If this process is killed, the kernel and the end of a
// pipe end the workers. A temporary folder holds the logs of the workers and of
// this process. The folder is removed unless the command fails. Call from
// main's thread, which must outlive the workers.
class LocalWorkers {
 public:
  // Returns the threads of each of `count` workers that share this machine.
  static int ThreadsOfEach(int count);

  // Makes the folder for `count` workers with `threads` threads each. 0:
  // ThreadsOfEach(). Starts no worker.
  //
  // Errors: RESOURCE_EXHAUSTED: this process cannot open enough files, not
  // enough threads can be started, or the folder has no room.
  static absl::StatusOr<std::unique_ptr<LocalWorkers>> Create(int count,
                                                              int threads);
  ~LocalWorkers();

  // Starts all workers, on ports that the kernel chooses. Adds `arguments` to
  // the arguments of each worker. Call once.
  absl::Status Spawn(const std::vector<std::string>& arguments);

  // Waits until all workers listen. Returns HOST:PORT of each rank, by rank.
  //
  // Errors: UNAVAILABLE: a worker has ended. CANCELLED: an interrupt.
  absl::StatusOr<std::vector<std::string>> WaitAddresses();

  // Checks that all workers run.
  // Errors: UNAVAILABLE: a worker has ended. The message tells how, and quotes
  // the last line of the worker's log.
  absl::Status CheckRunning();

  // Ends all workers after a command that has succeeded. A second call does
  // nothing.
  //
  // Errors: INTERNAL: a worker had ended by itself, with a signal or an exit
  // code other than 0. The command's results may be wrong.
  absl::Status Stop();

  // Keeps the logs after the command has failed with `status`. Prints their
  // folder and the last lines of the failed worker's log on stderr. Does
  // nothing for errors that need no log: bad input, bad files, an interrupt.
  void Explain(const absl::Status& status);

 private:
  LocalWorkers(int count, int threads) : count_(count), threads_(threads) {}
  // Returns the lowest rank whose worker has ended, or -1.
  int FirstEnded();
  // Returns the lowest rank whose worker ended by itself with a signal or an
  // exit code other than 0, or -1.
  int FirstFailed();
  // Returns a text such as "worker 2 ended with code 1".
  std::string DescribeEnd(int rank) const;
  std::string LogPath(int rank) const;
  std::string PortPath(int rank) const;
  // Sends SIGTERM to all workers, and SIGKILL to those that do not end.
  void EndAll();

  const int count_;
  const int threads_;
  std::string folder_;
  bool keep_folder_ = false;
  int alive_pipe_ = -1;  // Closed by the kernel when this process ends.
  std::vector<ChildProcess> children_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LOCAL_WORKERS_H_
