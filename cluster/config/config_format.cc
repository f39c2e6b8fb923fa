// SPDX-License-Identifier: Apache-2.0
// A validated fleet back to YAML; config.cc reads what this writes.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/config/config.h"
#include "cluster/model/dtype_names.h"
#include "cluster/model/prefill_strategy.h"
#include "cluster/transport/transport_kind.h"

namespace ringfleet::cluster {
namespace {

// Double-quoted YAML; values hold no control characters.
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out + "\"";
}

}  // namespace

std::string FormatClusterConfig(const ClusterConfig& config) {
  std::string out = absl::StrCat("name: ", Quoted(config.name),
                                 "\nmodel: ", Quoted(config.model),
                                 "\ndtype: ", WeightDtypeName(config.dtype),
                                 "\nwire: ", WireText(config.wire), "\n");
  if (config.transport != v1::TRANSPORT_KIND_AUTO) {
    absl::StrAppend(&out, "transport: ", TransportName(config.transport), "\n");
  }
  if (config.prefill_strategy != v1::PREFILL_STRATEGY_AUTO) {
    absl::StrAppend(&out, "prefill_strategy: ",
                    PrefillStrategyName(config.prefill_strategy), "\n");
  }
  if (config.cache_dtype != v1::CACHE_DTYPE_UNSPECIFIED) {
    absl::StrAppend(&out, "cache_type: ", CacheDtypeName(config.cache_dtype),
                    "\n");
  }
  if (!config.collectives.empty()) {
    absl::StrAppend(&out, "collectives: ", Quoted(config.collectives), "\n");
  }
  if (!config.tiles.empty()) {
    absl::StrAppend(&out, "tiles: ", Quoted(config.tiles), "\n");
  }
  if (config.context > 0) {
    absl::StrAppend(&out, "context: ", config.context, "\n");
  }
  if (config.reference) absl::StrAppend(&out, "reference: true\n");
  absl::StrAppend(&out, "parallel: ", config.parallel,
                  "\nmesh: {data: ", config.mesh.data,
                  ", expert: ", config.mesh.expert,
                  ", tensor: ", config.mesh.tensor, "}\n");
  const ExpertsConfig& experts = config.experts;
  if (experts.slots > 0 || experts.capacity > 0 || experts.interval_s > 0) {
    absl::StrAppend(&out, "experts: {threshold: ", experts.threshold);
    if (experts.slots > 0) absl::StrAppend(&out, ", slots: ", experts.slots);
    if (experts.capacity > 0) {
      absl::StrAppend(&out, ", capacity: ", experts.capacity);
    }
    if (experts.interval_s > 0) {
      absl::StrAppend(&out,
                      ", rebalance: auto, interval_s: ", experts.interval_s);
    }
    absl::StrAppend(&out, "}\n");
  }
  absl::StrAppend(&out, "coordinator: {host: ", Quoted(config.coordinator.host),
                  ", port: ", config.coordinator.port,
                  ", http_port: ", config.coordinator.http_port,
                  "}\nworkers:\n");
  for (const WorkerConfig& worker : config.workers) {
    absl::StrAppend(&out, "  - {host: ", Quoted(worker.host),
                    ", address: ", Quoted(worker.address),
                    ", port: ", worker.port);
    if (worker.threads > 0)
      absl::StrAppend(&out, ", threads: ", worker.threads);
    if (worker.numa_node >= 0) {
      absl::StrAppend(&out, ", numa_node: ", worker.numa_node);
    }
    if (worker.memory_gib > 0) {
      absl::StrAppend(&out, ", memory_gib: ", worker.memory_gib);
    }
    if (worker.read_gbps > 0) {
      absl::StrAppend(&out, ", read_gbps: ", worker.read_gbps);
    }
    absl::StrAppend(&out, "}\n");
  }
  if (config.ssh.has_value()) {
    absl::StrAppend(&out, "ssh:\n");
    if (!config.ssh->user.empty()) {
      absl::StrAppend(&out, "  user: ", Quoted(config.ssh->user), "\n");
    }
    if (config.ssh->port > 0) {
      absl::StrAppend(&out, "  port: ", config.ssh->port, "\n");
    }
    if (!config.ssh->options.empty()) {
      absl::StrAppend(
          &out, "  options: [",
          absl::StrJoin(config.ssh->options, ", ",
                        [](std::string* to, const std::string& option) {
                          absl::StrAppend(to, Quoted(option));
                        }),
          "]\n");
    }
  }
  if (!config.cache_dir.empty()) {
    absl::StrAppend(&out, "cache_dir: ", Quoted(config.cache_dir), "\n");
  }
  if (!config.log_dir.empty()) {
    absl::StrAppend(&out, "log_dir: ", Quoted(config.log_dir), "\n");
  }
  absl::StrAppend(
      &out, "security: {mode: ",
      config.security == SecurityMode::kInsecure ? "insecure" : "loopback",
      "}\n");
  return out;
}

}  // namespace ringfleet::cluster
