// SPDX-License-Identifier: Apache-2.0
#include "coordinator/metrics/fleet_metrics.h"

#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/metrics/metric_list.h"
#include "kernels/attention/latent_cache.h"

namespace ringfleet::coordinator {
namespace {

// Returns "one_shot" of "COLLECTIVE_ALGORITHM_ONE_SHOT".
std::string EnumLabel(const std::string& name, absl::string_view prefix) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, prefix)) return "unknown";
  return absl::AsciiStrToLower(rest);
}

// A rank of the fleet, with its worker if one has registered.
struct RankedWorker {
  MetricLabels labels;
  const v1::WorkerState* worker = nullptr;
};

std::vector<RankedWorker> WorkersOf(const v1::ClusterState& state) {
  std::vector<RankedWorker> ranks(state.world_size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].labels = {{"rank", absl::StrCat(rank)}, {"host", ""}};
  }
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.rank() >= ranks.size()) continue;
    ranks[worker.rank()].labels.back().second = worker.host();
    ranks[worker.rank()].worker = &worker;
  }
  return ranks;
}

void AppendWorkers(const v1::ClusterState& state, MetricsText* out) {
  const std::vector<RankedWorker> ranks = WorkersOf(state);
  // Adds a sample for each rank that has a worker.
  const auto add = [&](const Metric& metric, const auto& value) {
    out->Begin(metric);
    for (const RankedWorker& rank : ranks) {
      if (rank.worker != nullptr) out->Add(rank.labels, value(*rank.worker));
    }
  };
  out->Begin(metrics::kWorkerUp);
  for (const RankedWorker& rank : ranks) {
    const bool up =
        rank.worker != nullptr && rank.worker->state() != v1::MEMBER_STATE_LOST;
    out->Add(rank.labels, uint64_t{up});
  }
  using Worker = v1::WorkerState;
  add(metrics::kHeartbeatAge,
      [](const Worker& of) { return of.heartbeat_age_ms() * 1e-3; });
  add(metrics::kWeightBytes,
      [](const Worker& of) { return uint64_t{of.resident_bytes()}; });
  add(metrics::kCacheBytes,
      [](const Worker& of) { return uint64_t{of.cache_bytes()}; });
  add(metrics::kMemoryBytes,
      [](const Worker& of) { return uint64_t{of.figures().memory_bytes()}; });
  // Adds a sample for each kind of operation of each worker.
  const auto add_collectives = [&](const Metric& metric, const auto& value) {
    out->Begin(metric);
    for (const RankedWorker& rank : ranks) {
      if (rank.worker == nullptr) continue;
      for (const auto& total : rank.worker->figures().collectives()) {
        MetricLabels labels = rank.labels;
        labels.emplace_back("operation", LabelOf(total.operation()));
        labels.emplace_back("algorithm", LabelOf(total.algorithm()));
        out->Add(labels, value(total));
      }
    }
  };
  using Total = v1::CollectiveTotal;
  add_collectives(metrics::kCollectives,
                  [](const Total& of) { return uint64_t{of.count()}; });
  add_collectives(metrics::kCollectiveSeconds, [](const Total& of) {
    return static_cast<double>(of.duration_ns()) * 1e-9;
  });
  add_collectives(metrics::kCollectiveBytes,
                  [](const Total& of) { return uint64_t{of.sent_bytes()}; });
  out->Begin(metrics::kPeerRoundTrip);
  for (const RankedWorker& rank : ranks) {
    if (rank.worker == nullptr) continue;
    for (const v1::RoundTrip& trip : rank.worker->figures().round_trips()) {
      MetricLabels labels = rank.labels;
      labels.emplace_back("peer", absl::StrCat(trip.peer()));
      out->Add(labels, static_cast<double>(trip.ns()) * 1e-9);
    }
  }
}

