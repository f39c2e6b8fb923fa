// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/status.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/experts/expert_map.h"
#include "coordinator/cli/fleet_json.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/launch/status_watch.h"
#include "coordinator/cli/launcher.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

struct StatusOptions {
  SessionOptions session;
  std::string output = "text";
  bool experts = false;
  bool counts = false;
  bool reset = false;
  double watch_s = 0;  // 0: print once.
};

constexpr char kStatusFooter[] = R"(
--experts draws a line for each layer and a cell for each expert. A cell shows the
expert's share of the tokens of about the last hundred steps, in colours on a
terminal unless NO_COLOR is set. max/mean is the busiest expert's tokens over the
mean: with one worker for each expert, a step takes that many times the best time.
--counts shows exact totals since the fleet's start or the last --reset instead. A
token counts once for every expert that it was sent to.

If the mesh splits experts over workers, the busiest coordinate is shown too;
`ringfleet rebalance` evens coordinates out. If the cluster file sets
experts.capacity, the tokens dropped since the last --reset are counted. `ringfleet
eplb` places copies of experts by the output of -o json.

--watch looks again every two seconds, or as often as it says, until Ctrl-C. It
redraws a terminal; a pipe gets a block, or with -o json a line, for each look.
It adds tokens and steps per second ("rates" in -o json), and goes on while no
coordinator answers.

"heard" (heartbeat_age_ms in -o json) is the time since a worker's last heartbeat.
Workers send one every 2.5 s; one that was not heard for 10 s is lost.

-o json tells how a worker loaded: "kept" if it held its weights already, as after
a restart of the coordinator, "tensor_bytes_read", and "reload_cause", the setting
for which weights that it held were loaded again.

"batches pause" (batch_trouble) says why results of batches cannot be stored.

A fleet that serves without some of its data groups is "ready, degraded". Exit: 3 if
the fleet has failed or stops, or no coordinator answers.

Examples:
  ringfleet status --cluster cluster.yaml
  ringfleet status --coordinator 10.0.0.11:50051
  ringfleet status --cluster cluster.yaml --watch
  ringfleet status --cluster cluster.yaml --watch 10 --json >> status.jsonl
  ringfleet status --cluster cluster.yaml --experts
  ringfleet status --cluster cluster.yaml -o json
  ringfleet status --cluster cluster.yaml --experts --counts --reset -o json
)";

// Returns shares of each layer's tokens, or exact totals.
Json ExpertsJson(const v1::DescribeExpertsResponse& experts, bool counts) {
  Json layers = Json::object();
  for (const v1::ExpertCounts& layer : experts.layers()) {
    Json values = Json::array();
    if (counts) {
      values = JsonArray(layer.tokens());
    } else {
      const double sum =
          std::accumulate(layer.average().begin(), layer.average().end(), 0.0);
      for (float average : layer.average()) {
        values.push_back(sum > 0 ? average / sum : 0.0);
      }
    }
    layers[absl::StrCat(layer.layer())] = values;
  }
  return layers;
}

