// SPDX-License-Identifier: Apache-2.0
// A file of trace events in the JSON object format that chrome://tracing and
// ui.perfetto.dev open ("Trace Event Format", Google, 2016): complete events
// (ph X) with ts and dur in microseconds. Each rank is a process with two
// threads: its executor, and the communication beside it.
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

// Written by an OutputFile: a regular file of that name is always whole, and a
// file that is not finished leaves nothing.
class TraceFile {
 public:
  // Errors: those of OutputFile::Open, which name --trace.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(
      const std::string& path);

  // Adds a message of the coordinator. Call it in the order of arrival.
  //
  // Errors: INTERNAL: an event without a name.
  absl::Status Add(const v1::TraceProgress& progress);

  // Adds "otherData", with clock offsets and numbers of missing events, and
  // completes the file.
  //
  // Errors: RESOURCE_EXHAUSTED: it cannot be written.
  absl::Status Finish();

  const std::string& path() const { return path_; }
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
  int64_t unix_ms_ = 0;
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_TRACE_FILE_H_
