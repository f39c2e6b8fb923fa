// SPDX-License-Identifier: Apache-2.0
// A file of trace events in the JSON object format of "Trace Event Format"
// (Google, 2016), which chrome://tracing and ui.perfetto.dev open. Contains
// complete events (ph X) with ts and dur in microseconds. Each rank is a
// process with two threads: executor and communication.
#ifndef RINGFLEET_COORDINATOR_CLI_TRACE_FILE_H_
#define RINGFLEET_COORDINATOR_CLI_TRACE_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output_file.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator::cli {

// A trace file that an OutputFile writes. The file appears complete in Finish,
// or not at all.
class TraceFile {
 public:
  // Opens the file. Errors: those of OutputFile::Open, with --trace in the
  // message.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(
      const std::string& path);

  // Adds the events of one message of the coordinator. Call Add in the order in
  // which messages arrive.
  //
  // Errors: INTERNAL: an event has no name.
  absl::Status Add(const v1::TraceProgress& progress);

  // Adds "otherData", which has the clock offset and the number of missing
  // events of each rank, and completes the file.
  //
  // Errors: RESOURCE_EXHAUSTED: the file cannot be written.
  absl::Status Finish();

  const std::string& path() const { return path_; }
  // Number of events in the file, and of events that workers have dropped.
  uint64_t events() const;
  uint64_t dropped() const;

 private:
  struct Rank {
    v1::TraceProgress::Rank description;
    uint64_t events = 0;
  };

  TraceFile(std::string path, std::unique_ptr<OutputFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  void Write(const Json& event);
  Json OtherData() const;

  const std::string path_;
  const std::unique_ptr<OutputFile> file_;
  bool first_ = true;
  v1::TraceProgress::Started started_;
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_TRACE_FILE_H_
