// SPDX-License-Identifier: Apache-2.0
// Names of the types of weights and of the latent cache in a worker's memory,
// as the command line and cluster files spell them.
#ifndef RINGFLEET_CLUSTER_MODEL_DTYPE_NAMES_H_
#define RINGFLEET_CLUSTER_MODEL_DTYPE_NAMES_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

inline constexpr char kWeightDtypeChoices[] =
    "native, f32, bf16, int8, int4-experts or int4";
inline constexpr char kCacheDtypeChoices[] = "f32, bf16 or int8";

// Returns the dtype of a name of kWeightDtypeChoices. INVALID_ARGUMENT: another
// name; the message has the choices.
absl::StatusOr<v1::Dtype> ParseWeightDtype(absl::string_view name);

// Return the name of a value, or "unspecified" for a value without a name.
absl::string_view WeightDtypeName(v1::Dtype dtype);
absl::string_view CacheDtypeName(v1::CacheDtype dtype);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_DTYPE_NAMES_H_
