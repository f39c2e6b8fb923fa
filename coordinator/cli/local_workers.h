// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_LOCAL_WORKERS_H_
#define RINGFLEET_COORDINATOR_CLI_LOCAL_WORKERS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cli/child_process.h"
#include "coordinator/cli/restart_pace.h"
#include "kernels/mutex.h"

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

  // Starts each worker again that ends from here on, with the same arguments,
  // until the workers are stopped. RestartPace sets the pauses. Calls `give_up`
  // at most once, from a thread of its own: UNAVAILABLE tells how a worker
  // ended that ends too often. No worker starts after that. Call at most once,
  // after Spawn.
  void KeepRunning(std::function<void(const absl::Status&)> give_up);

  // Ends all workers after a command that has succeeded. A second call does
  // nothing.
  //
  // Errors: INTERNAL: a worker had ended by itself, with a signal or an exit
  // code other than 0, and was not about to start again. The command's results
  // may be wrong.
  absl::Status Stop();

  // Keeps the logs after the command has failed with `status`. Prints their
  // folder and the last lines of the failed worker's log on stderr. Does
  // nothing for errors that need no log: bad input, bad files, an interrupt.
  void Explain(const absl::Status& status);

 private:
  struct Worker {
    ChildProcess process;
    RestartPace pace;
    // The process has ended, and the next one starts then.
    std::optional<RestartPace::TimePoint> restart;
  };

  LocalWorkers(int count, int threads) : count_(count), threads_(threads) {}
  absl::StatusOr<ChildProcess> StartProcess(int rank) const;
  void Keep(const std::function<void(const absl::Status&)>& give_up);
  // Starts the workers whose pause is over. Errors: those that `give_up` gets.
  absl::Status Restart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Plans the next start of a worker that has ended as `end` tells.
  absl::Status PlanRestart(int rank, const std::string& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the lowest rank whose worker has ended and is not about to start
  // again, or -1.
  int FirstEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the lowest of these ranks whose worker ended by itself with a
  // signal or an exit code other than 0, or -1.
  int FirstFailed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns a text such as "worker 2 ended with code 1".
  std::string DescribeEnd(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns ": " and the last line of a worker's log, or the reason why there
  // is none, or "".
  std::string LastWords(int rank) const;
  std::string LogPath(int rank) const;
  std::string PortPath(int rank) const;
  // Sends SIGTERM to all workers, and SIGKILL to those that do not end.
  void EndAll();

  const int count_;
  const int threads_;
  std::string folder_;
  bool keep_folder_ = false;
  // Ends of a pipe. The workers inherit [0]. The kernel closes [1] when this
  // process ends.
  int alive_pipe_[2] = {-1, -1};
  std::vector<std::string> arguments_;
  std::thread keeper_;

  Mutex mu_;
  CondVar changed_;
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mu_);  // By rank.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;  // No worker starts any more.
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;   // All workers have ended.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_LOCAL_WORKERS_H_
