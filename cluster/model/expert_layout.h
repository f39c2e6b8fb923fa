// SPDX-License-Identifier: Apache-2.0
// Where the copies of a model's routed experts are. A place is a coordinate on
// the mesh's data and expert axes, d * expert + e: its ranks hold the columns
// of the same experts.
#ifndef RINGFLEET_CLUSTER_MODEL_EXPERT_LAYOUT_H_
#define RINGFLEET_CLUSTER_MODEL_EXPERT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// The layout of every layer, with the multi-token prediction layer behind the
// others. Dense layers have an entry that nobody asks for. Const functions may
// be called from several threads.
class ExpertLayout {
 public:
  ExpertLayout() = default;  // No layer.
  // Every expert once, and consecutive ones together: place i of n has experts
  // [floor(i * num_experts / n), floor((i + 1) * num_experts / n)).
  ExpertLayout(int num_layers, int num_experts, int num_places);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_experts() const { return num_experts_; }
  int num_places() const { return num_places_; }

  // The experts of a place, ascending.
  absl::Span<const int32_t> Held(int layer, int place) const;
  // The places of an expert's copies, ascending; at least one.
  absl::Span<const int32_t> Places(int layer, int expert) const;
  // [num_places] The time of each place relative to the fastest: 1 or more.
  absl::Span<const double> slowness() const { return slowness_; }

  // Where `expert` is among Held(layer, place), or -1.
  int IndexOf(int layer, int place, int expert) const;

  // `held`: each place's experts of a layer, in any order.
  // Errors: INVALID_ARGUMENT: a layer, an expert or a number of places that
  // there is not, an expert twice in a place or in none.
  absl::Status SetLayer(int layer, std::vector<std::vector<int32_t>> held);

  // `speeds` [num_places] in any unit.
  // Errors: INVALID_ARGUMENT: not as many as places, or not positive numbers.
  absl::Status SetSpeeds(absl::Span<const float> speeds);

  // The layout of some of the places, in their order. `layers` are the layers
  // with experts; the others are not looked at.
  // Errors: FAILED_PRECONDITION: an expert of such a layer has no copy there.
  absl::StatusOr<ExpertLayout> Of(absl::Span<const int> places,
                                  absl::Span<const int> layers) const;

  // Takes the layers and speeds that the message has, and keeps the others.
  // Errors: those of SetLayer and SetSpeeds; layers before a bad one have
  // changed then.
  absl::Status Merge(const v1::ExpertLayout& message);
  // The layers that differ from `base`, of as many layers, experts and places,
  // and the speeds unless all are alike.
  v1::ExpertLayout Difference(const ExpertLayout& base) const;

  bool operator==(const ExpertLayout&) const = default;

 private:
  struct Layer {
    std::vector<int32_t> held;        // By place.
    std::vector<int32_t> held_ends;   // [places] behind each one's, in `held`.
    std::vector<int32_t> places;      // By expert.
    std::vector<int32_t> place_ends;  // [experts]
    bool operator==(const Layer&) const = default;
  };

  int num_experts_ = 0;
  int num_places_ = 0;
  std::vector<double> slowness_;
  std::vector<Layer> layers_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_EXPERT_LAYOUT_H_
