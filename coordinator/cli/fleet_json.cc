// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/fleet_json.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/metrics/fleet_metrics.h"
#include "coordinator/metrics/histogram.h"

namespace ringfleet::coordinator::cli {

std::string FleetStateName(v1::FleetState state) {
  switch (state) {
    case v1::FLEET_STATE_WAITING:
      return "waiting";
    case v1::FLEET_STATE_LOADING:
      return "loading";
    case v1::FLEET_STATE_READY:
      return "ready";
    case v1::FLEET_STATE_FAILED:
      return "failed";
    case v1::FLEET_STATE_STOPPING:
      return "stopping";
    default:
      return "unknown";
  }
}

DataGroups DataGroupsOf(const v1::ClusterState& state) {
  // The mesh in use lacks the groups that do not serve.
  const uint32_t ranks_of_group =
      std::max(1u, state.mesh().expert() * state.mesh().tensor());
  return {.serving =
              state.state() == v1::FLEET_STATE_READY ? state.mesh().data() : 0,
          .total = state.world_size() / ranks_of_group};
}

std::string FleetStateText(const v1::ClusterState& state) {
  std::string text = FleetStateName(state.state());
  const DataGroups groups = DataGroupsOf(state);
  if (groups.serving > 0 && groups.serving < groups.total) {
    absl::StrAppend(&text, ", degraded: ", groups.serving, " of ", groups.total,
                    " data groups");
  }
  return text;
}

std::string MemberStateName(v1::MemberState state) {
  switch (state) {
    case v1::MEMBER_STATE_REGISTERED:
      return "registered";
    case v1::MEMBER_STATE_LOADING:
      return "loading";
    case v1::MEMBER_STATE_READY:
      return "ready";
    case v1::MEMBER_STATE_LOST:
      return "lost";
    default:
      return "unknown";
  }
}

Json FleetSummary(const v1::ClusterState& state) {
  Json workers = Json::array();
  for (const v1::WorkerState& worker : state.workers()) {
    workers.push_back({{"rank", worker.rank()},
                       {"address", worker.address()},
                       {"state", MemberStateName(worker.state())},
                       {"pid", worker.pid()}});
  }
  return {{"epoch", state.epoch()},
          {"state", FleetStateName(state.state())},
          {"workers", workers}};
}

bool IsWhole(const v1::ClusterState& state) {
  const auto lives = [](const v1::WorkerState& worker) {
    return worker.state() != v1::MEMBER_STATE_LOST;
  };
  return std::count_if(state.workers().begin(), state.workers().end(), lives) ==
         static_cast<int>(state.world_size());
}

namespace {

double Seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

Json WorkerCollectivesJson(const v1::WorkerFigures& figures) {
  Json collectives = Json::array();
  for (const v1::CollectiveTotal& total : figures.collectives()) {
    collectives.push_back({{"op", LabelOf(total.operation())},
                           {"algo", LabelOf(total.algorithm())},
                           {"count", total.count()},
                           {"seconds", Seconds(total.duration_ns())},
                           {"sent_bytes", total.sent_bytes()}});
  }
  return collectives;
}

// Returns {"PEER": seconds}.
Json WorkerRoundTripsJson(const v1::WorkerFigures& figures) {
  Json round_trips = Json::object();
  for (const v1::RoundTrip& trip : figures.round_trips()) {
    round_trips[absl::StrCat(trip.peer())] = Seconds(trip.ns());
  }
  return round_trips;
}

// Adds the totals of steps to the document of a fleet.
void AddFigures(const v1::FleetFigures& figures, Json* details) {
  (*details)["epochs"] = {{"ready", figures.ready_epochs()},
                          {"failed", figures.failed_epochs()}};
  (*details)["tokens"] = {{"prompt", figures.prompt_tokens()},
                          {"replayed", figures.replayed_tokens()},
                          {"generated", figures.generated_tokens()}};
  (*details)["steps"] = {{"count", CountOf(figures.step_sequences())},
                         {"seconds", figures.step_seconds().sum()},
                         {"sequences", figures.step_sequences().sum()}};
  (*details)["replays"] = figures.replays();
  (*details)["sent_bytes"] = figures.sent_bytes();
  (*details)["sent_bytes_per_token"] = figures.sent_bytes_per_token();
  Json experts = Json::object();
  for (const v1::ExpertImbalance& layer : figures.experts()) {
    Json& of = experts[absl::StrCat(layer.layer())];
    of["expert"] = layer.expert();
    of["coordinate"] =
        layer.coordinate() == 0 ? Json(nullptr) : Json(layer.coordinate());
  }
  (*details)["imbalance"] = std::move(experts);
}

}  // namespace

Json FleetDetails(const v1::ClusterState& state) {
  Json workers = Json::array();
  for (const v1::WorkerState& worker : state.workers()) {
    workers.push_back(
        {{"rank", worker.rank()},
         {"address", worker.address()},
         {"state", MemberStateName(worker.state())},
         {"pid", worker.pid()},
         {"version", worker.build().version()},
         {"resident_bytes", worker.resident_bytes()},
         {"cache_bytes", worker.cache_bytes()},
         {"kept", worker.kept()},
         {"tensor_bytes_read", worker.tensor_bytes_read()},
         {"reload_cause", worker.reload_cause()},
         {"heartbeat_age_ms", worker.heartbeat_age_ms()},
         {"host", worker.host()},
         {"memory_bytes", worker.figures().memory_bytes()},
         {"collectives", WorkerCollectivesJson(worker.figures())},
         {"round_trips_s", WorkerRoundTripsJson(worker.figures())}});
  }
  const DataGroups groups = DataGroupsOf(state);
  Json details = {
      {"epoch", state.epoch()},
      {"state", FleetStateName(state.state())},
      {"model", state.model()},
      {"mesh",
       {{"data", state.mesh().data()},
        {"expert", state.mesh().expert()},
        {"tensor", state.mesh().tensor()}}},
      {"data_groups", {{"serving", groups.serving}, {"total", groups.total}}},
      {"workers", workers},
      {"requests",
       {{"running", state.requests_running()},
        {"waiting", state.requests_waiting()}}},
      {"cache",
       {{"blocks_total", state.cache().blocks_total()},
        {"blocks_used", state.cache().blocks_used()},
        {"blocks_kept", state.cache().blocks_kept()},
        {"prefix_queries", state.cache().prefix_queries()},
        {"prefix_hits", state.cache().prefix_hits()},
        {"preemptions", state.cache().preemptions()},
        {"recomputed_positions", state.cache().recomputed_positions()}}}};
  AddFigures(state.figures(), &details);
  if (!state.error().empty()) details["error"] = state.error();
  if (!state.batch_trouble().empty()) {
    details["batch_trouble"] = state.batch_trouble();
  }
  return details;
}

}  // namespace ringfleet::coordinator::cli
