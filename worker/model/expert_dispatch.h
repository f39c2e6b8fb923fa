// SPDX-License-Identifier: Apache-2.0
// Chooses the replica of an expert that serves a token. Every rank makes the
// choice for all tokens of a step. The choice uses equal numbers on all ranks,
// with equal rounding on every instruction set, so no choice travels between
// ranks. A coordinate is d * expert + e on the data and expert axes
// (cluster/model/expert_layout.h).
#ifndef RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_
#define RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "cluster/model/expert_layout.h"

namespace ringfleet::worker {

// Assigns routes to coordinates. A route is one expert of one token. The
// buffers are kept from step to step. Not thread-safe.
class ExpertDispatch {
 public:
  // Chooses a coordinate for every route of one layer.
  //   route_ids: expert of each route, token by token
  //   group_ends: end of the routes of each data group's tokens. Group g has
  //     routes [group_ends[g - 1], group_ends[g]); group 0 begins at 0, and the
  //     last end is route_ids.size(). Each group has layout.num_coordinates() /
  //     group_ends.size() consecutive coordinates.
  //
  // All routes of an expert with one replica go to the replica's coordinate.
  // Experts with several replicas are dealt out by descending number of tokens.
  // The tokens of an expert go to the least loaded of its coordinates, or are
  // split over several coordinates to even out loads. They are split only if
  // reading the expert's weights once more costs less than the tokens of each
  // part. The three rounds of Assign deal every expert out again, because the
  // first round does not know the loads of later experts. Each coordinate gets
  // as many tokens of its own data group as possible.
  void Assign(const cluster::ExpertLayout& layout, int layer,
              absl::Span<const int32_t> route_ids,
              absl::Span<const size_t> group_ends);

  // Chooses like Assign, but by each token alone: equal routes of a token go to
  // equal coordinates, whatever the other tokens and the token's data group
  // are. Coordinates get uneven loads.
  //   each: number of routes of a token
  void AssignByToken(const cluster::ExpertLayout& layout, int layer,
                     absl::Span<const int32_t> route_ids, size_t each);

  // Limits the routes of each coordinate to `capacity` times the fair share,
  // rounded up. The fair share is the number of routes divided by the number of
  // coordinates. Drops a coordinate's routes with the least router weights
  // beyond the limit. Among equal weights, later routes are dropped first.
  //   weights [routes]: router weights
  void LimitRoutes(double capacity, absl::Span<const float> weights);

  // The coordinate of each route, by the last Assign and LimitRoutes. -1:
  // dropped.
  absl::Span<const int32_t> coordinates() const { return coordinates_; }
  // Number of routes that LimitRoutes has dropped since the last Assign.
  uint64_t dropped() const { return dropped_; }
  // Finds the routes that `coordinate` serves.
  //   route_ids: as for Assign
  //   replicas [routes]: output, index of the route's expert in
  //     layout.Held(layer, coordinate). -1: `coordinate` does not serve the
  //     route.
  void FindReplicas(const cluster::ExpertLayout& layout, int layer,
                    int coordinate, absl::Span<const int32_t> route_ids,
                    int32_t* replicas);
  // Load of each coordinate by the last Assign: the sum of cluster::ExpertCost,
  // in tokens, over the coordinate's experts, times the coordinate's slowness.
  absl::Span<const double> loads() const { return loads_; }

 private:
  // Decides how many tokens of each expert with several replicas go to each of
  // the expert's coordinates.
  void DealChoices(const cluster::ExpertLayout& layout, int layer);
  // Returns a coordinate of `coordinates`, in [begin, end), that may take one
  // more token of `expert`, and counts the token. Returns -1 if there is none.
  int32_t Take(absl::Span<const int32_t> coordinates, int expert, int32_t begin,
               int32_t end);
  // Deals the rows of an expert out to its coordinates. `parts` holds the
  // number of rows at each coordinate: of the previous round on entry, of this
  // round on return.
  void Deal(absl::Span<const int32_t> coordinates,
            absl::Span<const double> slowness, int64_t rows,
            absl::Span<int64_t> parts);

  std::vector<int64_t> rows_;     // Number of rows, by expert.
  std::vector<double> loads_;     // By coordinate.
  std::vector<int32_t> choices_;  // Experts with tokens and several replicas.
  std::vector<int64_t> parts_;  // By choice, then by the expert's coordinates.
  std::vector<size_t> first_part_;  // By expert: index of its first part.
  std::vector<int32_t>
      lightest_;  // Indices of coordinates, least loaded first.
  std::vector<int32_t> coordinates_;  // By route.
  uint64_t dropped_ = 0;
  std::vector<int32_t> held_;               // Index in Held by expert.
  std::vector<std::vector<size_t>> taken_;  // Routes, by coordinate.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_
