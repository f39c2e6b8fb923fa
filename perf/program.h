// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_PERF_PROGRAM_H_
#define RINGFLEET_PERF_PROGRAM_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace ringfleet::perf {

// How a program is started.
struct ProgramOptions {
  std::vector<std::string> command;                // A path, then arguments.
  std::map<std::string, std::string> environment;  // Beside this process's.
  // Runs in a session of its own, which the scheduler prefers to all others of
  // this machine. Needs root.
  bool preferred = false;
};

// A child process. Ends when this process does, and shares its stderr.
class Program {
 public:
  explicit Program(const ProgramOptions& options);
  ~Program();  // Ends it: SIGTERM, and waits.
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Waits for the end and returns the program's stdout. Sets `exit_code`, to
  // 128 + signal after a signal.
  std::string ReadAll(int* exit_code);

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

// Runs a program to its end and returns its stdout. If the program fails, ends
// this process with the command on stderr.
std::string OutputOf(const ProgramOptions& options);

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_PROGRAM_H_
