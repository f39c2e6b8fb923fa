// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_LOCAL_WORKERS_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_LOCAL_WORKERS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ringfleet::coordinator::cli {

// Worker processes on loopback that live as long as one command. They end on
// every exit path: they are stopped by the destructor, and follow this process
// when it is killed. Their logs, and from here on this process's own, are in a
// temporary folder, removed unless the command failed. Call from main's thread,
// which must outlive the workers.
class LocalWorkers {
 public:
  // Makes the folder for `count` workers; none runs yet. RESOURCE_EXHAUSTED:
  // this process may not open enough files.
  static absl::StatusOr<std::unique_ptr<LocalWorkers>> Create(int count);
  ~LocalWorkers();

  // Starts them, rank by rank, on ports that the kernel chooses, with
  // `arguments` beside their own. Call once.
  absl::Status Spawn(const std::vector<std::string>& arguments);

  // HOST:PORT of each, once all listen.
  //
  // Errors: UNAVAILABLE: one has ended. CANCELLED: a signal came.
  absl::StatusOr<std::vector<std::string>> WaitAddresses();

  // UNAVAILABLE when a worker has ended, which it never does by itself: how,
  // and its last words.
  absl::Status CheckRunning();

  // Ends all of them, at the end of a command that has succeeded. Later calls
  // do nothing.
  //
  // Errors: INTERNAL: a worker ended by itself with a signal or an exit code
  // other than 0; what it computed may be wrong.
  absl::Status Stop();

  // Keeps the logs and shows on stderr where they are and how the log of the
  // failing worker ends, unless `status` speaks for itself (bad input, bad
  // files, an interrupt).
  void Explain(const absl::Status& status);

 private:
  struct Child {
    pid_t pid = -1;
    bool exited = false;
    int wait_status = 0;
    bool killed = false;  // By this process, for taking too long.

    bool failed() const { return exited && !killed && wait_status != 0; }
  };

  explicit LocalWorkers(int count) : count_(count) {}
  // Notices workers that ended; the first of them, or -1.
  int ReapExited();
  // The first that failed, or -1.
  int FailedWorker() const;
  std::string LogPath(int rank) const;
  std::string PortPath(int rank) const;
  void EndAll();  // SIGTERM, then SIGKILL.

  const int count_;
  std::string folder_;
  bool keep_folder_ = false;
  int alive_pipe_ = -1;  // Open as long as this process lives.
  std::vector<Child> children_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_LOCAL_WORKERS_H_
