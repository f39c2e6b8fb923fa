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
  // In a session of its own, which the scheduler prefers to all others of this
  // machine; needs root.
  bool preferred = false;
};

// A child process that ends with this one. Its stderr is this process's.
class Program {
 public:
  explicit Program(const ProgramOptions& options);
  ~Program();  // Ends it: SIGTERM, and waits.
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // What it writes to stdout until it ends; its exit code, or 128 + signal.
  std::string ReadAll(int* exit_code);

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

// Runs a program to its end; what it wrote to stdout. Ends this process, with
// the command on stderr, when it fails.
std::string OutputOf(const ProgramOptions& options);

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_PROGRAM_H_
