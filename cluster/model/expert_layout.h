// SPDX-License-Identifier: Apache-2.0
// The coordinates of the replicas of a model's routed experts. A coordinate is
// that on the mesh's data and expert axes, d * expert + e. Its ranks hold the
// columns of the same experts.
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
  // Every expert once, and consecutive ones together: coordinate i of n has
  // experts [floor(i * num_experts / n), floor((i + 1) * num_experts / n)).
  ExpertLayout(int num_layers, int num_experts, int num_coordinates);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_experts() const { return num_experts_; }
  int num_coordinates() const { return num_coordinates_; }

  // The experts of a coordinate, ascending.
  absl::Span<const int32_t> Held(int layer, int coordinate) const;
  // The coordinates of an expert's copies, ascending; at least one.
  absl::Span<const int32_t> Coordinates(int layer, int expert) const;
  // [num_coordinates] The time of each coordinate relative to the fastest: 1 or
  // more.
  absl::Span<const double> slowness() const { return slowness_; }

  // Where `expert` is among Held(layer, coordinate), or -1.
  int IndexOf(int layer, int coordinate, int expert) const;

  // `held`: each coordinate's experts of a layer, in any order.
  // Errors: INVALID_ARGUMENT: a layer, an expert or a number of coordinates
  // that there is not, an expert twice at a coordinate or at none.
  absl::Status SetLayer(int layer, std::vector<std::vector<int32_t>> held);

  // `speeds` [num_coordinates] in any unit.
  // Errors: INVALID_ARGUMENT: not as many as coordinates, or not positive
  // numbers.
  absl::Status SetSpeeds(absl::Span<const float> speeds);

  // The layout of some of the coordinates, in their order. `layers` are the
  // layers with experts; the others are not looked at.
  // Errors: FAILED_PRECONDITION: an expert of such a layer has no copy there.
  absl::StatusOr<ExpertLayout> Of(absl::Span<const int> coordinates,
                                  absl::Span<const int> layers) const;

  // Takes the layers and speeds that the message has, and keeps the others.
  // Errors: those of SetLayer and SetSpeeds; layers before a bad one have
  // changed then.
  absl::Status Merge(const v1::ExpertLayout& message);
  // The layers that differ from `base`, of as many layers, experts and
  // coordinates, and the speeds unless all are alike.
  v1::ExpertLayout Difference(const ExpertLayout& base) const;

  bool operator==(const ExpertLayout&) const = default;

 private:
  struct Layer {
    std::vector<int32_t> held;  // By coordinate.
    // [coordinates] behind each coordinate's experts, in `held`.
    std::vector<int32_t> held_ends;
    std::vector<int32_t> coordinates;      // By expert.
    std::vector<int32_t> coordinate_ends;  // [experts]
    bool operator==(const Layer&) const = default;
  };

  int num_experts_ = 0;
  int num_coordinates_ = 0;
  std::vector<double> slowness_;
  std::vector<Layer> layers_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_EXPERT_LAYOUT_H_
