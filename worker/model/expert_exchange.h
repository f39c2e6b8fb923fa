// SPDX-License-Identifier: Apache-2.0
// Runs a layer's experts for the tokens of several data groups. Each data group
// holds its own sequences, and all data groups share all experts. Tokens travel
// to the data groups that hold their experts, and the experts' sums travel
// back.
//
//   1. All ranks gather the routes of every data group. Every rank then makes
//      an equal choice of replicas (expert_dispatch.h), so each rank knows
//      which rows it sends and receives.
//   2. A token is sent once to each coordinate that serves it. The sender is
//   the
//      rank of the token's data group whose coordinates on the expert and
//      tensor axes equal the receiver's. Tokens travel in the form that the
//      products read, so a token has one result whether it travels or not.
//   3. Sums return in the wire's type. The rank that sent a token adds the
//      returned sums to its own summand, before the ranks of the data group
//      reduce.
//
// A reproducible fleet treats the own data group like the others: own rows take
// the way of rows that travel, so that a row's sum is added in the order of
// data groups, whichever its own is.
#ifndef RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_
#define RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_

#include "absl/status/statusor.h"
#include "kernels/products/activations.h"
#include "worker/model/layer_context.h"
#include "worker/model/weights.h"

namespace ringfleet::worker {

// Runs NoteFeedForward and FeedForward of a layer of experts for all data
// groups at once. A data group may have no tokens. All ranks call the function
// for equal layers in equal order.
//   x [context.group_rows.own(), D]: own rows, in the form that the products
//     read; the routes of own rows are in the workspace
// Returns this rank's summand [context.group_rows.own(), D] f32, in the
// workspace. The caller sums over the ranks of the data group.
//
// Errors: those of the collectives; DATA_LOSS of CheckRoutes. The epoch is over
// after an error.
absl::StatusOr<float*> ExchangedFeedForward(LayerContext& context,
                                            const LayerWeights& weights,
                                            const kernels::Activations& x,
                                            int layer);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_MODEL_EXPERT_EXCHANGE_H_
