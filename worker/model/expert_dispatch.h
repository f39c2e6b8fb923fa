// SPDX-License-Identifier: Apache-2.0
// Chooses the replica of an expert that serves a token. Every rank decides for
// all tokens of a step from the same numbers, which round alike on every
// instruction set, so nothing travels. Coordinates are those on data x expert
// (cluster/model/expert_layout.h).
#ifndef RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_
#define RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "cluster/model/expert_layout.h"

namespace ringfleet::worker {

// Assigns routes to coordinates. Keeps its buffers from step to step. Not
// thread-safe.
class ExpertDispatch {
 public:
  // Chooses a coordinate for every route.
  //   route_ids: the experts of a layer's tokens, token by token
  //   group_ends: routes [group_ends[g - 1], group_ends[g]) are of tokens that
  //     data group g holds; the last one is route_ids.size(). A group has
  //     layout.num_coordinates() / group_ends.size() consecutive coordinates.
  //
  // An expert with one replica has no choice. Experts with several replicas
  // choose in descending order of tokens. All tokens of an expert go to the
  // least loaded of its coordinates, unless they cost more than reading the
  // expert again. Then they are split so that the loads of its coordinates even
  // out. The choices are made three times, because an early choice does not
  // know the later choices. Each coordinate gets as many tokens of its own data
  // group as possible.
  void Assign(const cluster::ExpertLayout& layout, int layer,
              absl::Span<const int32_t> route_ids,
              absl::Span<const size_t> group_ends);

  // Drops the routes of a coordinate beyond `capacity` times its fair share,
  // rounded up. The routes with the least router weight go first; among equals,
  // the later routes. weights [routes]
  void LimitRoutes(double capacity, absl::Span<const float> weights);

  // The coordinate of each route since the last Assign. -1: the route was
  // dropped.
  absl::Span<const int32_t> coordinates() const { return coordinates_; }
  uint64_t dropped() const { return dropped_; }
  // replicas [routes]: the index in Held(layer, coordinate) of each route's
  // expert if that coordinate multiplies the token, else -1. `route_ids` as for
  // Assign.
  void FindReplicas(const cluster::ExpertLayout& layout, int layer,
                    int coordinate, absl::Span<const int32_t> route_ids,
                    int32_t* replicas);
  // The load of each coordinate since the last Assign, by cluster::ExpertCost,
  // in tokens of the fastest coordinate.
  absl::Span<const double> loads() const { return loads_; }

 private:
  // Decides how many tokens of the experts with several replicas go to each of
  // their coordinates.
  void DealChoices(const cluster::ExpertLayout& layout, int layer);
  // Returns one of the expert's coordinates in [begin, end) that still takes a
  // token, or -1.
  int32_t Take(absl::Span<const int32_t> coordinates, int expert, int32_t begin,
               int32_t end);
  // Deals the rows of an expert out to its coordinates. `parts` holds the rows
  // by coordinate: the rows of the previous round on entry, the new rows on
  // return.
  void Deal(absl::Span<const int32_t> coordinates,
            absl::Span<const double> slowness, int64_t rows,
            absl::Span<int64_t> parts);

  std::vector<int64_t> rows_;       // By expert.
  std::vector<double> loads_;       // By coordinate.
  std::vector<int32_t> choices_;    // Experts with a choice and tokens.
  std::vector<int64_t> parts_;      // Rows of each choice by its coordinates.
  std::vector<size_t> first_part_;  // By expert: its first in parts_.
  std::vector<int32_t> lightest_;
  std::vector<int32_t> coordinates_;  // By route.
  uint64_t dropped_ = 0;
  std::vector<int32_t> held_;               // Index in Held by expert.
  std::vector<std::vector<size_t>> taken_;  // Routes, by coordinate.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_
