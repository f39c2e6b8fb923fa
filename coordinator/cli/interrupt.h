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

// Exit codes of an interrupted command: after a signal, and when nobody reads
// its output. The second is what a shell shows for SIGPIPE.
inline constexpr int kInterruptedExit = 130;
inline constexpr int kOutputClosedExit = 141;

// Turns SIGINT and SIGTERM into cancelled calls, so that a verb returns and
// cleans up; a second signal, or a verb that does not return within five
// seconds, ends the process. Makes a closed pipe an error instead of a signal
// (see output.h); children must be given the default back. One per process,
// made by main's thread before others, with the signals blocked. Thread-safe.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  static Interrupt& Get();

  // What a signal does. Of several requests the first counts.
  void Request(int exit_code = kInterruptedExit);

  // A verb that has been interrupted takes at most this long from here on to
  // clean up. A second signal still ends it at once.
  void AllowCleanup(absl::Duration duration);

  // May be asked in a child process after fork.
  bool requested() const { return requested_; }
  // CANCELLED once a signal has come, else OK.
  absl::Status status() const;
  // Of the request; 0 without one.
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
