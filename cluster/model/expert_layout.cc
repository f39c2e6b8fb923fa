// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/expert_layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/model/shard_plan.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// Part `index` of items of which part i ends at ends[i].
absl::Span<const int32_t> PartOf(const std::vector<int32_t>& items,
                                 const std::vector<int32_t>& ends, int index) {
  const int32_t begin = index == 0 ? 0 : ends[index - 1];
  return absl::MakeConstSpan(items).subspan(begin, ends[index] - begin);
}

}  // namespace

ExpertLayout::ExpertLayout(int num_layers, int num_experts, int num_coordinates)
    : num_experts_(num_experts),
      num_coordinates_(num_coordinates),
      slowness_(num_coordinates, 1.0),
      layers_(num_layers) {
  for (int layer = 0; layer < num_layers; ++layer) {
    std::vector<std::vector<int32_t>> held(num_coordinates);
    for (int coordinate = 0; coordinate < num_coordinates; ++coordinate) {
      const Range range = SplitRange(num_experts, num_coordinates, coordinate);
      held[coordinate].resize(range.size());
      std::iota(held[coordinate].begin(), held[coordinate].end(), range.begin);
    }
    RF_CHECK(SetLayer(layer, std::move(held)).ok());
  }
}

absl::Span<const int32_t> ExpertLayout::Held(int layer, int coordinate) const {
  return PartOf(layers_[layer].held, layers_[layer].held_ends, coordinate);
}

absl::Span<const int32_t> ExpertLayout::Coordinates(int layer,
                                                    int expert) const {
  return PartOf(layers_[layer].coordinates, layers_[layer].coordinate_ends,
                expert);
}

int ExpertLayout::IndexOf(int layer, int coordinate, int expert) const {
  const absl::Span<const int32_t> held = Held(layer, coordinate);
  const auto at = std::lower_bound(held.begin(), held.end(), expert);
  if (at == held.end() || *at != expert) return -1;
  return static_cast<int>(at - held.begin());
}

absl::Status ExpertLayout::SetLayer(int layer,
                                    std::vector<std::vector<int32_t>> held) {
  const auto error = [layer](auto... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("experts of layer ", layer, ": ", parts...));
  };
  if (layer < 0 || layer >= num_layers()) {
    return error("want a layer below ", num_layers());
  }
  if (held.size() != static_cast<size_t>(num_coordinates_)) {
    return error(held.size(), " coordinates, want ", num_coordinates_);
  }
  Layer made;
  std::vector<std::vector<int32_t>> coordinates(num_experts_);
  for (int coordinate = 0; coordinate < num_coordinates_; ++coordinate) {
    std::vector<int32_t>& experts = held[coordinate];
    std::sort(experts.begin(), experts.end());
    for (size_t i = 0; i < experts.size(); ++i) {
      if (experts[i] < 0 || experts[i] >= num_experts_) {
        return error("expert ", experts[i], " at coordinate ", coordinate,
                     ", want 0 to ", num_experts_ - 1);
      }
      if (i > 0 && experts[i] == experts[i - 1]) {
        return error("expert ", experts[i], " is twice at coordinate ",
                     coordinate);
      }
      coordinates[experts[i]].push_back(coordinate);
    }
    made.held.insert(made.held.end(), experts.begin(), experts.end());
    made.held_ends.push_back(static_cast<int32_t>(made.held.size()));
  }
  for (int expert = 0; expert < num_experts_; ++expert) {
    const std::vector<int32_t>& copies = coordinates[expert];
    if (copies.empty()) return error("expert ", expert, " is at no coordinate");
    made.coordinates.insert(made.coordinates.end(), copies.begin(),
                            copies.end());
    made.coordinate_ends.push_back(
        static_cast<int32_t>(made.coordinates.size()));
  }
  layers_[layer] = std::move(made);
  return absl::OkStatus();
}

absl::Status ExpertLayout::SetSpeeds(absl::Span<const float> speeds) {
  if (speeds.size() != slowness_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("experts: speeds of ", speeds.size(),
                     " coordinates, want ", slowness_.size()));
  }
  for (const float speed : speeds) {
    if (!std::isfinite(speed) || speed <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("experts: a coordinate's speed of ", speed,
                       ", want a positive number"));
    }
  }
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  for (size_t i = 0; i < speeds.size(); ++i) slowness_[i] = fastest / speeds[i];
  return absl::OkStatus();
}

absl::StatusOr<ExpertLayout> ExpertLayout::Of(
    absl::Span<const int> coordinates, absl::Span<const int> layers) const {
  ExpertLayout part(num_layers(), num_experts_,
                    static_cast<int>(coordinates.size()));
  std::vector<float> speeds;
  for (const int coordinate : coordinates) {
    speeds.push_back(static_cast<float>(1 / slowness_[coordinate]));
  }
  RF_RETURN_IF_ERROR(part.SetSpeeds(speeds));
  for (const int layer : layers) {
    std::vector<std::vector<int32_t>> held;
    for (const int coordinate : coordinates) {
      const absl::Span<const int32_t> experts = Held(layer, coordinate);
      held.emplace_back(experts.begin(), experts.end());
    }
    const absl::Status status = part.SetLayer(layer, std::move(held));
    if (!status.ok()) {
      return absl::FailedPreconditionError(status.message());
    }
  }
  return part;
}

absl::Status ExpertLayout::Merge(const v1::ExpertLayout& message) {
  if (message.speeds_size() > 0) {
    RF_RETURN_IF_ERROR(SetSpeeds(message.speeds()));
  }
  for (const v1::ExpertLayer& layer : message.layers()) {
    std::vector<std::vector<int32_t>> held;
    for (const v1::ExpertCoordinate& coordinate : layer.coordinates()) {
      held.emplace_back(coordinate.experts().begin(),
                        coordinate.experts().end());
    }
    // Too large a number is negative here.
    RF_RETURN_IF_ERROR(
        SetLayer(static_cast<int>(layer.layer()), std::move(held)));
  }
  return absl::OkStatus();
}

v1::ExpertLayout ExpertLayout::Difference(const ExpertLayout& base) const {
  RF_CHECK(num_layers() == base.num_layers() &&
           num_experts_ == base.num_experts_ &&
           num_coordinates_ == base.num_coordinates_);
  v1::ExpertLayout message;
  if (slowness_ != std::vector<double>(slowness_.size(), 1.0)) {
    for (const double slowness : slowness_) {
      message.add_speeds(static_cast<float>(1 / slowness));
    }
  }
  for (int layer = 0; layer < num_layers(); ++layer) {
    if (layers_[layer] == base.layers_[layer]) continue;
    v1::ExpertLayer* changed = message.add_layers();
    changed->set_layer(layer);
    for (int coordinate = 0; coordinate < num_coordinates_; ++coordinate) {
      const absl::Span<const int32_t> held = Held(layer, coordinate);
      changed->add_coordinates()->mutable_experts()->Add(held.begin(),
                                                         held.end());
    }
  }
  return message;
}

}  // namespace ringfleet::cluster
