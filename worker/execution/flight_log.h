// SPDX-License-Identifier: Apache-2.0
// A log of this worker's last collectives, with the totals of all. Heartbeats
// tell the totals, Worker.FlightRecords shows the log, and a failed epoch
// writes it to a file.
#ifndef RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_
#define RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/recording/round_trips.h"
#include "protos/cluster.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Records collectives and reports them. Thread-safe.
class FlightLog {
 public:
  // `log_file` is the path of the worker's log. Empty: the worker logs to
  // stderr.
  explicit FlightLog(std::string log_file) : log_file_(std::move(log_file)) {}

  cluster::FlightRecorder& recorder() { return recorder_; }
  cluster::RoundTrips& round_trips() { return round_trips_; }

  // Reports an epoch that failed with `cause`. Logs the last 16 operations, one
  // in each line. Writes all kept records to LOG_FILE.flight if there is a log
  // file.
  void Report(const absl::Status& cause);

  // Appends the latest `limit` records, oldest first. `limit` 0: all kept
  // records.
  void Read(uint32_t limit, v1::FlightRecordsResponse* response) const;

  // Adds the totals of collectives and the round trips to peers.
  void AddTo(v1::WorkerFigures* figures) const;

 private:
  const std::string log_file_;
  cluster::FlightRecorder recorder_;
  cluster::RoundTrips round_trips_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_FLIGHT_LOG_H_
