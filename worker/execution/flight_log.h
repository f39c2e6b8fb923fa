// SPDX-License-Identifier: Apache-2.0
// The last collectives of this worker. FlightRecords shows them, and a failed
// epoch writes them down.
#ifndef RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_
#define RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "cluster/recording/flight_recorder.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Records collectives and reports them. Thread-safe.
class FlightLog {
 public:
  // `log_file` is the worker's. Empty: the worker logs to stderr.
  explicit FlightLog(std::string log_file) : log_file_(std::move(log_file)) {}

  cluster::FlightRecorder& recorder() { return recorder_; }

  // Reports an epoch that failed with `cause`: logs the last operations, a line
  // each, and writes all kept records to LOG_FILE.flight if there is a log
  // file.
  void Report(const absl::Status& cause);

  // Appends the latest `limit` records, oldest first. 0: all kept records.
  void Read(uint32_t limit, v1::FlightRecordsResponse* response) const;

 private:
  const std::string log_file_;
  cluster::FlightRecorder recorder_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_
