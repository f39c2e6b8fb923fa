// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_COORDINATOR_H_
#define RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_COORDINATOR_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/config/config.h"
#include "coordinator/cli/doctor/doctor_report.h"

namespace ringfleet::coordinator::cli {

// Examines the host of a coordinator that does not run, with the launch
// scripts: its ports, the files of `model`, the space in its state folder.
// Requires an Interrupt in the process. Errors: those of RunLaunchScript.
absl::StatusOr<CoordinatorFindings> ExamineCoordinatorHost(
    const cluster::ClusterConfig& config, const std::string& model);

// Reads the output of the script's verb "check".
CoordinatorFindings ParseCheck(absl::string_view output);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_DOCTOR_DOCTOR_COORDINATOR_H_
