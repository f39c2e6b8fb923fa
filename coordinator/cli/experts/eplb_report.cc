// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/experts/eplb_report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/placement/placement_balance.h"
#include "coordinator/cli/table.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::ExpertPlacement;

// GPUs whose loads a row of the table shows; of more only least and most.
constexpr size_t kShownGpus = 16;

// [rows, columns] of a row-major array.
Json JsonRows(const std::vector<int32_t>& values, size_t columns) {
  Json rows = Json::array();
  for (size_t i = 0; i < values.size(); i += columns) {
    rows.push_back(
        std::vector<int32_t>(values.begin() + i, values.begin() + i + columns));
  }
  return rows;
}

Json PlacementJson(const std::optional<ExpertPlacement>& placement) {
  if (!placement.has_value()) {
    return {{"phy2log", nullptr}, {"log2phy", nullptr}, {"logcnt", nullptr}};
  }
  const size_t experts = placement->num_experts;
  const size_t copies = placement->max_copies;
  Json log2phy = Json::array();
  const Json rows = JsonRows(placement->log2phy, copies);
  for (int layer = 0; layer < placement->num_layers; ++layer) {
    const auto begin = rows.begin() + layer * experts;
    log2phy.push_back(Json(begin, begin + experts));
  }
  return {{"phy2log", JsonRows(placement->phy2log, placement->num_replicas)},
          {"log2phy", std::move(log2phy)},
          {"logcnt", JsonRows(placement->logcnt, experts)}};
}

// Balance of one placement, over the layers of the loads.
class Balance {
 public:
  Balance(const EplbResult& result, const ExpertPlacement& placement) {
    const std::vector<float>& speeds = result.request.gpu_speeds;
    for (size_t layer = 0; layer < result.loads.layers.size(); ++layer) {
      gpu_loads_.push_back(cluster::GpuLoads(placement, static_cast<int>(layer),
                                             result.loads.layer(layer)));
      imbalance_.push_back(cluster::Imbalance(gpu_loads_.back(), speeds));
      double longest = 0;
      for (size_t g = 0; g < gpu_loads_.back().size(); ++g) {
        longest = std::max(
            longest, gpu_loads_.back()[g] / (speeds.empty() ? 1 : speeds[g]));
      }
      step_ += longest;
    }
  }

  const std::vector<double>& imbalance() const { return imbalance_; }
  const std::vector<double>& gpu_loads(size_t layer) const {
    return gpu_loads_[layer];
  }
  size_t worst_layer() const {
    return std::max_element(imbalance_.begin(), imbalance_.end()) -
           imbalance_.begin();
  }
  double mean() const {
    double sum = 0;
    for (const double value : imbalance_) sum += value;
    return sum / static_cast<double>(imbalance_.size());
  }
  // Sum over layers of the last GPU's time, for which a step waits.
  double step() const { return step_; }

 private:
  std::vector<std::vector<double>> gpu_loads_;  // [layers][gpus]
  std::vector<double> imbalance_;               // [layers]
  double step_ = 0;
};

struct ComparedPlacement {
  std::string name;
  Balance balance;
};

// Placements to compare, the one that is recommended last.
std::vector<ComparedPlacement> ComparedPlacements(const EplbResult& result) {
  std::vector<ComparedPlacement> columns;
  columns.push_back(
      {"max/mean before",
       Balance(result,
               cluster::ContiguousPlacement(
                   static_cast<int>(result.loads.layers.size()),
                   result.loads.num_experts, result.request.num_gpus))});
  if (result.plain.has_value()) {
    columns.push_back({result.uneven.has_value() ? "plain EPLB" : "EPLB",
                       Balance(result, *result.plain)});
  }
  if (result.uneven.has_value()) {
    columns.push_back({"these GPUs", Balance(result, *result.uneven)});
  }
  return columns;
}

std::string LoadText(double load) {
  return load < 1e5 ? absl::StrFormat("%.5g", load)
                    : absl::StrFormat("%.0f", load);
}

std::string LoadsText(const std::vector<double>& loads) {
  if (loads.size() <= kShownGpus) {
    return absl::StrJoin(loads, " ", [](std::string* out, double load) {
      out->append(LoadText(load));
    });
  }
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  return absl::StrCat(LoadText(*least), " (GPU ", least - loads.begin(),
                      ") to ", LoadText(*most), " (GPU ", most - loads.begin(),
                      ")");
}

