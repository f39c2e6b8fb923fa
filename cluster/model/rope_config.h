// SPDX-License-Identifier: Apache-2.0
// The rotary embedding of config.json, in its two spellings:
//
//   "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, ...}
//   "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000, ...}
//
// The second one is what transformers 5 writes. Members may be mixed as long as
// they do not contradict each other.
#ifndef RINGFLEET_CLUSTER_MODEL_ROPE_CONFIG_H_
#define RINGFLEET_CLUSTER_MODEL_ROPE_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/model/config_fields.h"
#include "cluster/model/families.h"
#include "cluster/model/model_spec.h"

namespace ringfleet::cluster {

// Sets rope_theta, rope_scaling and query_scale of `spec`, which has the sizes
// of a head. `params` is the text of params.json or "". Appends the members
// that nothing reads to `unread`, as in "rope_parameters.NAME".
//
// Errors: INVALID_ARGUMENT:
//   - rope_theta is missing in both spellings, the type is missing beside other
//     members, or yarn lacks factor or original_max_position_embeddings.
//   - The spellings contradict each other, or a value is out of range.
//   - The embedding is not supported: a type other than yarn and default,
//     parameters for each layer type, rotation of a part of qk_rope_head_dim,
//     or a scale of queries in a family without one.
//   - params.json is read (SoftmaxRule::kByParams) and malformed.
absl::Status ParseRope(ConfigFields& config, const Family& family,
                       absl::string_view params, ModelSpec* spec,
                       std::vector<std::string>* unread);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_ROPE_CONFIG_H_
