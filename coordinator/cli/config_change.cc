// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/config_change.h"

#include <algorithm>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ringfleet::coordinator::cli {
namespace {

// One setting each, in a fixed order; defaults may be left out.
std::vector<std::string> Settings(cluster::ClusterConfig config) {
  config.ssh.reset();
  config.log_dir.clear();
  config.coordinator.http_port = cluster::CoordinatorConfig().http_port;
  return absl::StrSplit(cluster::FormatClusterConfig(config), '\n',
                        absl::SkipEmpty());
}

absl::string_view Key(absl::string_view setting) {
  return setting.substr(0, setting.find(':'));
}

bool HasKey(const std::vector<std::string>& settings, absl::string_view key) {
  return std::any_of(
      settings.begin(), settings.end(),
      [key](const std::string& setting) { return Key(setting) == key; });
}

}  // namespace

std::string ConfigChange(absl::string_view running,
                         const cluster::ClusterConfig& wanted) {
  const absl::StatusOr<cluster::ClusterConfig> parsed =
      cluster::ParseClusterConfig(running, wanted.name, "/");
  if (running.empty() || !parsed.ok()) return "";
  const std::vector<std::string> before = Settings(*parsed);
  const std::vector<std::string> now = Settings(wanted);
  const auto [was, is] =
      std::mismatch(before.begin(), before.end(), now.begin(), now.end());
  // Both end with a setting that is always there.
  if (was == before.end() || is == now.end()) return "";
  if (Key(*was) == Key(*is)) {
    return absl::StrCat("'", *was, "', not '", *is, "'");
  }
  return HasKey(now, Key(*was)) ? absl::StrCat("no '", *is, "'")
                                : absl::StrCat("'", *was, "'");
}

}  // namespace ringfleet::coordinator::cli
