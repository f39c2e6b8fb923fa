// SPDX-License-Identifier: Apache-2.0
// A layer's experts for the tokens of several data groups, which hold sequences
// of their own and share the experts of all: tokens travel to the groups that
// have their experts, and what these make of them travels back.
//
// Every group's routes are known everywhere first, so that all ranks decide
// alike which copy of an expert gets which token (expert_dispatch.h), and each
// knows what it sends and gets. A token goes once to each place that it needs,
// from the rank of its group that has the same coordinates there, in the form
// that the products read: no result depends on whether a token travelled. The
// sums come back on the wire's type and count into the same rank's summand,
// before the group's ranks add theirs up.
#ifndef RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_
#define RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_

#include "absl/status/statusor.h"
#include "kernels/products/activations.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// FeedForward of a layer of experts, NoteFeedForward included, for all data
// groups at once, of which some may have no tokens. All ranks enter it for the
// same layers in the same order.
//   x: the own tokens, [context.group_rows.own(), D] in the form that the
//     products read; the workspace has their routes
//   returns [the same, D] f32, in the workspace: to be summed over the group
//
// Errors: of the collectives; the epoch is over.
absl::StatusOr<float*> ExchangedFeedForward(LayerContext& context,
                                            const LayerWeights& weights,
                                            const kernels::Activations& x,
                                            int layer);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_
