// SPDX-License-Identifier: Apache-2.0
// Which copy of an expert a token goes to. Every rank decides it for all tokens
// of a step by the same numbers, which no instruction set rounds differently,
// so nothing travels.
#ifndef RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_
#define RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "cluster/model/expert_layout.h"

namespace ringfleet::worker {

// Keeps its buffers from step to step. Not thread-safe.
class ExpertDispatch {
 public:
  // Chooses a place for every route.
  //   route_ids: the experts of a layer's tokens, token by token
  //   group_ends: routes [group_ends[g - 1], group_ends[g]) are of tokens that
  //     data group g holds; the last one is route_ids.size(). A group has
  //     layout.num_places() / group_ends.size() consecutive places.
  //
  // An expert without copies elsewhere has no choice. Of the others, those with
  // the most tokens first: each goes to the place of its copies that has the
  // least to do, as a whole unless its tokens cost more than reading it again,
  // else in parts that even the places out; three times, because the first
  // choices do not know the last ones. Of a part's tokens as many as can be are
  // of the place's own data group.
  void Assign(const cluster::ExpertLayout& layout, int layer,
              absl::Span<const int32_t> route_ids,
              absl::Span<const size_t> group_ends);

  // Drops what a place has beyond `capacity` times its fair share of the
  // routes, rounded up: those with the least router weight, of equals the later
  // ones. weights [routes]
  void LimitPlaces(double capacity, absl::Span<const float> weights);

  // Of the last Assign: by route; -1: it was dropped.
  absl::Span<const int32_t> places() const { return places_; }
  uint64_t dropped() const { return dropped_; }
  // replicas [routes]: the index in Held(layer, place) of each route's expert
  // if that place multiplies the token, else -1. `route_ids` as for Assign.
  void FindReplicas(const cluster::ExpertLayout& layout, int layer, int place,
                    absl::Span<const int32_t> route_ids, int32_t* replicas);
  // Of the last Assign: what each place has to do, by cluster::ExpertCost, in
  // tokens of the fastest place.
  absl::Span<const double> loads() const { return loads_; }

 private:
  // How many tokens of the experts with copies go to each of their places.
  void DealChoices(const cluster::ExpertLayout& layout, int layer);
  // One of the expert's places in [begin, end) that still takes a token, or -1.
  int32_t Take(absl::Span<const int32_t> places, int expert, int32_t begin,
               int32_t end);
  // Deals the rows of an expert out to its places anew: `parts` are those of
  // the last time, then of this one.
  void Deal(absl::Span<const int32_t> places, absl::Span<const double> slowness,
            int64_t rows, absl::Span<int64_t> parts);

  std::vector<int64_t> rows_;       // By expert.
  std::vector<double> loads_;       // By place.
  std::vector<int32_t> choices_;    // Experts with copies and tokens.
  std::vector<int64_t> parts_;      // Of them, in their places.
  std::vector<size_t> first_part_;  // By expert: of a choice, in parts_.
  std::vector<int32_t> lightest_;
  std::vector<int32_t> places_;  // By route.
  uint64_t dropped_ = 0;
  std::vector<int32_t> held_;               // Index in Held by expert.
  std::vector<std::vector<size_t>> taken_;  // Routes, by place.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_EXPERT_DISPATCH_H_
