// SPDX-License-Identifier: Apache-2.0
// Findings of `doctor`: as JSON that `plan --fleet` reads, as Markdown, and as
// advice.
#ifndef RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_

#include <string>
#include <vector>

#include "coordinator/cli/json_output.h"
#include "protos/host.pb.h"

namespace ringfleet::coordinator::cli {

// One worker. Rates are measured while all workers of its host measure.
struct WorkerFindings {
  std::string host;     // Its name in the cluster file.
  std::string address;  // HOST:PORT
  v1::HostReport report;
  double read_bytes_per_second = 0;
  double clock_skew_ms = 0;       // The worker's clock minus this process's.
  double clock_uncertain_ms = 0;  // Largest error of the skew.

  // Returns operations a second of int8 products with 128 rows.
  double int8_ops_per_second() const;
};

// Times of all-reduces between two workers alone.
struct PairFindings {
  int first = 0;
  int second = 0;
  double small_us = 0;  // For 4 bytes, p50: one way, software included.
  double gbit = 0;      // Each way, for some megabytes.
  std::string transport;
};

struct DoctorFindings {
  std::string model;                    // The cluster file's; may be empty.
  std::vector<WorkerFindings> workers;  // By rank.
  std::vector<PairFindings> pairs;
  std::string pairs_skipped;  // Reason for measuring none.
};

// Returns sentences on what to change, worst first. Empty: nothing is wrong.
std::vector<std::string> DoctorAdvice(const DoctorFindings& findings);

Json DoctorJson(const DoctorFindings& findings);
std::string DoctorMarkdown(const DoctorFindings& findings);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_
