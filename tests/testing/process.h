// SPDX-License-Identifier: Apache-2.0
// Runs programs for tests: output captured, waits bounded, nothing left over.
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
  std::map<std::string, std::string> environment;  // Beside the caller's.
  std::string folder;                              // To run in; "": the same.
  // Path prefix of the two files with the output; empty: it is dropped.
  std::string capture;
  int open_files = 0;  // Limit of file descriptors; 0: the caller's.
  bool input = false;  // Write() reaches its stdin; else that is empty.
};

// A child process. Dies with its object, and with the test's process. Use from
// one thread.
class Process {
 public:
  explicit Process(ProcessOptions options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit code, or 128 + signal; nullopt when it still runs after `seconds`
  // of a release build.
  std::optional<int> Wait(double seconds);
  bool Running();
  // Requires options.input. Lost when the process no longer reads.
  void Write(const std::string& text) const;

  std::string output() const;  // Of stdout, so far.
  std::string errors() const;  // Of stderr, so far.

 private:
  const ProcessOptions options_;
  pid_t pid_ = -1;
  int input_ = -1;
  std::optional<int> code_;
};

// Asks until it is true or `seconds` of a release build have passed.
bool WaitUntil(double seconds, const std::function<bool()>& condition);

// Living processes started with NAME=VALUE in their environment.
std::vector<pid_t> ProcessesWith(const std::string& name,
                                 const std::string& value);
// Living children of a process.
std::vector<pid_t> ChildrenOf(pid_t pid);
// Arguments of a process; empty when it has gone.
std::vector<std::string> CommandLine(pid_t pid);
// A line of /proc/PID/status that counts kB, in bytes; 0 when it has gone.
uint64_t StatusBytes(pid_t pid, const std::string& field);

// A port of 127.0.0.1 that nobody listens on at this moment.
int FreePort();

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_PROCESS_H_
