// SPDX-License-Identifier: Apache-2.0
// Runs a layer's experts for the tokens of several data groups. Each group
// holds its own sequences, and all groups share all experts. Tokens travel to
// the groups that hold their experts, and the sums travel back.
//
//   1. All ranks gather the routes of every group. They decide alike which
//      replica serves which token (expert_dispatch.h), so each rank knows what
//      it sends and receives.
//   2. A token goes once to each coordinate that it needs. The sender is the
//      rank of its group with the same coordinates on the expert and tensor
//      axes. The token has the form that the products read, so no result
//      depends on whether a token travelled.
//   3. The sums return in the wire's type. They are added to the summand of the
//      rank that sent the token, before the ranks of the group reduce.
#ifndef RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_
#define RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_

#include "absl/status/statusor.h"
#include "kernels/products/activations.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Runs NoteFeedForward and FeedForward of a layer of experts for all data
// groups at once. A group may have no tokens. All ranks enter it for the same
// layers in the same order.
//   x [context.group_rows.own(), D]: own rows, in the form that the products
//     read; the workspace has their routes
// Returns this rank's summand [context.group_rows.own(), D] f32, in the
// workspace, to be summed over the ranks of the group.
//
// Errors: those of the collectives; DATA_LOSS of CheckRoutes. The epoch is
// over.
absl::StatusOr<float*> ExchangedFeedForward(LayerContext& context,
                                            const LayerWeights& weights,
                                            const kernels::Activations& x,
                                            int layer);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_
