// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/plan/plan_fleet.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/json_depth.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/json_output.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::HostSpec;

constexpr double kGib = 1073741824.0;
constexpr uint64_t kMaxFleetFileBytes = 16 << 20;
// Servers have 3 to 14 GB/s of memory a core.
constexpr double kReadPerCore = 10e9;

// The flags that a fleet still needs: "--memory (GiB of a host)".
class MissingFlags {
 public:
  // Returns the value; 0 if it is missing.
  double Value(const std::optional<double>& value, absl::string_view flag,
               absl::string_view meaning) {
    const bool known = absl::StrContains(absl::StrJoin(entries_, " "), flag);
    if (!value.has_value() && !known) {
      entries_.push_back(absl::StrCat(flag, " (", meaning, ")"));
    }
    return value.value_or(0);
  }

  // Errors: INVALID_ARGUMENT names all of them.
  absl::Status status() const {
    if (entries_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("usage: give also ", absl::StrJoin(entries_, ", ")));
  }

 private:
  std::vector<std::string> entries_;
};

absl::Status CheckPositive(const std::optional<double>& value,
                           absl::string_view flag, absl::string_view unit,
                           double most) {
  if (!value.has_value() || (*value > 0 && *value <= most)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("usage: ", flag, " ", *value, ", want more than 0 ", unit,
                   ", at most ", static_cast<int64_t>(most)));
}

absl::Status CheckFlags(const PlanOptions& options) {
  RF_RETURN_IF_ERROR(
      CheckPositive(options.memory_gib, "--memory", "GiB", 1 << 20));
  RF_RETURN_IF_ERROR(
      CheckPositive(options.bandwidth_gbps, "--bandwidth", "GB/s", 1e6));
  RF_RETURN_IF_ERROR(
      CheckPositive(options.network_gbit, "--network", "Gbit/s", 1e5));
  RF_RETURN_IF_ERROR(CheckPositive(options.gops, "--gops", "GOPS", 1e9));
  if (options.latency_us.has_value() &&
      !(*options.latency_us >= 0 && *options.latency_us <= 1e7)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "usage: --latency ", *options.latency_us, ", want 0 to 10000000 us"));
  }
  if (options.threads.has_value() &&
      !(*options.threads >= 1 && *options.threads <= 1024)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "usage: --threads ", *options.threads, ", want 1 to 1024"));
  }
  return absl::OkStatus();
}

// Sets the network of a fleet by flags. One host needs none.
void SetNetwork(const PlanOptions& options, PlanFleet* fleet,
                MissingFlags* missing) {
  const bool alone = fleet->hosts.size() == 1;
  const double gbit = alone ? options.network_gbit.value_or(10)
                            : missing->Value(options.network_gbit, "--network",
                                             "Gbit/s of a host");
  const double latency =
      alone ? options.latency_us.value_or(0)
            : missing->Value(options.latency_us, "--latency", "us one way");
  fleet->network = {.bytes_per_second = gbit * 1e9 / 8,
                    .latency_seconds = latency * 1e-6};
}

// Threads and arithmetic of a rank that has `part` of a host.
void SetCompute(const PlanOptions& options, int threads, double part,
                HostSpec* host, std::vector<std::string>* assumptions) {
  const bool assumed = threads == 0;
  if (assumed) {
    threads = std::max(1, static_cast<int>(std::lround(
                              host->read_bytes_per_second / kReadPerCore)));
  }
  host->threads = threads;
  host->int8_ops_per_second = options.gops.has_value()
                                  ? *options.gops * 1e9 * part
                                  : threads * cluster::kInt8OpsPerCore;
  if (!assumptions->empty()) return;  // They hold for all hosts.
  if (assumed) {
    assumptions->push_back(
        absl::StrFormat("%d threads a worker: %.0f GB/s of memory a core "
                        "(--threads)",
                        threads, kReadPerCore * 1e-9));
  }
  if (!options.gops.has_value()) {
    assumptions->push_back(absl::StrFormat(
        "%.0f GOPS of int8 products a worker: %.0f a core, as a Zen 4 core "
        "with AVX-512 VNNI has; AVX2 has 100 (--gops)",
        host->int8_ops_per_second * 1e-9, cluster::kInt8OpsPerCore * 1e-9));
  }
}

absl::StatusOr<PlanFleet> FleetOfFlags(const PlanOptions& options) {
  if (!options.hosts.has_value()) {
    return absl::InvalidArgumentError(
        "usage: give a fleet: --fleet FILE, or --hosts N, --memory GIB, "
        "--bandwidth GBPS, and for several hosts --network GBITPS and "
        "--latency "
        "USEC");
  }
  if (*options.hosts < 1 || *options.hosts > kMaxPlannedHosts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "usage: --hosts ", *options.hosts, ", want 1 to ", kMaxPlannedHosts));
  }
  MissingFlags missing;
  const double memory =
      missing.Value(options.memory_gib, "--memory", "GiB of a host");
  const double bandwidth = missing.Value(options.bandwidth_gbps, "--bandwidth",
                                         "GB/s of a host's memory");
  PlanFleet fleet;
  for (int i = 0; i < *options.hosts; ++i) {
    HostSpec host = {.name = absl::StrCat("host ", i),
                     .memory_bytes = static_cast<uint64_t>(memory * kGib),
                     .read_bytes_per_second = bandwidth * 1e9};
    SetCompute(options, options.threads.value_or(0), 1, &host,
               &fleet.assumptions);
    fleet.hosts.push_back(std::move(host));
  }
  SetNetwork(options, &fleet, &missing);
  RF_RETURN_IF_ERROR(missing.status());
  return fleet;
}

