// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/page.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace ringfleet::coordinator {
namespace {

// "FLEET_STATE_READY" -> "ready".
std::string WordOf(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  return absl::AsciiStrToLower(name);
}

}  // namespace

std::optional<PageFile> FindPageFile(absl::string_view path) {
  if (path == "/")
    return PageFile{"text/html; charset=utf-8", kPage_index_html};
  if (path == "/page/style.css") {
    return PageFile{"text/css; charset=utf-8", kPage_style_css};
  }
  if (path == "/page/app.js") {
    return PageFile{"text/javascript; charset=utf-8", kPage_app_js};
  }
  return std::nullopt;
}

std::string FleetJson(const v1::ClusterState& state, absl::Time now) {
  const v1::CacheUse& cache = state.cache();
  const v1::FleetFigures& figures = state.figures();
  double imbalance = 0;
  for (const v1::ExpertImbalance& layer : figures.experts()) {
    imbalance = std::max<double>(imbalance, layer.coordinate());
  }
  nlohmann::json workers = nlohmann::json::array();
  for (const v1::WorkerState& worker : state.workers()) {
    workers.push_back(
        {{"rank", worker.rank()},
         {"host", worker.host()},
         {"state",
          WordOf(v1::MemberState_Name(worker.state()), "MEMBER_STATE_")},
         {"memory_bytes", worker.resident_bytes() + worker.cache_bytes()}});
  }
  const nlohmann::json out = {
      {"time", absl::ToDoubleSeconds(now - absl::UnixEpoch())},
      {"name", state.name()},
      {"model", state.model()},
      {"state", WordOf(v1::FleetState_Name(state.state()), "FLEET_STATE_")},
      {"waits_for", state.error()},
      {"running", state.requests_running()},
      {"waiting", state.requests_waiting()},
      {"generation_tokens", figures.generated_tokens()},
      {"prompt_tokens", figures.prompt_tokens()},
      {"cache_blocks", cache.blocks_total()},
      {"cache_blocks_used", cache.blocks_used()},
      {"cache_blocks_kept", cache.blocks_kept()},
      {"prefix_queries", cache.prefix_queries()},
      {"prefix_hits", cache.prefix_hits()},
      {"preemptions", cache.preemptions()},
      {"imbalance", imbalance},
      {"workers", std::move(workers)}};
  // Names of hosts and models may be any bytes.
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace ringfleet::coordinator
