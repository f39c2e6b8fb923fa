// SPDX-License-Identifier: Apache-2.0
// The last collectives of this worker: shown to whoever asks, and written down
// when an epoch fails.
#ifndef RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_
#define RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "cluster/recording/flight_recorder.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Thread-safe.
class FlightLog {
 public:
  // `log_file`: of the worker; "": it logs to stderr.
  explicit FlightLog(std::string log_file) : log_file_(std::move(log_file)) {}

  cluster::FlightRecorder& recorder() { return recorder_; }

  // An epoch has failed with `cause`: logs the last operations, a line each,
  // and writes all that are kept into LOG_FILE.flight, if there is a log file.
  void Report(const absl::Status& cause);

  // The latest `limit` records, or all that are kept for 0; oldest first.
  void Read(uint32_t limit, v1::FlightRecordsResponse* response) const;

 private:
  const std::string log_file_;
  cluster::FlightRecorder recorder_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_
