// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/doctor/doctor_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/model/host_spec.h"
#include "cluster/rpc/host_address.h"
#include "coordinator/cli/table.h"
#include "coordinator/planning/step_cost.h"

namespace ringfleet::coordinator::cli {
namespace {

// A rank this much slower than the median holds the others up.
constexpr double kUneven = 0.8;
constexpr double kSkewMs = 500;
constexpr double kSlowLinkGbit = 5;
constexpr double kSlowLinkUs = 200;
// Logs grow, and a full disk stops what writes them.
constexpr uint64_t kLeastFreeBytes = uint64_t{5} << 30;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

std::string RankText(const WorkerFindings& worker) {
  return absl::StrCat("rank ", worker.rank, " (", worker.address, ")");
}

void AdviseOnAbsent(const DoctorFindings& findings,
                    std::vector<std::string>* advice) {
  for (const AbsentWorker& worker : findings.absent) {
    advice->push_back(absl::StrCat(AbsentText(worker),
                                   " does not answer: start it, the figures "
                                   "are those of the others"));
  }
}

void AdviseOnExchange(const DoctorFindings& findings,
                      std::vector<std::string>* advice) {
  if (!findings.exchange.has_value() || findings.exchange->wrong == 0) return;
  advice->push_back(absl::StrCat(
      "an all-reduce over ", findings.exchange->ranks, " ranks has ",
      findings.exchange->wrong,
      " wrong elements: a host computes or a network transfers wrongly"));
}

std::map<std::string, int> CountOnMachines(const DoctorFindings& findings) {
  std::map<std::string, int> counts;
  for (const WorkerFindings& worker : findings.workers) {
    ++counts[worker.machine];
  }
  return counts;
}

// Gives each rank the mean rate of its machine. Workers of one machine take the
// rate from each other, so one of them says nothing about the machine.
std::vector<double> MachineMeans(const DoctorFindings& findings,
                                 std::vector<double> rates) {
  std::map<std::string, double> sums;
  for (size_t rank = 0; rank < rates.size(); ++rank) {
    sums[findings.workers[rank].machine] += rates[rank];
  }
  const std::map<std::string, int> counts = CountOnMachines(findings);
  for (size_t rank = 0; rank < rates.size(); ++rank) {
    const std::string& machine = findings.workers[rank].machine;
    rates[rank] = sums[machine] / counts.at(machine);
  }
  return rates;
}

// Ranks whose machine gives them far less than the median.
void AdviseOnRate(const DoctorFindings& findings, const char* what,
                  std::vector<double> rates, std::vector<std::string>* advice) {
  rates = MachineMeans(findings, std::move(rates));
  const double median = Median(rates);
  for (size_t i = 0; i < rates.size(); ++i) {
    if (rates[i] >= kUneven * median) continue;
    advice->push_back(absl::StrFormat(
        "%s has %.0f %% of the median rank's %s: all ranks wait for it twice a "
        "layer; leave it out, or find what else runs there",
        RankText(findings.workers[i]), 100 * rates[i] / median, what));
  }
}

void AdviseOnSoftware(const DoctorFindings& findings,
                      std::vector<std::string>* advice) {
  std::set<std::string> builds;
  std::set<std::string> isas;
  for (const WorkerFindings& worker : findings.workers) {
    builds.insert(absl::StrCat(worker.report.build().version(), " ",
                               worker.report.build().build_id()));
    isas.insert(worker.report.isa());
  }
  if (builds.size() > 1) {
    advice->push_back(absl::StrCat("different builds (",
                                   absl::StrJoin(builds, ", "),
                                   ") refuse to form a fleet: install one"));
  }
  if (isas.size() > 1) {
    advice->push_back(absl::StrCat(
        "instruction sets differ (", absl::StrJoin(isas, ", "),
        "): attention's last bits depend on which rank has a head"));
  }
}

void AdviseOnHosts(const DoctorFindings& findings,
                   std::vector<std::string>* advice) {
  const std::map<std::string, int> on_machine = CountOnMachines(findings);
  for (const WorkerFindings& worker : findings.workers) {
    const v1::HostReport& report = worker.report;
    const auto workers = static_cast<uint32_t>(on_machine.at(worker.machine));
    if (report.threads() * workers > report.cpus() && report.cpus() > 0) {
      advice->push_back(
          absl::StrCat(RankText(worker), ": ", workers, " workers of ",
                       report.threads(), " threads share ", report.cpus(),
                       " CPUs: set threads so that each thread has one"));
    }
    if (report.numa_nodes() > workers) {
      advice->push_back(absl::StrCat(
          RankText(worker), ": ", report.numa_nodes(), " NUMA nodes and ",
          workers, " workers: start one with numa_node for each node"));
    }
    if (std::abs(worker.clock_skew_ms) > kSkewMs + worker.clock_uncertain_ms) {
      advice->push_back(absl::StrFormat(
          "%s: clock %+.0f ms off: logs of hosts cannot be put side by side; "
          "run an NTP client",
          RankText(worker), worker.clock_skew_ms));
    }
  }
}

double InGib(uint64_t bytes) {
  return std::ldexp(static_cast<double>(bytes), -30);
}

// Workers of one machine write to the same folders.
void AdviseOnFolders(const DoctorFindings& findings,
                     std::vector<std::string>* advice) {
  std::map<std::string, uint64_t> shard_bytes;  // By machine.
  for (const WorkerFindings& worker : findings.workers) {
    shard_bytes[worker.machine] += worker.shard_bytes;
  }
  std::set<std::pair<std::string, std::string>> seen;
  for (const WorkerFindings& worker : findings.workers) {
    for (const v1::FolderSpace& folder : worker.report.folders()) {
      if (!seen.insert({worker.machine, folder.path()}).second) continue;
      const uint64_t shards =
          folder.path() == findings.cache_dir ? shard_bytes[worker.machine] : 0;
      if (folder.free_bytes() >= std::max(kLeastFreeBytes, shards)) continue;
      advice->push_back(absl::StrFormat(
          "%s: %s has %.1f GiB free, want %.1f%s", RankText(worker),
          folder.path(), InGib(folder.free_bytes()),
          InGib(std::max(kLeastFreeBytes, shards)),
          shards > kLeastFreeBytes
              ? " for packed weights, unless they are there already"
              : ""));
    }
  }
}

// Advises on the folder of the coordinator's state, unless a worker of the host
// has named the folder already: logs may lie there.
void AdviseOnState(const DoctorFindings& findings,
                   std::vector<std::string>* advice) {
  if (!findings.coordinator.has_value()) return;
  const CoordinatorFindings& coordinator = *findings.coordinator;
  if (coordinator.state_dir.empty() ||
      coordinator.state_free_bytes >= kLeastFreeBytes) {
    return;
  }
  for (const WorkerFindings& worker : findings.workers) {
    const auto address = cluster::ParseAddress(worker.address);
    if (worker.host != coordinator.host &&
        (!address.ok() || address->host != coordinator.host)) {
      continue;
    }
    for (const v1::FolderSpace& folder : worker.report.folders()) {
      if (folder.path() == coordinator.state_dir) return;
    }
  }
  advice->push_back(absl::StrFormat(
      "coordinator (%s): %s has %.1f GiB free, want %.1f", coordinator.host,
      coordinator.state_dir, InGib(coordinator.state_free_bytes),
      InGib(kLeastFreeBytes)));
}

// The hosts of all workers and of the coordinator, if none of them has weights
// of the model. Empty: a host has them, or it is unknown whether one does.
std::vector<std::string> HostsWithoutWeights(const DoctorFindings& findings) {
  if (findings.workers.empty() || !findings.absent.empty() ||
      !findings.coordinator.has_value() || !findings.coordinator->no_weights) {
    return {};
  }
  std::vector<std::string> hosts = {findings.coordinator->host};
  for (const WorkerFindings& worker : findings.workers) {
    if (!worker.report.no_weights()) return {};
    if (std::find(hosts.begin(), hosts.end(), worker.host) == hosts.end()) {
      hosts.push_back(worker.host);
    }
  }
  return hosts;
}

// The slowest pair in each respect; what a plan needs.
struct Network {
  double latency_us = 0;
  double gbit = 0;
};
Network SlowestOf(const std::vector<PairFindings>& pairs) {
  Network slowest;
  for (const PairFindings& pair : pairs) {
    const double latency = std::max(0.0, pair.small_us - kMessageSeconds * 1e6);
    slowest.latency_us = std::max(slowest.latency_us, latency);
    if (slowest.gbit == 0 || pair.gbit < slowest.gbit) slowest.gbit = pair.gbit;
  }
  return slowest;
}

void AdviseOnLinks(const DoctorFindings& findings,
                   std::vector<std::string>* advice) {
  for (const PairFindings& pair : findings.pairs) {
    const std::string name =
        absl::StrCat("ranks ", pair.first, " and ", pair.second);
    if (pair.small_us > kSlowLinkUs) {
      advice->push_back(absl::StrFormat(
          "%s: %.0f us for 4 bytes; a token waits for two such exchanges a "
          "layer: put them on one switch, switch off power saving",
          name, pair.small_us));
    }
    if (pair.gbit < kSlowLinkGbit) {
      advice->push_back(absl::StrFormat(
          "%s: %.1f Gbit/s: prompts and batches wait for it", name, pair.gbit));
    }
  }
}

// In thousands of millions a second.
Json ProductsJson(const v1::HostReport& report) {
  Json products = Json::array();
  for (const v1::ProductRate& rate : report.products()) {
    products.push_back(
        {{"rows", rate.rows()}, {"gops", rate.ops_per_second() * 1e-9}});
  }
  return products;
}

Json FormsJson(const v1::HostReport& report) {
  Json forms = Json::object();
  for (const v1::FormRate& rate : report.forms()) {
    forms[rate.form()] = rate.ops_per_second() * 1e-9;
  }
  return forms;
}

Json FoldersJson(const v1::HostReport& report) {
  Json folders = Json::array();
  for (const v1::FolderSpace& folder : report.folders()) {
    folders.push_back(
        {{"path", folder.path()}, {"free_gib", InGib(folder.free_bytes())}});
  }
  return folders;
}

// Bytes for the worker while all workers of its machine run.
uint64_t OwnMemoryBytes(const WorkerFindings& worker) {
  const uint64_t available = worker.report.available_memory_bytes();
  return worker.memory_share_bytes == 0
             ? available
             : std::min(available, worker.memory_share_bytes);
}

}  // namespace

double WorkerFindings::int8_ops_per_second() const {
  for (const v1::ProductRate& rate : report.products()) {
    if (rate.rows() == cluster::kLargeRows) return rate.ops_per_second();
  }
  return 0;
}

std::string AbsentText(const AbsentWorker& worker) {
  return absl::StrCat(
      "rank ", worker.rank, " (",
      worker.address.empty() ? "not registered" : worker.address, ")");
}

std::vector<absl::Status> StartProblems(const DoctorFindings& findings) {
  std::vector<absl::Status> problems;
  if (!findings.coordinator.has_value()) return problems;
  const CoordinatorFindings& coordinator = *findings.coordinator;
  const std::string who =
      absl::StrCat("coordinator (", coordinator.host, "): ");
  for (const std::string& port : coordinator.ports_in_use) {
    problems.push_back(absl::UnavailableError(absl::StrCat(who, port)));
  }
  if (coordinator.no_config) {
    problems.push_back(absl::NotFoundError(
        absl::StrCat(who, "no config.json in ", findings.model,
                     ", want the model's small files there")));
  }
  const std::vector<std::string> hosts = HostsWithoutWeights(findings);
  if (!hosts.empty()) {
    problems.push_back(absl::NotFoundError(absl::StrCat(
        "no weights in ", findings.model, " on ", absl::StrJoin(hosts, ", "),
        ", want them on one host, from which the others fetch them")));
  }
  return problems;
}

std::vector<std::string> DoctorAdvice(const DoctorFindings& findings) {
  std::vector<std::string> advice;
  std::vector<double> reads;
  std::vector<double> rates;
  for (const WorkerFindings& worker : findings.workers) {
    reads.push_back(worker.read_bytes_per_second);
    rates.push_back(worker.int8_ops_per_second());
  }
  AdviseOnAbsent(findings, &advice);
  for (const absl::Status& problem : StartProblems(findings)) {
    advice.emplace_back(problem.message());
  }
  AdviseOnSoftware(findings, &advice);
  AdviseOnExchange(findings, &advice);
  if (!findings.quick) {
    AdviseOnRate(findings, "memory bandwidth", reads, &advice);
    AdviseOnRate(findings, "int8 rate", rates, &advice);
  }
  AdviseOnHosts(findings, &advice);
  AdviseOnFolders(findings, &advice);
  AdviseOnState(findings, &advice);
  AdviseOnLinks(findings, &advice);
  return advice;
}

Json DoctorJson(const DoctorFindings& findings) {
  Json workers = Json::array();
  for (const WorkerFindings& worker : findings.workers) {
    const v1::HostReport& report = worker.report;
    workers.push_back(
        {{"rank", worker.rank},
         {"host", worker.host},
         {"address", worker.address},
         {"name", report.host()},
         {"version", report.build().version()},
         {"build_id", report.build().build_id()},
         {"cpu", report.cpu()},
         {"isa", report.isa()},
         {"threads", report.threads()},
         {"cpus", report.cpus()},
         {"numa_nodes", report.numa_nodes()},
         {"memory_gib", InGib(OwnMemoryBytes(worker))},
         {"read_gbps", worker.read_bytes_per_second * 1e-9},
         {"int8_gops", worker.int8_ops_per_second() * 1e-9},
         {"products", ProductsJson(report)},
         {"form_gops", FormsJson(report)},
         {"attention_gflops",
          {{"absorbed", report.attention().absorbed_ops_per_second() * 1e-9},
           {"absorbed_16_heads",
            report.attention().absorbed_16_heads_ops_per_second() * 1e-9},
           {"materialized",
            report.attention().materialized_ops_per_second() * 1e-9},
           {"absorbed_f32_cache",
            report.attention().absorbed_f32_cache_ops_per_second() * 1e-9},
           {"materialized_f32_cache",
            report.attention().materialized_f32_cache_ops_per_second() *
                1e-9}}},
         {"disk_gbps", report.disk_bytes_per_second() > 0
                           ? Json(report.disk_bytes_per_second() * 1e-9)
                           : Json()},
         {"folders", FoldersJson(report)},
         {"clock_skew_ms", worker.clock_skew_ms},
         {"clock_uncertain_ms", worker.clock_uncertain_ms}});
    if (!findings.quick) continue;
    for (const char* rate : {"read_gbps", "int8_gops", "products", "form_gops",
                             "attention_gflops"}) {
      workers.back().erase(rate);
    }
  }
  Json pairs = Json::array();
  for (const PairFindings& pair : findings.pairs) {
    pairs.push_back({{"first", pair.first},
                     {"second", pair.second},
                     {"all_reduce_4b_us", pair.small_us},
                     {"gbit", pair.gbit},
                     {"transport", pair.transport}});
  }
  Json document = {{"workers", workers}, {"pairs", pairs}};
  for (const AbsentWorker& worker : findings.absent) {
    document["absent"].push_back(
        {{"rank", worker.rank}, {"address", worker.address}});
  }
  if (!findings.model.empty()) document["model"] = findings.model;
  if (!findings.pairs.empty()) {
    const Network slowest = SlowestOf(findings.pairs);
    document["network"] = {{"latency_us", slowest.latency_us},
                           {"gbit", slowest.gbit}};
  }
  if (findings.exchange.has_value()) {
    document["exchange"] = {{"ranks", findings.exchange->ranks},
                            {"bytes", findings.exchange->bytes},
                            {"all_reduce_us", findings.exchange->p50_us},
                            {"wrong", findings.exchange->wrong},
                            {"transport", findings.exchange->transport}};
  }
  if (findings.coordinator.has_value()) {
    const CoordinatorFindings& coordinator = *findings.coordinator;
    document["coordinator"] = {
        {"host", coordinator.host},
        {"ports_in_use", JsonArray(coordinator.ports_in_use)},
        {"folders", Json::array()}};
    if (!coordinator.state_dir.empty()) {
      document["coordinator"]["folders"].push_back(
          {{"path", coordinator.state_dir},
           {"free_gib", InGib(coordinator.state_free_bytes)}});
    }
  }
  if (!findings.pairs_skipped.empty()) {
    document["pairs_skipped"] = findings.pairs_skipped;
  }
  document["advice"] = JsonArray(DoctorAdvice(findings));
  return document;
}

std::string DoctorMarkdown(const DoctorFindings& findings) {
  Table workers({{"rank"},
                 {"address"},
                 {"build"},
                 {"isa"},
                 {"threads"},
                 {"CPUs"},
                 {"NUMA"},
                 {"free GiB"},
                 {"memory GB/s"},
                 {"int8 GOPS"},
                 {"disk GB/s"},
                 {"clock ms"}});
  const auto rate = [&findings](int digits, double value) {
    return findings.quick ? "-" : absl::StrFormat("%.*f", digits, value);
  };
  for (const WorkerFindings& worker : findings.workers) {
    const v1::HostReport& report = worker.report;
    const double free_gib = InGib(report.available_memory_bytes());
    const double disk = report.disk_bytes_per_second() * 1e-9;
    workers.Add({absl::StrCat(worker.rank), worker.address,
                 report.build().version(), report.isa(),
                 absl::StrCat(report.threads()), absl::StrCat(report.cpus()),
                 absl::StrCat(report.numa_nodes()),
                 absl::StrFormat("%.1f", free_gib),
                 rate(1, worker.read_bytes_per_second * 1e-9),
                 rate(0, worker.int8_ops_per_second() * 1e-9),
                 disk > 0 ? absl::StrFormat("%.2f", disk) : "-",
                 absl::StrFormat("%+.1f", worker.clock_skew_ms)});
  }
  std::string out = workers.text();
  Table pairs({{"ranks"}, {"over"}, {"all-reduce of 4 bytes, us"}, {"Gbit/s"}});
  for (const PairFindings& pair : findings.pairs) {
    pairs.Add({absl::StrCat(pair.first, ", ", pair.second), pair.transport,
               absl::StrFormat("%.1f", pair.small_us),
               absl::StrFormat("%.1f", pair.gbit)});
  }
  if (!pairs.empty()) absl::StrAppend(&out, "\n", pairs.text());
  if (findings.exchange.has_value()) {
    absl::StrAppendFormat(
        &out, "\nAll-reduce of %d bytes over %d ranks: %.1f us over %s, %s.\n",
        findings.exchange->bytes, findings.exchange->ranks,
        findings.exchange->p50_us, findings.exchange->transport,
        findings.exchange->wrong == 0 ? "right" : "wrong");
  }
  if (!findings.pairs_skipped.empty()) {
    absl::StrAppend(&out, "\nLinks were not measured: ", findings.pairs_skipped,
                    "\n");
  }
  const std::vector<std::string> advice = DoctorAdvice(findings);
  absl::StrAppend(&out,
                  advice.empty() ? "\nNothing to change.\n" : "\nTo change:\n");
  for (const std::string& line : advice)
    absl::StrAppend(&out, "- ", line, "\n");
  return out;
}

}  // namespace ringfleet::coordinator::cli
