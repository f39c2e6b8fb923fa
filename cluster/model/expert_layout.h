// SPDX-License-Identifier: Apache-2.0
// The layout of the replicas of a model's routed experts. Replicas are at
// coordinates. The coordinate of position d on the mesh's data axis and e on
// its expert axis is d * (size of the expert axis) + e. The ranks of one
// coordinate hold the same experts; each rank has some columns of them.
#ifndef RINGFLEET_CLUSTER_MODEL_EXPERT_LAYOUT_H_
#define RINGFLEET_CLUSTER_MODEL_EXPERT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// The layouts of all layers. The multi-token prediction layer follows the
// decoder layers. A dense layer has an entry that is never read. Const
// functions are thread-safe.
class ExpertLayout {
 public:
  ExpertLayout() = default;  // No layer.
  // Makes one replica of each expert, with consecutive experts together.
  // Coordinate i of n has experts
  // [floor(i * num_experts / n), floor((i + 1) * num_experts / n)).
  ExpertLayout(int num_layers, int num_experts, int num_coordinates);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_experts() const { return num_experts_; }
  int num_coordinates() const { return num_coordinates_; }

  // Returns the experts at a coordinate, ascending.
  absl::Span<const int32_t> Held(int layer, int coordinate) const;
  // Returns the coordinates of an expert's replicas, ascending; at least one.
  absl::Span<const int32_t> Coordinates(int layer, int expert) const;
  // Returns for each coordinate the factor, 1 or more, by which it is slower
  // than the fastest coordinate.
  absl::Span<const double> slowness() const { return slowness_; }

  // Returns the index of `expert` in Held(layer, coordinate), or -1.
  int IndexOf(int layer, int coordinate, int expert) const;

  // Replaces a layer. held[i] has the experts at coordinate i, in any order.
  // Errors: INVALID_ARGUMENT: an unknown layer or expert, another number of
  // coordinates, an expert twice at one coordinate, or an expert at none.
  absl::Status SetLayer(int layer, std::vector<std::vector<int32_t>> held);

  // Sets slowness() from the speed of each coordinate, in any unit.
  // Errors: INVALID_ARGUMENT: another number of coordinates, or a speed that is
  // not a positive number.
  absl::Status SetSpeeds(absl::Span<const float> speeds);

  // Returns the layout of `coordinates` alone, numbered in their order.
  // `layers` must have the layers with experts; other layers are not read.
  // Errors: FAILED_PRECONDITION: an expert has no replica at `coordinates`.
  absl::StatusOr<ExpertLayout> Of(absl::Span<const int> coordinates,
                                  absl::Span<const int> layers) const;

  // Replaces the speeds and layers that `message` has, and keeps the others.
  // Errors: those of SetLayer and SetSpeeds. Layers in front of the failing
  // layer have then been replaced.
  absl::Status Merge(const v1::ExpertLayout& message);
  // Returns the layers that differ from `base`. Returns also the speeds unless
  // all coordinates have one speed. `base` must have the same numbers of
  // layers, experts and coordinates, and one speed.
  v1::ExpertLayout Difference(const ExpertLayout& base) const;

  bool operator==(const ExpertLayout&) const = default;

 private:
  struct Layer {
    std::vector<int32_t> held;  // Experts, coordinate by coordinate.
    // [coordinates] end of each coordinate's experts in `held`.
    std::vector<int32_t> held_ends;
    std::vector<int32_t> coordinates;  // Coordinates, expert by expert.
    // [experts] end of each expert's coordinates in `coordinates`.
    std::vector<int32_t> coordinate_ends;
    bool operator==(const Layer&) const = default;
  };

  int num_experts_ = 0;
  int num_coordinates_ = 0;
  std::vector<double> slowness_;
  std::vector<Layer> layers_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_EXPERT_LAYOUT_H_
