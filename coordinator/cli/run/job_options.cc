// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/job_options.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace ringfleet::coordinator::cli {

void AddJobOptions(CLI::App& app, JobSettings& options) {
  app.add_option("--timeout", options.timeout,
                 "End the job after this time, waiting included, as in 30s or "
                 "10m [none]")
      ->check([](const std::string& text) {
        return std::string(TimeoutMs(text).status().message());
      });
  app.add_option("--priority", options.priority,
                 "Jobs with lower numbers come first, and keep their places in "
                 "the cache longer")
      ->capture_default_str();
}

absl::StatusOr<uint32_t> TimeoutMs(const std::string& timeout) {
  if (timeout.empty()) return 0;
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(timeout, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(timeout, &duration)) {
    duration = absl::ZeroDuration();
  }
  const int64_t ms = absl::ToInt64Milliseconds(duration);
  if (ms < 1 || ms > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        timeout, ", want a time from 1ms to 49 days, as in 30s or 10m"));
  }
  return static_cast<uint32_t>(ms);
}

}  // namespace ringfleet::coordinator::cli
