// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_RUN_H_
#define RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cli/collectives/collectives_run.h"
#include "coordinator/cli/doctor/doctor_report.h"

namespace ringfleet::coordinator::cli {

struct DoctorOptions {
  std::string disk_path;   // File to read on every worker's host. May be empty.
  uint32_t time_ms = 500;  // For each measurement.
  bool quick = false;      // True: no rates, and one exchange over all workers.
  v1::TransportKind transport = v1::TRANSPORT_KIND_AUTO;  // Between ranks.
  // Folders that the fleet writes to on each worker's host, beside its logs'.
  std::vector<std::string> folders;
  // The folder of the coordinator's state, on the host of the worker with this
  // address. Empty: none, or no worker runs there.
  std::string state_dir, state_address;
};

// Returns each worker's part of the memory that it shares with others of its
// machine. 0: unknown.
std::vector<uint64_t> MemoryShares(const BenchWorkers& workers);

// Measures products on all workers at once, then reads of memory on all workers
// at once, then exchanges between one pair of workers after the other. Skips
// the exchanges if workers run a model. Leaves out workers that cannot be
// reached, unless none can. A quick examination asks each worker what it is,
// and makes one exchange over all of them.
//
// Errors: UNAVAILABLE: a worker does not answer. CANCELLED: an interrupt.
absl::StatusOr<DoctorFindings> ExamineWorkers(const BenchWorkers& workers,
                                              const DoctorOptions& options);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_RUN_H_
