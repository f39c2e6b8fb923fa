// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_TRACE_CALL_H_
#define RINGFLEET_COORDINATOR_CLI_TRACE_CALL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/trace_file.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator::cli {

// Records a fleet during a command, for --trace FILE. Without a file its
// functions do nothing.
class TraceCall {
 public:
  ~TraceCall();  // Ends the call. Leaves no file unless Finish() was called.

  // Call it before anything runs. `path` may be empty. Errors: TraceFile's.
  absl::Status Open(const std::string& path);

  // Returns when all workers record. Errors: Coordinator.Trace's.
  absl::Status Start(v1::Coordinator::Stub& stub);

  // Ends the recording, writes the file and says so on stderr. Errors:
  // Coordinator.Trace's and TraceFile's.
  absl::Status Finish();

 private:
  absl::Status ReadAll();

  std::unique_ptr<TraceFile> file_;
  std::unique_ptr<InterruptibleCall> call_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::TraceRequest, v1::TraceProgress>>
      stream_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_TRACE_CALL_H_