std::string Text(const v1::ClusterState& state) {
  std::string text = absl::StrFormat(
      "fleet %s: %s, epoch %u\n"
      "model %s, mesh data %u x expert %u x tensor %u, context %u\n"
      "requests %u running, %u waiting\n"
      "cache %u of %u blocks used, %u kept, %u of %u prompt tokens reused, %u "
      "preemptions, %u positions recomputed\n",
      state.name(), FleetStateText(state), state.epoch(), state.model(),
      state.mesh().data(), state.mesh().expert(), state.mesh().tensor(),
      state.context(), state.requests_running(), state.requests_waiting(),
      state.cache().blocks_used(), state.cache().blocks_total(),
      state.cache().blocks_kept(), state.cache().prefix_hits(),
      state.cache().prefix_queries(), state.cache().preemptions(),
      state.cache().recomputed_positions());
  if (!state.error().empty()) {
    absl::StrAppend(&text, "error ", state.error(), "\n");
  }
  if (!state.batch_trouble().empty()) {
    absl::StrAppend(&text, "batches pause: ", state.batch_trouble(), "\n");
  }
  absl::StrAppendFormat(&text, "%4s  %-24s %-10s %8s %12s %12s %11s  %s\n",
                        "rank", "address", "state", "pid", "weights MiB",
                        "cache MiB", "heard", "version");
  for (const v1::WorkerState& worker : state.workers()) {
    absl::StrAppendFormat(
        &text, "%4u  %-24s %-10s %8u %12.1f %12.1f %6.1fs ago  %s\n",
        worker.rank(), worker.address(), MemberStateName(worker.state()),
        worker.pid(), worker.resident_bytes() / 1048576.0,
        worker.cache_bytes() / 1048576.0, worker.heartbeat_age_ms() * 1e-3,
        worker.build().version());
  }
  return text;
}

