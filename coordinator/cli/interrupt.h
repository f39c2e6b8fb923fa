// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_INTERRUPT_H_
#define RINGFLEET_COORDINATOR_CLI_INTERRUPT_H_

#include <grpcpp/client_context.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator::cli {

// Exit codes of a command that a signal interrupts, and of a command whose
// output nobody reads. A shell shows the second code for SIGPIPE.
inline constexpr int kInterruptedExit = 130;
inline constexpr int kOutputClosedExit = 141;

// Turns SIGINT and SIGTERM into cancelled calls, so that a verb returns and
// cleans up. A second signal ends the process, and so does a verb that does not
// return within five seconds. A closed pipe becomes an error instead of a
// signal (output.h); child processes need the default action back. Main's
// thread makes the one object of a process before other threads, with the
// signals blocked. Thread-safe.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  static Interrupt& Get();

  // Interrupts the command as a signal does. The first of several requests
  // counts.
  void Request(int exit_code = kInterruptedExit);

  // Gives an interrupted verb this long from here on to clean up. A second
  // signal still ends the process at once.
  void AllowCleanup(absl::Duration duration);

  // May be called in a child process after fork.
  bool requested() const { return requested_; }
  // Returns CANCELLED once a signal has come, else OK.
  absl::Status status() const;
  // Returns the exit code of the request. 0: there was none.
  int exit_code();

 private:
  friend class InterruptibleCall;
  void Loop();

  std::atomic<bool> requested_{false};  // Set with mu_ held.

  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int exit_code_ ABSL_GUARDED_BY(mu_) = 0;
  std::chrono::steady_clock::time_point give_up_ ABSL_GUARDED_BY(mu_) =
      std::chrono::steady_clock::time_point::max();
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// A client call that a signal cancels.
class InterruptibleCall {
 public:
  InterruptibleCall();
  ~InterruptibleCall();
  grpc::ClientContext* context() { return &context_; }

 private:
  grpc::ClientContext context_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_INTERRUPT_H_
