// SPDX-License-Identifier: Apache-2.0
// Reports the findings of `doctor`: as JSON that `plan --fleet` reads, as
// Markdown, and as advice.
#ifndef RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/cli/json_output.h"
#include "protos/host.pb.h"

namespace ringfleet::coordinator::cli {

// Findings about one worker. Rates are measured on all workers of the machine
// at once.
struct WorkerFindings {
  int rank = 0;
  std::string host;     // The host's name in the cluster file.
  std::string machine;  // Equal on all workers of a machine.
  std::string address;  // HOST:PORT
  // The worker's part of the memory that it shares with others. 0: unknown.
  uint64_t memory_share_bytes = 0;
  v1::HostReport report;
  double read_bytes_per_second = 0;
  double clock_skew_ms = 0;  // The worker's clock minus this process's clock.
  double clock_uncertain_ms = 0;  // Largest error of the skew.
  uint64_t shard_bytes = 0;       // Packed weights of the rank. 0: unknown.

  // Returns operations per second of int8 products with 128 rows.
  double int8_ops_per_second() const;
};

// Times of all-reduces between two workers, while other workers are idle.
struct PairFindings {
  int first = 0;        // Rank.
  int second = 0;       // Rank.
  double small_us = 0;  // One way for 4 bytes, with software. Median.
  double gbit = 0;      // In each direction, for some megabytes.
  std::string transport;
};

// An all-reduce over all workers.
struct ExchangeFindings {
  int ranks = 0;
  uint64_t bytes = 0;  // Size of each rank's vector.
  double p50_us = 0;   // Median.
  uint64_t wrong = 0;  // Elements that differ from the right ones.
  std::string transport;
};

// A worker that does not answer.
struct AbsentWorker {
  int rank = 0;
  std::string address;  // HOST:PORT; empty: nobody has registered for the rank.
};

// Returns "rank 1 (10.0.0.12:50052)".
std::string AbsentText(const AbsentWorker& worker);

// Findings of the launch scripts on the coordinator's host, before its start.
struct CoordinatorFindings {
  std::string host;  // The host's name in the cluster file.
  std::vector<std::string> ports_in_use;  // "port 50051 on 10.0.0.11 is in use"
  bool no_config = false;                 // The model has no config.json here.
  bool no_weights = false;                // The model has no weights here.
  std::string state_dir;                  // Empty: unknown.
  uint64_t state_free_bytes = 0;
};

struct DoctorFindings {
  std::string model;                    // The cluster file's. May be empty.
  std::string cache_dir;                // The cluster file's. May be empty.
  std::vector<WorkerFindings> workers;  // By rank.
  std::vector<AbsentWorker> absent;     // By rank.
  std::vector<PairFindings> pairs;
  std::string pairs_skipped;  // Reason why no exchange was measured.
  bool quick = false;         // True: no rates and no pairs.
  std::optional<ExchangeFindings> exchange;  // Set by a quick examination.
  std::optional<CoordinatorFindings> coordinator;  // Set if it does not run.
};

// Returns what keeps the fleet from starting, the most urgent first.
// UNAVAILABLE: a port is in use. NOT_FOUND: the model's files are missing.
std::vector<absl::Status> StartProblems(const DoctorFindings& findings);

// Returns sentences of advice, the most urgent one first. Returns an empty list
// if nothing is wrong.
std::vector<std::string> DoctorAdvice(const DoctorFindings& findings);

// Return the findings as JSON, or as Markdown with the advice.
Json DoctorJson(const DoctorFindings& findings);
std::string DoctorMarkdown(const DoctorFindings& findings);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_
