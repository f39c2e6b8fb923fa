// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/first_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cluster/model/mesh.h"
#include "cluster/model/weights_difference.h"
#include "coordinator/fleet/fleet_epoch.h"

namespace ringfleet::coordinator {
namespace {

using cluster::ExpertLayout;

// The weights of a member that are those of the fleet's settings.
struct HeldExperts {
  int coordinate = 0;   // In the fleet's mesh.
  ExpertLayout layout;  // For the mesh in which the member last served.
  int held_at = 0;      // Its coordinate there.
  bool fleet_mesh = false;
  uint64_t epoch = 0;
};

// Layers with experts, with the one for prediction.
std::vector<int> ExpertLayers(const ExpertFacts& facts) {
  std::vector<int> layers = facts.layers;
  if (facts.mtp) layers.push_back(facts.num_layers - 1);
  return layers;
}

// Returns nothing if the member has to load whatever the layout is.
std::optional<HeldExperts> HeldBy(const FleetOptions& fleet,
                                  const std::vector<Member>& members,
                                  size_t rank) {
  const Member& member = members[rank];
  if (member.held == nullptr) return std::nullopt;
  const v1::LoadRequest& request = member.held->request();
  const v1::Mesh& mesh = request.layout().mesh();
  const uint64_t tensor = fleet.mesh.tensor;
  const uint64_t coordinates = uint64_t{mesh.data()} * mesh.expert();
  if (mesh.tensor() != tensor || coordinates < 1 ||
      coordinates > cluster::kMaxWorkers ||
      request.layout().rank() >= coordinates * tensor ||
      !cluster::WeightsDifference(
           MakeLoadRequest(fleet, members, static_cast<int>(rank)), request)
           .empty()) {
    return std::nullopt;
  }
  HeldExperts held = {
      .coordinate = static_cast<int>(rank / tensor),
      .layout =
          ExpertLayout(fleet.experts.num_layers, fleet.experts.num_experts,
                       static_cast<int>(coordinates)),
      .held_at = static_cast<int>(request.layout().rank() / tensor),
      .fleet_mesh = static_cast<int>(mesh.data()) == fleet.mesh.data &&
                    static_cast<int>(mesh.expert()) == fleet.mesh.expert,
      .epoch = member.last_epoch};
  if (!held.layout.Merge(request.layout().experts()).ok()) return std::nullopt;
  return held;
}

class FirstLayoutChoice {
 public:
  FirstLayoutChoice(const FleetOptions& fleet, std::vector<HeldExperts> held)
      : fleet_(fleet),
        layers_(ExpertLayers(fleet.experts)),
        held_(std::move(held)) {
    // Later epochs first.
    std::stable_sort(held_.begin(), held_.end(),
                     [](const HeldExperts& a, const HeldExperts& b) {
                       return a.epoch > b.epoch;
                     });
  }

  FirstLayout Choose() const {
    FirstLayout best = {.layout = fleet_.layout};
    FirstLayout refused;
    int most = -1;
    int most_refused = -1;
    for (const ExpertLayout& layout : Candidates()) {
      const int kept = CountKept(layout);
      std::string why_not = WhyNot(layout);
      if (why_not.empty() && kept > most) {
        most = kept;
        best.layout = layout;
      } else if (!why_not.empty() && kept > most_refused) {
        most_refused = kept;
        refused.why_not = std::move(why_not);
      }
    }
    if (most_refused > most) best.why_not = std::move(refused.why_not);
    return best;
  }

 private:
  // Best ones first, if equally many members keep their weights.
  std::vector<ExpertLayout> Candidates() const {
    std::vector<ExpertLayout> candidates;
    const auto add = [&](const auto& experts_at) {
      std::optional<ExpertLayout> layout = Compose(experts_at);
      if (layout.has_value()) candidates.push_back(*std::move(layout));
    };
    // Each coordinate holds what its ranks hold.
    add([this](int layer, int coordinate) {
      for (const HeldExperts& held : held_) {
        if (held.coordinate == coordinate) {
          return held.layout.Held(layer, held.held_at);
        }
      }
      return fleet_.layout.Held(layer, coordinate);
    });
    for (const HeldExperts& held : held_) {
      if (!held.fleet_mesh) continue;
      add([&held](int layer, int coordinate) {
        return held.layout.Held(layer, coordinate);
      });
    }
    candidates.push_back(fleet_.layout);
    return candidates;
  }

  // Returns nothing if an expert is at no coordinate.
  template <typename ExpertsAt>
  std::optional<ExpertLayout> Compose(const ExpertsAt& experts_at) const {
    ExpertLayout layout = fleet_.layout;
    for (const int layer : layers_) {
      std::vector<std::vector<int32_t>> held;
      for (int i = 0; i < layout.num_coordinates(); ++i) {
        const absl::Span<const int32_t> experts = experts_at(layer, i);
        held.emplace_back(experts.begin(), experts.end());
      }
      if (!layout.SetLayer(layer, std::move(held)).ok()) return std::nullopt;
    }
    return layout;
  }

  int CountKept(const ExpertLayout& layout) const {
    return static_cast<int>(
        std::count_if(held_.begin(), held_.end(), [&](const HeldExperts& held) {
          return std::all_of(layers_.begin(), layers_.end(), [&](int layer) {
            return layout.Held(layer, held.coordinate) ==
                   held.layout.Held(layer, held.held_at);
          });
        }));
  }

  std::string WhyNot(const ExpertLayout& layout) const {
    if (layout == fleet_.layout) return "";
    if (fleet_.settings.reproducible()) {
      return "the fleet is reproducible, workers hold experts that have moved";
    }
    const int slots = static_cast<int>(fleet_.settings.experts().slots());
    if (slots == 0) return "";
    for (const int layer : layers_) {
      int replicas = 0;
      for (int i = 0; i < layout.num_coordinates(); ++i) {
        replicas += static_cast<int>(layout.Held(layer, i).size());
      }
      if (replicas != slots) {
        return absl::StrCat("expert slots ", slots, ", workers hold ", replicas,
                            " in layer ", layer);
      }
    }
    return "";
  }

  const FleetOptions& fleet_;
  const std::vector<int> layers_;
  std::vector<HeldExperts> held_;
};

}  // namespace

FirstLayout ChooseFirstLayout(const FleetOptions& fleet,
                              const std::vector<Member>& members) {
  if (fleet.experts.layers.empty()) return {.layout = fleet.layout};
  std::vector<HeldExperts> all;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    std::optional<HeldExperts> held = HeldBy(fleet, members, rank);
    if (held.has_value()) all.push_back(*std::move(held));
  }
  return FirstLayoutChoice(fleet, std::move(all)).Choose();
}

std::optional<std::vector<int>> ReplicasIn(const ExpertLayout& layout,
                                           const ExpertFacts& facts) {
  std::optional<std::vector<int>> replicas;
  for (const int layer : ExpertLayers(facts)) {
    std::vector<int> here;
    for (int i = 0; i < layout.num_coordinates(); ++i) {
      here.push_back(static_cast<int>(layout.Held(layer, i).size()));
    }
    if (replicas.has_value() && *replicas != here) return std::nullopt;
    replicas = std::move(here);
  }
  return replicas;
}

}  // namespace ringfleet::coordinator
