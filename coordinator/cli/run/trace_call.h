// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_RUN_TRACE_CALL_H_
#define RINGFLEET_COORDINATOR_CLI_RUN_TRACE_CALL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/run/trace_file.h"
#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::coordinator::cli {

// What a fleet does during a command, for --trace FILE. Without a file its
// functions do nothing.
class TraceCall {
 public:
  ~TraceCall();  // Ends the call; leaves no file, unless finished.

  // To be called before anything runs; `path` may be empty. Errors: of
  // TraceFile.
  absl::Status Open(const std::string& path);

  // Returns when all workers record. Errors: of Coordinator.Trace.
  absl::Status Start(v1::Coordinator::Stub& stub);

  // Ends it, writes the file and says so on stderr. Errors: as above, and of
  // TraceFile.
  absl::Status Finish();

 private:
  absl::Status ReadAll();

  std::unique_ptr<TraceFile> file_;
  std::unique_ptr<InterruptibleCall> call_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::TraceRequest, v1::TraceProgress>>
      stream_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_RUN_TRACE_CALL_H_
