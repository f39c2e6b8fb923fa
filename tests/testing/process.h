// SPDX-License-Identifier: Apache-2.0
// Runs programs for tests. Captures their output, bounds waits, and leaves no
// process behind.
#ifndef RINGFLEET_TESTS_TESTING_PROCESS_H_
#define RINGFLEET_TESTS_TESTING_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringfleet::testing {

struct ProcessOptions {
  std::vector<std::string> command;                // A path, then arguments.
  std::map<std::string, std::string> environment;  // Added to the caller's.
  std::string folder;  // Working folder. Empty: that of the caller.
  // Prefix of the paths of two files with the output. Empty: output is dropped.
  std::string capture;
  int open_files = 0;  // Limit of file descriptors. 0: the caller's limit.
  // Limit of threads (ulimit -u). 0: the caller's limit. Root has no such
  // limit, so the process becomes a user without other processes, which only
  // root may.
  int threads = 0;
  bool input = false;  // True: Write() writes to stdin. False: stdin is empty.
};

// A child process. Killed by the destructor, and when the process of the test
// ends. Use from one thread.
class Process {
 public:
  explicit Process(ProcessOptions options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Returns the exit code, or 128 + signal. Returns nothing if the process
  // still runs after `seconds` times kSlowdown.
  std::optional<int> Wait(double seconds);
  // Returns whether the process runs.
  bool Running();
  // Writes to the process's stdin. Requires options.input. Drops the text if
  // the process does not read any more.
  void Write(const std::string& text) const;

  std::string output() const;  // Text of stdout so far.
  std::string errors() const;  // Text of stderr so far.

 private:
  const ProcessOptions options_;
  pid_t pid_ = -1;
  int input_ = -1;
  std::optional<int> code_;
};

// Calls `condition` until it returns true, for at most `seconds` times
// kSlowdown. Returns whether `condition` returned true.
bool WaitUntil(double seconds, const std::function<bool()>& condition);

// Returns the running processes that were started with NAME=VALUE in their
// environment.
std::vector<pid_t> ProcessesWith(const std::string& name,
                                 const std::string& value);
// Returns the running children of a process.
std::vector<pid_t> ChildrenOf(pid_t pid);
// Returns the arguments of a process. Returns an empty list if the process has
// ended.
std::vector<std::string> CommandLine(pid_t pid);
// Returns a field of /proc/PID/status in bytes, such as "VmRSS". Returns 0 if
// the process has ended.
uint64_t StatusBytes(pid_t pid, const std::string& field);
// Returns the number of threads of a process. Returns 0 if it has ended.
int ThreadCount(pid_t pid);
// Returns the number of open descriptors of a process. Returns 0 if it has
// ended.
int DescriptorCount(pid_t pid);

// Returns a port of 127.0.0.1 on which nobody listens at the time of the call.
int FreePort();

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_PROCESS_H_
