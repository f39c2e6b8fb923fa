// SPDX-License-Identifier: Apache-2.0
// Which copy of an expert a token goes to. Every rank decides it for all tokens
// of a step by the same numbers, which no instruction set rounds differently,
// so nothing travels.
#ifndef RINGFLEET_WORKER_EXPERT_DISPATCH_H_
#define RINGFLEET_WORKER_EXPERT_DISPATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "cluster/expert_layout.h"

namespace ringfleet::worker {

// Keeps its buffers from step to step. Not thread-safe.
class ExpertDispatch {
 public:
  // route_ids [tokens * chosen]: the experts of a layer's tokens, token by
  // token. slots [the same]: where Held(layer, place) has the expert, if this
  // place is to multiply the token, else -1. Of every route exactly one place
  // is to.
  //
  // An expert without copies elsewhere has no choice. Of the others, those with
  // the most tokens first: each goes to the place of its copies that has the
  // least to do, as a whole unless its tokens cost more than reading it again,
  // else in parts that even the places out; three times, because the first
  // choices do not know the last ones.
  void Assign(const cluster::ExpertLayout& layout, int layer, int place,
              absl::Span<const int32_t> route_ids, int32_t* slots);

  // Of the last Assign: what each place has to do, by cluster::ExpertCost, in
  // tokens of the fastest place.
  absl::Span<const double> loads() const { return loads_; }

 private:
  // The routes of an expert that are for this place, by their rank among all of
  // that expert.
  struct Share {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t seen = 0;
    int32_t slot = -1;
  };

  // What of the experts with copies is for this place.
  void DealChoices(const cluster::ExpertLayout& layout, int layer, int place);
  // Deals the rows of an expert out to its places anew: `parts` are those of
  // the last time, then of this one.
  void Deal(absl::Span<const int32_t> places, absl::Span<const double> slowness,
            int64_t rows, absl::Span<int64_t> parts);

  std::vector<int64_t> rows_;     // By expert.
  std::vector<double> loads_;     // By place.
  std::vector<int32_t> choices_;  // Experts with copies and tokens.
  std::vector<int64_t> parts_;    // Of them, in their places.
  std::vector<int32_t> lightest_;
  std::vector<Share> shares_;  // By expert.
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXPERT_DISPATCH_H_