std::string Introduction(const EplbResult& result) {
  const cluster::PlacementRequest& request = result.request;
  const ExpertPlacement& placement =
      result.uneven.has_value() ? *result.uneven : *result.plain;
  std::string text = absl::StrFormat(
      "%d layers of %d experts on %d GPUs, %d slots in all; %s\n",
      placement.num_layers, placement.num_experts, request.num_gpus,
      request.num_replicas,
      placement.hierarchical && request.num_nodes > 1
          ? absl::StrFormat("hierarchical: %d groups stay on %d nodes",
                            request.num_groups, request.num_nodes)
          : "global: copies go to any GPU");
  absl::StrAppend(&text,
                  request.gpu_speeds.empty()
                      ? "max/mean: the largest load of a GPU over the mean"
                      : "max/mean: the largest load / speed of a GPU over what "
                        "an even spread gives",
                  ", 1 is balanced\n");
  if (!request.gpu_slots.empty()) {
    absl::StrAppend(&text, "slots of GPUs ",
                    absl::StrJoin(request.gpu_slots, " "), "\n");
  }
  if (!request.gpu_speeds.empty()) {
    absl::StrAppend(&text, "speeds of GPUs ",
                    absl::StrJoin(request.gpu_speeds, " "), "\n");
  }
  absl::StrAppend(&text, "before: experts in order, one copy each\n");
  if (!result.plain.has_value()) {
    absl::StrAppend(&text, "plain EPLB: not possible, ", request.num_replicas,
                    " slots cannot be split evenly\n");
  }
  return text;
}

}  // namespace

Json EplbJson(const EplbResult& result) {
  Json document = PlacementJson(result.plain);
  if (!result.uneven.has_value()) return document;
  Json uneven = PlacementJson(result.uneven);
  std::vector<int> slots;
  const std::vector<int>& firsts = result.uneven->first_slots;
  for (size_t g = 0; g + 1 < firsts.size(); ++g) {
    slots.push_back(firsts[g + 1] - firsts[g]);
  }
  uneven["gpu_slots"] = slots;
  uneven["gpu_speeds"] = result.request.gpu_speeds.empty()
                             ? std::vector<float>(result.request.num_gpus, 1.0f)
                             : result.request.gpu_speeds;
  Json imbalance = {{"before", nullptr}, {"plain", nullptr}};
  const std::vector<ComparedPlacement> columns = ComparedPlacements(result);
  imbalance["before"] = columns.front().balance.imbalance();
  if (result.plain.has_value()) {
    imbalance["plain"] = columns[1].balance.imbalance();
  }
  imbalance["uneven"] = columns.back().balance.imbalance();
  uneven["imbalance"] = std::move(imbalance);
  document["uneven"] = std::move(uneven);
  return document;
}

std::string EplbMarkdown(const EplbResult& result) {
  const std::vector<ComparedPlacement> columns = ComparedPlacements(result);
  std::vector<TableColumn> header = {{"layer"}};
  for (const ComparedPlacement& column : columns) {
    header.push_back({column.name});
  }
  header.push_back({"most copies"});
  header.push_back({"load of each GPU"});
  Table table(std::move(header));
  const ExpertPlacement& placement =
      result.uneven.has_value() ? *result.uneven : *result.plain;
  for (size_t layer = 0; layer < result.loads.layers.size(); ++layer) {
    std::vector<std::string> cells = {result.loads.layers[layer]};
    for (const ComparedPlacement& column : columns) {
      cells.push_back(
          absl::StrFormat("%.3f", column.balance.imbalance()[layer]));
    }
    const auto counts =
        placement.logcnt.begin() + layer * placement.num_experts;
    cells.push_back(absl::StrCat(
        *std::max_element(counts, counts + placement.num_experts)));
    cells.push_back(LoadsText(columns.back().balance.gpu_loads(layer)));
    table.Add(cells);
  }
  std::string out = absl::StrCat(Introduction(result), "\n", table.text());

  const Balance& before = columns.front().balance;
  const Balance& after = columns.back().balance;
  absl::StrAppendFormat(
      &out,
      "\nmean over layers %.3f before, %.3f after; worst %.3f (layer %s) "
      "before, %.3f (layer %s) after\n",
      before.mean(), after.mean(), before.imbalance()[before.worst_layer()],
      result.loads.layers[before.worst_layer()],
      after.imbalance()[after.worst_layer()],
      result.loads.layers[after.worst_layer()]);
  if (before.step() > 0) {
    absl::StrAppendFormat(
        &out,
        "in each layer a step waits for the last GPU: by load, experts take "
        "%.0f %% of the time that they took before\n",
        100 * after.step() / before.step());
  }
  return out;
}

}  // namespace ringfleet::coordinator::cli