absl::StatusOr<PlanFleet> FleetOfConfig(const PlanOptions& options) {
  PlanFleet fleet;
  RF_ASSIGN_OR_RETURN(fleet.config, cluster::LoadClusterConfig(options.fleet));
  fleet.model = fleet.config->settings.model();
  std::map<std::string, int> on_host;
  for (const cluster::WorkerConfig& worker : fleet.config->workers) {
    ++on_host[worker.host];
  }
  MissingFlags missing;
  const double bandwidth = missing.Value(options.bandwidth_gbps, "--bandwidth",
                                         "GB/s of a host's memory");
  for (size_t rank = 0; rank < fleet.config->workers.size(); ++rank) {
    const cluster::WorkerConfig& worker = fleet.config->workers[rank];
    const double part = 1.0 / on_host[worker.host];
    HostSpec host = {
        .name = absl::StrCat("rank ", rank, " (", worker.host, ")"),
        .read_bytes_per_second = bandwidth * 1e9 * part};
    if (worker.memory_gib > 0) {
      host.memory_bytes = static_cast<uint64_t>(worker.memory_gib * kGib);
    } else {
      const double memory =
          missing.Value(options.memory_gib, "--memory",
                        absl::StrCat("GiB of a host; worker ", rank, " of ",
                                     options.fleet, " has no memory_gib"));
      host.memory_bytes = static_cast<uint64_t>(memory * part * kGib);
    }
    int threads = worker.threads;
    if (threads == 0 && options.threads.has_value()) {
      threads = std::max(1, static_cast<int>(*options.threads * part));
    }
    SetCompute(options, threads, part, &host, &fleet.assumptions);
    fleet.hosts.push_back(std::move(host));
  }
  SetNetwork(options, &fleet, &missing);
  RF_RETURN_IF_ERROR(missing.status());
  return fleet;
}

// More than any host has, in all units of the file.
constexpr double kMostMeasured = 1e9;

// A positive number of an object.
absl::StatusOr<double> Measured(const Json& object, const char* key,
                                absl::string_view place, double least) {
  const auto it = object.find(key);
  if (it != object.end() && it->is_number() && it->get<double>() >= least &&
      it->get<double>() <= kMostMeasured) {
    return it->get<double>();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      place, ".", key, ": ", it == object.end() ? "missing" : it->dump(),
      ", want a number, as doctor -o json prints it"));
}

// An object's member that is an object, or an empty one.
Json Member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : Json::object();
}

// Reads the rates of a worker's kernels, in the units of doctor -o json.
absl::StatusOr<cluster::MeasuredRates> ParseRates(const Json& worker,
                                                  const std::string& place) {
  constexpr double kLeast = 1e-6;
  cluster::MeasuredRates rates;
  const Json& products = worker["products"];
  if (!products.is_array() || products.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        place, ".products: ", products.dump(), ", want a list of rates"));
  }
  for (const Json& product : products) {
    const std::string one =
        absl::StrCat(place, ".products[", rates.products.size(), "]");
    if (!product.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(one, ": ", product.dump(), ", want an object"));
    }
    RF_ASSIGN_OR_RETURN(const double rows, Measured(product, "rows", one, 1));
    RF_ASSIGN_OR_RETURN(const double gops,
                        Measured(product, "gops", one, kLeast));
    const double before =
        rates.products.empty() ? 0 : rates.products.back().rows;
    if (rows <= before || (before == 0 && rows != 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat(one, ".rows: ", rows, ", want ",
                       before == 0 ? "1 at first" : "more than before"));
    }
    rates.products.push_back({.rows = rows, .ops_per_second = gops * 1e9});
  }
  if (!rates.large().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ".products: none with ", cluster::kLargeRows,
                     " rows, which other forms are compared with"));
  }
  const Json forms = Member(worker, "form_gops");
  const Json attention = Member(worker, "attention_gflops");
  const std::string of_form = absl::StrCat(place, ".form_gops");
  const std::string of_attention = absl::StrCat(place, ".attention_gflops");
  for (const auto& [object, key, name, rate] :
       {std::tuple(&forms, "int4", &of_form, &rates.int4),
        std::tuple(&forms, "bf16", &of_form, &rates.bf16),
        std::tuple(&forms, "f32", &of_form, &rates.f32),
        std::tuple(&attention, "absorbed", &of_attention, &rates.absorbed),
        std::tuple(&attention, "absorbed_16_heads", &of_attention,
                   &rates.absorbed_few),
        std::tuple(&attention, "materialized", &of_attention,
                   &rates.materialized)}) {
    RF_ASSIGN_OR_RETURN(*rate, Measured(*object, key, *name, kLeast));
    *rate *= 1e9;
  }
  for (const auto& [key, rate] :
       {std::pair("absorbed_f32_cache", &rates.absorbed_f32_cache),
        std::pair("materialized_f32_cache", &rates.materialized_f32_cache)}) {
    if (!attention.contains(key)) continue;
    RF_ASSIGN_OR_RETURN(*rate, Measured(attention, key, of_attention, kLeast));
    *rate *= 1e9;
  }
  return rates;
}

}  // namespace

