// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_INTERRUPT_H_
#define RINGFLEET_COORDINATOR_CLI_INTERRUPT_H_

#include <grpcpp/client_context.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator::cli {

// Exit codes of a command that a signal interrupts, and of a command whose
// output nobody reads. Shells report 141 for a program that SIGPIPE ends.
inline constexpr int kInterruptedExit = 130;
inline constexpr int kOutputClosedExit = 141;

// Turns SIGINT and SIGTERM into cancelled calls, so a verb returns and cleans
// up. A second signal ends the process at once. The process also ends five
// seconds after the first signal if the verb has not returned. Ignores SIGPIPE,
// so a write to a closed pipe is an error (output.h). Child processes must
// restore the default action. A process has one Interrupt. Main's thread makes
// the Interrupt before other threads start, with SIGINT and SIGTERM blocked.
// Thread-safe.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  // Returns the one object of the process.
  static Interrupt& Get();

  // Interrupts the command as a signal does. Only the first request has an
  // effect.
  void Request(int exit_code = kInterruptedExit);

  // Gets every SIGINT while it lives. One object at a time.
  class Catch {
   public:
    // `on_interrupt` must not block. It returns false to let the signal
    // interrupt the command.
    explicit Catch(std::function<bool()> on_interrupt);
    ~Catch();
    Catch(const Catch&) = delete;
    Catch& operator=(const Catch&) = delete;
  };

  // Sets the time that an interrupted verb has to clean up to `duration`,
  // counted from the call. A second signal still ends the process at once.
  void AllowCleanup(absl::Duration duration);

  // Returns whether the command was interrupted. May be called in a child
  // process after fork.
  bool requested() const { return requested_; }
  // Returns CANCELLED if the command was interrupted, else OK.
  absl::Status status() const;
  // Returns the exit code of the first request. Returns 0 if there was no
  // request.
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
  std::function<bool()> on_interrupt_ ABSL_GUARDED_BY(mu_);
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// The context of a client call. An interrupt cancels the call.
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
