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

// Records the trace of a fleet during a command, for --trace FILE. All
// functions do nothing if the path is empty.
class TraceCall {
 public:
  ~TraceCall();  // Ends the recording. Leaves no file unless Finish succeeded.

  // Opens the file. Call Open before the command does any work, so that the
  // command fails early. Errors: those of TraceFile.
  absl::Status Open(const std::string& path);

  // Starts the recording, and returns when all workers record. Errors: those of
  // Coordinator.Trace.
  absl::Status Start(v1::Coordinator::Stub& stub);

  // Ends the recording, writes the file and prints its path on stderr. Errors:
  // those of Coordinator.Trace and TraceFile.
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