absl::StatusOr<PlanFleet> ParseMeasuredFleet(absl::string_view json,
                                             absl::string_view name,
                                             const PlanOptions& options) {
  const absl::Status depth = cluster::CheckJsonDepth(json);
  if (!depth.ok()) return Annotate(depth, name);
  const Json document = Json::parse(json.begin(), json.end(), nullptr,
                                    /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("workers") ||
      !document["workers"].is_array() || document["workers"].empty() ||
      document["workers"].size() > kMaxPlannedHosts) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": want an object with \"workers\", 1 to ", kMaxPlannedHosts,
        " of them, as doctor -o json prints it"));
  }
  PlanFleet fleet;
  for (const Json& worker : document["workers"]) {
    const std::string place =
        absl::StrCat(name, ": workers[", fleet.hosts.size(), "]");
    if (!worker.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": ", worker.dump(), ", want an object"));
    }
    RF_ASSIGN_OR_RETURN(const double memory,
                        Measured(worker, "memory_gib", place, 1e-6));
    RF_ASSIGN_OR_RETURN(const double read,
                        Measured(worker, "read_gbps", place, 1e-6));
    RF_ASSIGN_OR_RETURN(const double gops,
                        Measured(worker, "int8_gops", place, 1e-6));
    RF_ASSIGN_OR_RETURN(const double threads,
                        Measured(worker, "threads", place, 1));
    const auto host = worker.find("host");
    fleet.hosts.push_back(
        {.name = absl::StrCat("rank ", fleet.hosts.size(), " (",
                              host != worker.end() && host->is_string()
                                  ? host->get<std::string>()
                                  : "?",
                              ")"),
         .memory_bytes = static_cast<uint64_t>(
             std::min(options.memory_gib.value_or(memory), 1048576.0) * kGib),
         .read_bytes_per_second = options.bandwidth_gbps.value_or(read) * 1e9,
         .int8_ops_per_second = options.gops.value_or(gops) * 1e9,
         .threads = options.threads.value_or(
             static_cast<int>(std::min(threads, 1024.0)))});
    // With other threads, reads or products none of the rates would hold.
    if (worker.contains("products") && !options.gops.has_value() &&
        !options.bandwidth_gbps.has_value() && !options.threads.has_value()) {
      cluster::HostSpec& measured = fleet.hosts.back();
      RF_ASSIGN_OR_RETURN(measured.measured, ParseRates(worker, place));
      measured.int8_ops_per_second = *measured.measured->large();
    }
  }
  MissingFlags missing;
  if (fleet.hosts.size() > 1 && document.contains("network") &&
      document["network"].is_object()) {
    const Json& network = document["network"];
    const std::string place = absl::StrCat(name, ": network");
    PlanOptions measured = options;
    if (!measured.network_gbit.has_value()) {
      RF_ASSIGN_OR_RETURN(measured.network_gbit,
                          Measured(network, "gbit", place, 1e-6));
    }
    if (!measured.latency_us.has_value()) {
      RF_ASSIGN_OR_RETURN(measured.latency_us,
                          Measured(network, "latency_us", place, 0));
    }
    SetNetwork(measured, &fleet, &missing);
  } else {
    SetNetwork(options, &fleet, &missing);
  }
  RF_RETURN_IF_ERROR(missing.status());
  const auto absent = document.find("absent");
  if (absent != document.end() && absent->is_array()) {
    fleet.assumptions.push_back(
        absl::StrCat("fleet without ", absent->size(),
                     " workers that did not answer `ringfleet doctor`"));
  }
  const auto model = document.find("model");
  if (model != document.end() && model->is_string()) {
    fleet.model = model->get<std::string>();
  }
  return fleet;
}

absl::StatusOr<PlanFleet> ReadPlanFleet(const PlanOptions& options) {
  RF_RETURN_IF_ERROR(CheckFlags(options));
  if (options.fleet.empty()) return FleetOfFlags(options);
  if (options.hosts.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --hosts ", *options.hosts, " with --fleet ",
                     options.fleet, ", want one of them"));
  }
  if (!absl::EndsWith(options.fleet, ".json")) return FleetOfConfig(options);
  RF_ASSIGN_OR_RETURN(
      const std::string json,
      cluster::ReadSmallFile(options.fleet, kMaxFleetFileBytes));
  return ParseMeasuredFleet(json, options.fleet, options);
}

}  // namespace ringfleet::coordinator::cli
