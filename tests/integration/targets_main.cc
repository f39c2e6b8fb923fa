// SPDX-License-Identifier: Apache-2.0
// "targets --cluster FILE [--hosts RANGE | --yaml]", as fleet.sh calls it.
#include <iostream>
#include <string>

#include "absl/strings/string_view.h"
#include "cluster/config.h"
#include "coordinator/cli/targets.h"

int main(int argc, char** argv) {
  std::string cluster, hosts;
  bool yaml = false;
  for (int i = 2; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--yaml") yaml = true;
    if (argument == "--cluster" && i + 1 < argc) cluster = argv[++i];
    if (argument == "--hosts" && i + 1 < argc) hosts = argv[++i];
  }
  const auto config = ringfleet::cluster::LoadClusterConfig(cluster);
  absl::Status status = config.status();
  if (status.ok() && yaml) {
    std::cout << ringfleet::cluster::FormatClusterConfig(*config);
  } else if (status.ok()) {
    status =
        ringfleet::coordinator::cli::PrintTargets(*config, hosts, std::cout);
  }
  if (status.ok()) return 0;
  std::cerr << "ringfleet: " << status.message() << "\n";
  return 2;
}
