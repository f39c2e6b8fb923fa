// SPDX-License-Identifier: Apache-2.0
// What `doctor` found, as JSON that `plan --fleet` reads, as Markdown, and what
// to change.
#ifndef RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_

#include <string>
#include <vector>

#include "coordinator/cli/json_output.h"
#include "protos/host.pb.h"

namespace ringfleet::coordinator::cli {

// One worker; rates are of its share while all workers of its host measure.
struct WorkerFindings {
  std::string host;     // As the cluster file names it.
  std::string address;  // HOST:PORT
  v1::HostReport report;
  double read_bytes_per_second = 0;
  double clock_skew_ms = 0;       // Theirs less this process's.
  double clock_uncertain_ms = 0;  // Of that, at most.

  // Operations a second of int8 products with 128 rows.
  double int8_ops_per_second() const;
};

// Two workers alone. Of all-reduces, whose times a plan predicts.
struct PairFindings {
  int first = 0;
  int second = 0;
  double small_us = 0;  // Of 4 bytes, p50: one way, software included.
  double gbit = 0;      // Each way, of some megabytes.
  std::string transport;
};

struct DoctorFindings {
  std::string model;                    // What the plan is for; may be empty.
  std::vector<WorkerFindings> workers;  // By rank.
  std::vector<PairFindings> pairs;
  std::string pairs_skipped;  // Why there are none.
};

// What a fleet would gain by, worst first; empty when nothing is wrong.
std::vector<std::string> DoctorAdvice(const DoctorFindings& findings);

Json DoctorJson(const DoctorFindings& findings);
std::string DoctorMarkdown(const DoctorFindings& findings);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_REPORT_H_
