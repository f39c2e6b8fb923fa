// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/doctor/doctor_coordinator.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status_macros.h"
#include "cluster/synthetic/synthetic_model.h"
#include "coordinator/cli/launcher.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr absl::Duration kCheckTime = absl::Minutes(1);

}  // namespace

absl::StatusOr<CoordinatorFindings> ExamineCoordinatorHost(
    const cluster::ClusterConfig& config, const std::string& model) {
  std::vector<std::string> arguments = {
      "--",
      model.empty() || cluster::IsSyntheticModel(model) ? "-" : model,
      config.settings.has_state_dir() ? config.settings.state_dir() : "-",
      config.coordinator.host,
      absl::StrCat(config.coordinator.port),
  };
  if (config.http.has_value()) {
    arguments.push_back(config.http->host);
    arguments.push_back(absl::StrCat(config.http->port));
  }
  std::string output;
  RF_RETURN_IF_ERROR(RunLaunchScript("check", config, "coordinator", &output,
                                     cluster::Deadline::After(kCheckTime),
                                     /*interruptible=*/true, arguments));
  CoordinatorFindings findings = ParseCheck(output);
  findings.host = config.coordinator.host;
  return findings;
}

CoordinatorFindings ParseCheck(absl::string_view output) {
  CoordinatorFindings findings;
  for (const LaunchLine& line : ParseLaunchOutput(output)) {
    const absl::string_view text = line.text;
    if (absl::StartsWith(text, "port ") && absl::EndsWith(text, " is in use")) {
      findings.ports_in_use.emplace_back(text);
    } else if (absl::StartsWith(text, "no config.json in ")) {
      findings.no_config = true;
    } else if (absl::StartsWith(text, "no weights in ")) {
      findings.no_weights = true;
    }
    const std::pair<std::string, std::string> space =
        absl::StrSplit(text, absl::MaxSplits(" bytes free in ", 1));
    uint64_t bytes = 0;
    if (absl::SimpleAtoi(space.first, &bytes)) {
      findings.state_dir = space.second;
      findings.state_free_bytes = bytes;
    }
  }
  return findings;
}

}  // namespace ringfleet::coordinator::cli