// The map; with `counts` the totals of each layer after it.
std::string ExpertsText(const Json& experts, bool counts) {
  std::vector<ExpertRow> rows;
  for (const auto& [layer, values] : experts.items()) {
    rows.push_back({layer, values.get<std::vector<double>>()});
  }
  if (rows.empty()) return "no expert has had a token yet\n";
  std::string text = ExpertMap(rows, MapStyleOfOutput());
  if (!counts) return text;
  for (const auto& [layer, values] : experts.items()) {
    absl::StrAppend(&text, "layer ", layer, ":");
    for (const Json& value : values) {
      absl::StrAppend(&text, " ", value.get<uint64_t>());
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

Json BalanceJson(const v1::DescribeExpertsResponse& experts) {
  Json layers = Json::object();
  for (const v1::ExpertBalance& layer : experts.balance()) {
    layers[std::to_string(layer.layer())] = {{"held", layer.held()},
                                             {"imbalance", layer.imbalance()}};
  }
  return layers;
}

std::string BalanceText(const v1::DescribeExpertsResponse& experts) {
  std::string text;
  for (const v1::ExpertBalance& layer : experts.balance()) {
    absl::StrAppendFormat(
        &text,
        "layer %u: %u experts at all coordinates, the busiest has %.3f times "
        "the mean to do\n",
        layer.layer(), layer.held(), layer.imbalance());
  }
  return text;
}

// {"LAYER": routes} of layers that have dropped any.
Json DroppedJson(const v1::DescribeExpertsResponse& experts) {
  Json layers = Json::object();
  for (const v1::ExpertCounts& layer : experts.layers()) {
    if (layer.dropped() == 0) continue;
    layers[std::to_string(layer.layer())] = layer.dropped();
  }
  return layers;
}

std::string DroppedText(const v1::DescribeExpertsResponse& experts) {
  std::string text;
  for (const v1::ExpertCounts& layer : experts.layers()) {
    if (layer.dropped() == 0) continue;
    const uint64_t all = std::accumulate(layer.tokens().begin(),
                                         layer.tokens().end(), uint64_t{0});
    absl::StrAppendFormat(
        &text, "layer %u: %u of %u routes (%.2f %%) beyond the capacity\n",
        layer.layer(), layer.dropped(), all,
        100.0 * static_cast<double>(layer.dropped()) /
            static_cast<double>(all));
  }
  return text;
}

absl::StatusOr<v1::DescribeExpertsResponse> DescribeExperts(Session& session,
                                                            bool reset) {
  v1::DescribeExpertsRequest request;
  request.set_reset_counts(reset);
  InterruptibleCall call;
  v1::DescribeExpertsResponse experts;
  RF_RETURN_IF_ERROR(cluster::FromGrpc(
      session.stub().DescribeExperts(call.context(), request, &experts)));
  return experts;
}

absl::Status Print(const StatusOptions& options, const v1::ClusterState& state,
                   const v1::DescribeExpertsResponse& experts) {
  Json document = FleetDetails(state);
  if (options.experts) {
    document["experts"] = ExpertsJson(experts, options.counts);
    if (experts.balance_size() > 0) {
      document["expert_balance"] = BalanceJson(experts);
    }
    Json dropped = DroppedJson(experts);
    if (!dropped.empty()) document["experts_dropped"] = std::move(dropped);
  }
  if (options.output == "json") return PrintJson(document);
  std::string text = Text(state);
  if (options.experts) {
    text += "\n" + ExpertsText(document["experts"], options.counts) +
            BalanceText(experts) + DroppedText(experts);
  }
  return PrintText(text);
}

// Errors: UNAVAILABLE: the fleet has failed or stops.
absl::Status CheckServes(const v1::ClusterState& state) {
  if (state.state() != v1::FLEET_STATE_FAILED &&
      state.state() != v1::FLEET_STATE_STOPPING) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      "status: fleet ", state.name(), " is ", FleetStateName(state.state()),
      state.error().empty() ? "" : ": ", state.error()));
}

// Clears `print_error_as_json` once there is a document.
absl::Status Run(const StatusOptions& options, bool* print_error_as_json) {
  const bool json = options.output == "json";
  if (options.watch_s > 0) {
    return WatchStatus({.fleet = options.session.fleet,
                        .interval = absl::Seconds(options.watch_s),
                        .json = json});
  }
  absl::StatusOr<std::unique_ptr<Session>> opened =
      Session::Open(options.session);
  if (absl::IsUnavailable(opened.status()) && !json) {
    // Without a coordinator the hosts can still tell which processes run.
    const absl::StatusOr<FleetPlace> place = FindFleet(options.session.fleet);
    if (place.ok() && place->config.has_value()) {
      RunLaunchScript("status", *place->config, "", nullptr).IgnoreError();
    }
  }
  RF_RETURN_IF_ERROR(opened.status());
  Session& session = **opened;
  v1::ClusterState state;
  {
    InterruptibleCall call;
    RF_RETURN_IF_ERROR(cluster::FromGrpc(session.stub().DescribeCluster(
        call.context(), v1::DescribeClusterRequest(), &state)));
  }
  v1::DescribeExpertsResponse experts;
  if (options.experts) {
    RF_ASSIGN_OR_RETURN(experts, DescribeExperts(session, /*reset=*/false));
  }
  RF_RETURN_IF_ERROR(Print(options, state, experts));
  *print_error_as_json = false;
  if (options.reset) {
    // Only what has been printed may be forgotten. Tokens between the two calls
    // are in neither count.
    RF_RETURN_IF_ERROR(
        Annotate(DescribeExperts(session, /*reset=*/true).status(), "--reset"));
  }
  return CheckServes(state);
}

}  // namespace

void RegisterStatus(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("status", "Show a fleet's state");
  verb->group("Fleet");
  verb->footer(kStatusFooter);
  auto options = std::make_shared<StatusOptions>();
  options->session.runs_jobs = false;
  options->session.local = 0;
  AddFleetChoice(*verb, options->session.fleet);
  AddFormatOptions(*verb, {"text", "json"}, &options->output);
  auto* experts = verb->add_flag("--experts", options->experts,
                                 "Also each expert's share of the tokens");
  verb->add_flag("--counts", options->counts,
                 "Exact totals of tokens instead of recent shares")
      ->needs(experts);
  verb->add_flag("--reset", options->reset, "Zero the totals after printing")
      ->needs(experts);
  verb->add_option("--watch", options->watch_s,
                   "Look again after so many seconds, until Ctrl-C [2]")
      ->expected(0, 1)
      ->default_str("2")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 86400.0))
      ->excludes(experts);
  verb->callback([options, &invocation] {
    invocation.json = options->output == "json";
    invocation.run = [options, &invocation] {
      return Run(*options, &invocation.json);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
