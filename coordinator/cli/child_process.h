// SPDX-License-Identifier: Apache-2.0
// Child processes of a command: the workers of `--local` and the launch
// scripts.
#ifndef RINGFLEET_COORDINATOR_CLI_CHILD_PROCESS_H_
#define RINGFLEET_COORDINATOR_CLI_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

struct ChildOptions {
  std::vector<std::string> command;  // The program's path, then its arguments.
  std::string input;       // Text on standard input. Empty: /dev/null.
  std::string log;         // File to append the output to. Empty: a pipe.
  bool own_group = false;  // True: Ctrl-C in a terminal spares the child.
  int death_signal = 0;    // Sent when the thread that called Start ends.
  int inherited_fd = -1;   // Descriptor that stays open in the child.
  // True: signals that this process blocks stay blocked in the child. The
  // child's program must unblock the signals when it can handle them.
  bool keep_blocked_signals = false;
};

// One child process. The destructor kills the child if it still runs. The child
// starts with no signal ignored. No signal is blocked unless
// ChildOptions::keep_blocked_signals is true. The child inherits only the
// standard descriptors and `inherited_fd`. Not thread-safe.
class ChildProcess {
 public:
  // Starts a child.
  // Errors: INTERNAL: the program cannot be executed. RESOURCE_EXHAUSTED: no
  // pipe, process or memory is left. Those of FileError: the log cannot be
  // opened.
  static absl::StatusOr<ChildProcess> Start(const ChildOptions& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // Returns the read end of the pipe that carries the child's standard output
  // and standard error. Returns -1 if the output goes to a log.
  int output() const { return output_; }

  // Returns whether the child has ended. Reaps a child that has ended.
  bool Ended();
  // Returns the child's status in the form of waitpid(). Requires Ended().
  int wait_status() const { return wait_status_; }
  // Returns whether Kill() has ended the child.
  bool killed() const { return killed_; }

  // Sends a signal to the child. Does nothing if the child has ended.
  void Signal(int signal);
  // Sends SIGKILL and waits until the child has ended.
  void Kill();

 private:
  ChildProcess(pid_t pid, int output) : pid_(pid), output_(output) {}

  pid_t pid_;  // -1: the child has ended, or the object was moved from.
  int output_;
  int wait_status_ = 0;
  bool killed_ = false;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHILD_PROCESS_H_
