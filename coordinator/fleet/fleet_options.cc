// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/fleet_options.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// Reads the table of the file `path`, if there is one.
template <typename Table>
absl::Status LoadTable(absl::string_view place, const std::string& path,
                       Table* table) {
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<Table> loaded = Table::Load(path);
  if (!loaded.ok()) {
    return absl::Status(loaded.status().code(),
                        absl::StrCat(place, " ", loaded.status().message()));
  }
  *table = *std::move(loaded);
  return absl::OkStatus();
}

}  // namespace

uint32_t FleetOptions::GroupSlots() const {
  const auto groups = static_cast<uint32_t>(mesh.data);
  const uint32_t slots = settings.parallel();
  return slots / groups + (slots % groups != 0);
}

absl::Duration FleetOptions::RebalanceInterval() const {
  const v1::ExpertSettings& moves = settings.experts();
  return moves.rebalance() == v1::EXPERT_REBALANCE_AUTO
             ? absl::Seconds(moves.interval_s())
             : absl::ZeroDuration();
}

absl::StatusOr<FleetOptions> MakeFleetOptions(v1::FleetSettings settings,
                                              absl::string_view prefix) {
  FleetOptions options;
  options.mesh = cluster::MeshOf(settings);
  options.step_timeout = absl::Seconds(settings.step_timeout_s());
  options.recovery_wait = absl::Seconds(settings.recovery().wait());
  RF_RETURN_IF_ERROR(LoadTable(absl::StrCat(prefix, "collectives"),
                               settings.collectives(), &options.collectives));
  RF_RETURN_IF_ERROR(LoadTable(absl::StrCat(prefix, "tiles"), settings.tiles(),
                               &options.tiles));
  if (settings.reproducible()) {
    options.collectives = options.collectives.InRankOrder();
  }
  options.settings = std::move(settings);
  return options;
}

}  // namespace ringfleet::coordinator
