// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_INTERRUPT_H_
#define RINGFLEET_COORDINATOR_CLI_INTERRUPT_H_

#include <grpcpp/client_context.h>

#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator::cli {

// Turns SIGINT and SIGTERM into cancelled calls, so that a verb returns and
// cleans up; a second signal, or a verb that does not return within five
// seconds, ends the process. One per process, made by main's thread before
// others, with the signals blocked.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  static Interrupt& Get();

  bool requested();
  // CANCELLED once a signal has come, else OK.
  absl::Status status();

 private:
  friend class InterruptibleCall;
  void Loop();

  Mutex mu_;
  bool requested_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
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
