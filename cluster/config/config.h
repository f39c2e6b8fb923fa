// SPDX-License-Identifier: Apache-2.0
// cluster.yaml, the one description of a fleet, as validated structs. What is
// here can be trusted: names are fit for paths, addresses for sockets and
// command lines, and the mesh covers the workers.
//
// Errors are INVALID_ARGUMENT, "FILE:LINE: what, want ..." for the first
// problem in the file; NOT_FOUND when there is no file. Thread-safe.
#ifndef RINGFLEET_CLUSTER_CONFIG_CONFIG_H_
#define RINGFLEET_CLUSTER_CONFIG_CONFIG_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/model/mesh.h"
#include "cluster/rpc/host_address.h"
#include "cluster/wire/op_descriptor.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// Sequences that a fleet runs at a time.
inline constexpr int kMaxParallel = 1024;

// data * expert * tensor == number of workers; tensor varies fastest.
struct MeshConfig {
  int data = 1;
  int expert = 1;
  int tensor = 1;
};

// Copies of experts, and whether they move by themselves.
struct ExpertsConfig {
  int slots = 0;           // Of a layer, on all workers; 0: no copies.
  double capacity = 0;     // Of a place, in fair shares; 0: no limit.
  int interval_s = 0;      // Between looking at the imbalance; 0: never.
  double threshold = 1.2;  // Imbalance from which on they move.
};

struct CoordinatorConfig {
  std::string host = "127.0.0.1";  // Reached by ssh, listened on, advertised.
  int port = 50051;
  int http_port = 8080;  // Reserved for the HTTP API; nothing listens on it.
};

struct WorkerConfig {
  std::string host = "127.0.0.1";  // Reached by ssh.
  std::string address;             // Listened on and advertised; else `host`.
  int port = 50052;                // 0: chosen by the kernel.
  int threads = 0;                 // 0: one per core.
  int numa_node = -1;              // -1: not bound to one.
  double memory_gib = 0;           // 0: what the host has.
  double read_gbps = 0;            // Of memory, as doctor measures; 0: unknown.
};

struct SshConfig {
  std::string user;                  // Empty: as ssh decides.
  int port = 0;                      // 0: as ssh decides.
  std::vector<std::string> options;  // Arguments of ssh, one an element.
};

enum class SecurityMode {
  kLoopback,  // Every process listens on a loopback address only.
  kInsecure,  // Any address, neither encrypted nor authenticated.
};

struct ClusterConfig {
  std::string name;   // [A-Za-z0-9._-]+; the file's stem unless given.
  std::string model;  // Absolute path.
  v1::Dtype dtype = v1::DTYPE_INT8;  // Of weights in memory.
  Wire wire = Wire::kBf16;           // Between ranks.
  v1::TransportKind transport = v1::TRANSPORT_KIND_AUTO;
  v1::PrefillStrategy prefill_strategy = v1::PREFILL_STRATEGY_AUTO;
  // Of the latent cache; unspecified: float32 with float32 weights, else
  // bfloat16.
  v1::CacheDtype cache_dtype = v1::CACHE_DTYPE_UNSPECIFIED;
  std::string collectives;  // Absolute path of an AlgorithmTable, or empty.
  std::string tiles;        // The same of a TileTable.
  int context = 0;          // Positions of a sequence; 0: decided at load.
  int parallel = 4;         // Sequences at a time.
  bool reference = false;   // Workers hold a plain float32 copy, to compare.
  MeshConfig mesh;
  ExpertsConfig experts;
  CoordinatorConfig coordinator;
  std::vector<WorkerConfig> workers;  // Index = rank; 1 to kMaxWorkers.
  std::optional<SshConfig> ssh;       // Present: hosts are reached by ssh.
  std::string cache_dir;              // Absolute, or empty: none.
  std::string log_dir;                // Absolute, or empty: the state folder.
  SecurityMode security = SecurityMode::kLoopback;
};

// Reads `path`; relative paths inside count from its folder.
absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path);

// `file_name` appears in errors and gives the default name; `base_dir` is the
// absolute folder that relative paths count from.
absl::StatusOr<ClusterConfig> ParseClusterConfig(absl::string_view yaml,
                                                 absl::string_view file_name,
                                                 absl::string_view base_dir);

// The same fleet as YAML with every default filled in and every path
// absolute, so that it means the same in another folder.
std::string FormatClusterConfig(const ClusterConfig& config);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CONFIG_CONFIG_H_