void AppendExperts(const v1::FleetFigures& figures, MetricsText* out) {
  if (figures.experts().empty()) return;
  out->Begin(metrics::kBusiestExpert);
  for (const v1::ExpertImbalance& layer : figures.experts()) {
    out->Add({{"layer", absl::StrCat(layer.layer())}}, layer.expert());
  }
  out->Begin(metrics::kExpertImbalance);
  for (const v1::ExpertImbalance& layer : figures.experts()) {
    if (layer.coordinate() == 0) continue;
    out->Add({{"layer", absl::StrCat(layer.layer())}}, layer.coordinate());
  }
}

}  // namespace

std::string LabelOf(v1::CollectiveOperation operation) {
  return EnumLabel(v1::CollectiveOperation_Name(operation),
                   "COLLECTIVE_OPERATION_");
}

std::string LabelOf(v1::CollectiveAlgorithm algorithm) {
  return EnumLabel(v1::CollectiveAlgorithm_Name(algorithm),
                   "COLLECTIVE_ALGORITHM_");
}

void AppendFleetMetrics(const v1::ClusterState& state, const std::string& model,
                        MetricsText* out) {
  const MetricLabels of_model = {{"model_name", model}};
  const v1::CacheUse& cache = state.cache();
  const v1::FleetFigures& figures = state.figures();
  out->Only(metrics::kRequestsRunning, of_model,
            uint64_t{state.requests_running()});
  out->Only(metrics::kRequestsWaiting, of_model,
            uint64_t{state.requests_waiting()});
  out->Only(metrics::kCacheUsage, of_model,
            cache.blocks_total() == 0
                ? 0.0
                : static_cast<double>(cache.blocks_used()) /
                      static_cast<double>(cache.blocks_total()));
  out->Only(metrics::kCacheConfig,
            {{"block_size", absl::StrCat(kernels::kCacheBlockPositions)},
             {"num_gpu_blocks", absl::StrCat(cache.blocks_total())}},
            uint64_t{1});
  out->Only(metrics::kPreemptions, of_model, uint64_t{cache.preemptions()});
  out->Only(metrics::kPrefixQueries, of_model,
            uint64_t{cache.prefix_queries()});
  out->Only(metrics::kPrefixHits, of_model, uint64_t{cache.prefix_hits()});
  out->Only(metrics::kIterationTokens, of_model, figures.step_tokens());

  out->Only(metrics::kBuild,
            {{"version", state.build().version()},
             {"build_id", state.build().build_id()}},
            uint64_t{1});
  out->Only(metrics::kReady, {},
            uint64_t{state.state() == v1::FLEET_STATE_READY});
  out->Begin(metrics::kEpochs);
  out->Add({{"outcome", "ready"}}, uint64_t{figures.ready_epochs()});
  out->Add({{"outcome", "failed"}}, uint64_t{figures.failed_epochs()});
  out->Only(metrics::kReplays, {}, uint64_t{figures.replays()});
  out->Only(metrics::kRecomputed, {}, uint64_t{cache.recomputed_positions()});
  out->Only(metrics::kCacheBlocks, {}, uint64_t{cache.blocks_total()});
  out->Only(metrics::kUsedCacheBlocks, {}, uint64_t{cache.blocks_used()});
  out->Only(metrics::kKeptCacheBlocks, {}, uint64_t{cache.blocks_kept()});
  out->Only(metrics::kStepDuration, {}, figures.step_seconds());
  out->Only(metrics::kStepSequences, {}, figures.step_sequences());
  out->Begin(metrics::kTokens);
  out->Add({{"kind", "prompt"}}, uint64_t{figures.prompt_tokens()});
  out->Add({{"kind", "replayed"}}, uint64_t{figures.replayed_tokens()});
  out->Add({{"kind", "generated"}}, uint64_t{figures.generated_tokens()});
  out->Only(metrics::kReadBytes, {}, uint64_t{figures.read_bytes()});
  out->Only(metrics::kSentBytes, {}, uint64_t{figures.sent_bytes()});
  out->Only(metrics::kSentBytesPerToken, {}, figures.sent_bytes_per_token());
  AppendExperts(figures, out);
  AppendWorkers(state, out);
}

}  // namespace ringfleet::coordinator
