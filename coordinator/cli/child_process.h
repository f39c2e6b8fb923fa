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
  std::string input;       // Text on its standard input; "": /dev/null.
  std::string log;         // File that its output is appended to; "": a pipe.
  bool own_group = false;  // A terminal's Ctrl-C does not reach it.
  int death_signal = 0;    // Sent when the thread that started it ends.
  int inherited_fd = -1;   // Stays open in the child.
  // True: signals that this process blocks stay blocked in the child. The
  // program unblocks the signals once it can handle them.
  bool keep_blocked_signals = false;
};

// One child process. The destructor kills the child if it still runs. The child
// starts with no signal ignored, and with no signal blocked unless the options
// say so. The child has no descriptor of this process but the standard
// descriptors and `inherited_fd`. Not thread-safe.
class ChildProcess {
 public:
  // Errors: INTERNAL: the program cannot be executed. RESOURCE_EXHAUSTED: no
  //   pipe, process or memory is left. FileError's: the log cannot be opened.
  static absl::StatusOr<ChildProcess> Start(const ChildOptions& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // Returns the read end of a pipe from the child's standard output and
  // standard error. -1: the output goes to a log.
  int output() const { return output_; }

  // Reaps the child if it has ended. Returns true once it has.
  bool Ended();
  // Returns the status as waitpid() gives it. Requires Ended().
  int wait_status() const { return wait_status_; }
  // Returns true if Kill() has ended the child.
  bool killed() const { return killed_; }

  // Sends a signal. Does nothing to a child that has ended.
  void Signal(int signal);
  // Sends SIGKILL and waits for the end.
  void Kill();

 private:
  ChildProcess(pid_t pid, int output) : pid_(pid), output_(output) {}

  pid_t pid_;  // -1: it has ended, or was moved away.
  int output_;
  int wait_status_ = 0;
  bool killed_ = false;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHILD_PROCESS_H_
