// SPDX-License-Identifier: Apache-2.0
// The settings of a fleet with everything that follows from them.
#ifndef RINGFLEET_COORDINATOR_FLEET_FLEET_OPTIONS_H_
#define RINGFLEET_COORDINATOR_FLEET_FLEET_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/tile_table.h"
#include "cluster/config/settings.h"
#include "cluster/model/expert_layout.h"
#include "cluster/model/mesh.h"
#include "cluster/rpc/coordinator_id.h"
#include "coordinator/fleet/expert_balance.h"
#include "protos/fleet_settings.pb.h"

namespace ringfleet::coordinator {

// The settings of a fleet, the files they name, and its limits of time.
struct FleetOptions {
  std::string name;
  // Names this run of the coordinator to workers. Copies keep it.
  std::string coordinator_id = cluster::NewCoordinatorId();
  // The fleet's cluster file as FormatClusterConfig writes it; empty: flags.
  std::string cluster_file;
  v1::FleetSettings settings = cluster::DefaultSettings();
  // Mesh of the ranks that serve: the mesh of `settings`, or the part that a
  // loss has left.
  cluster::MeshShape mesh;
  // Read from the files that `settings` names.
  cluster::AlgorithmTable collectives = cluster::AlgorithmTable::Default();
  cluster::TileTable tiles;
  // The experts to balance and their first layout, by the model and the mesh.
  ExpertFacts experts;
  cluster::ExpertLayout layout;
  // The fleet is ready only when shards that had to be packed are in the cache
  // folder.
  bool await_shard_cache = false;
  // A failure before the fleet was ready for the first time is final. After
  // that the fleet forms again, as every fleet does.
  bool start_once = false;
  // Most ids of a prompt or a scored text, by the model's attention, and the
  // reason. 0: the context alone limits them.
  size_t most_prompt_ids = 0;
  std::string most_prompt_ids_cause;
  // Memory limit by rank, in GiB; 0 or absent: a part of the host's free
  // memory.
  std::vector<double> memory_gib;
  // Read rate of memory by rank, in GB/s; 0 or absent: unknown.
  std::vector<double> read_gbps;
  absl::Duration lease = absl::Seconds(10);
  absl::Duration collective_timeout = absl::Seconds(30);
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration load_timeout = absl::Hours(6);  // A large model over NFS.
  // Limit for one step: the last resort against a worker that keeps its lease
  // but computes no more.
  absl::Duration step_timeout = absl::Seconds(settings.step_timeout_s());
  // Limit for a job's wait for a lost host.
  absl::Duration recovery_wait = absl::Seconds(settings.recovery().wait());
  // Times of a handover to a whole epoch. See HandoverPace.
  absl::Duration handover_hold = absl::Seconds(30);
  absl::Duration handover_limit = absl::Minutes(5);
  // Wait after a first failure for a report that names the cause better: when a
  // process dies, its peers often report before its own connection breaks.
  absl::Duration cause_grace = absl::Milliseconds(200);

  // Slots of each data group, whose ranks have a cache for them.
  uint32_t GroupSlots() const;
  // Time between two looks at the imbalance of experts; 0: experts stay.
  absl::Duration RebalanceInterval() const;
};

// Reads the tables that `settings` names. An error begins with `prefix` and the
// setting's name: "usage: --tiles FILE: no such file" for "usage: --".
absl::StatusOr<FleetOptions> MakeFleetOptions(v1::FleetSettings settings,
                                              absl::string_view prefix);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_FLEET_FLEET_OPTIONS_H_
