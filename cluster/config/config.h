// SPDX-License-Identifier: Apache-2.0
// The cluster file, the one description of a fleet, as validated structs.
// Callers may trust a ClusterConfig: names are fit for paths, addresses are fit
// for sockets and command lines, and the mesh covers the workers.
//
// Errors: INVALID_ARGUMENT names the first problem of the file as "FILE:LINE:
// what, want ..."; NOT_FOUND: the file does not exist. Thread-safe.
#ifndef RINGFLEET_CLUSTER_CONFIG_CONFIG_H_
#define RINGFLEET_CLUSTER_CONFIG_CONFIG_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/config/settings.h"
#include "cluster/model/mesh.h"
#include "cluster/rpc/host_address.h"
#include "protos/fleet_settings.pb.h"

namespace ringfleet::cluster {

struct CoordinatorConfig {
  std::string host = "127.0.0.1";  // Reached by ssh, listened on, advertised.
  int port = 50051;
};

struct WorkerConfig {
  std::string host = "127.0.0.1";  // Reached by ssh.
  std::string address;             // Listened on and advertised; else `host`.
  int port = 50052;                // 0: chosen by the kernel.
  int threads = 0;                 // 0: one per core.
  int numa_node = -1;              // -1: not bound to one.
  double memory_gib = 0;           // 0: what the host has.
  double read_gbps = 0;            // Read rate of memory by doctor; 0: unknown.
};

struct SshConfig {
  std::string user;                  // Empty: as ssh decides.
  int port = 0;                      // 0: as ssh decides.
  std::vector<std::string> options;  // Arguments of ssh, one an element.
};

// OpenAI's API on the coordinator's host. Paths are absolute, of that host;
// empty ones are not given.
struct HttpConfig {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string alias;         // Name of the model; empty: that of its folder.
  std::string api_key_file;  // Lines `NAME: KEY`.
  // PEM files. Certificate and key go together.
  std::string tls_cert, tls_key, tls_client_ca;
  std::vector<std::string> cors_origins;
  double request_timeout_s = 0;  // Of an answer; 0: none.
};

enum class SecurityMode {
  kLoopback,  // Every process listens on a loopback address only.
  kInsecure,  // Any address, without encryption and authentication.
};

struct ClusterConfig {
  std::string name;  // [A-Za-z0-9._-]+; the file's stem unless given.
  std::string path;  // Absolute, of the file; empty: parsed from a text.
  // Paths are absolute. Defaults are filled in, and the mesh has all axes.
  v1::FleetSettings settings;
  CoordinatorConfig coordinator;
  std::optional<HttpConfig> http;     // Absent: no HTTP port.
  std::vector<WorkerConfig> workers;  // Index = rank; 1 to kMaxWorkers.
  std::optional<SshConfig> ssh;       // Present: hosts are reached by ssh.
  SecurityMode security = SecurityMode::kLoopback;
};

// Reads `path`. Relative paths in the file count from the file's folder.
absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path);

// Reads YAML. `file_name` appears in errors and gives the default name.
// Relative paths count from the absolute folder `base_dir`.
absl::StatusOr<ClusterConfig> ParseClusterConfig(absl::string_view yaml,
                                                 absl::string_view file_name,
                                                 absl::string_view base_dir);

// Writes the fleet as YAML with defaults filled in and absolute paths, so that
// the text means the same in another folder.
std::string FormatClusterConfig(const ClusterConfig& config);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CONFIG_CONFIG_H_
