// SPDX-License-Identifier: Apache-2.0
// Names of the types that weights may have in a worker's memory, as the
// command line and cluster files spell them.
#ifndef RINGFLEET_CLUSTER_MODEL_WEIGHT_DTYPE_H_
#define RINGFLEET_CLUSTER_MODEL_WEIGHT_DTYPE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

// "f32, bf16, int8, int4-experts or int4".
inline constexpr char kWeightDtypeChoices[] =
    "f32, bf16, int8, int4-experts or int4";

// INVALID_ARGUMENT, with the choices, for any other name.
absl::StatusOr<v1::Dtype> ParseWeightDtype(absl::string_view name);

// "unspecified" for what is none of them.
absl::string_view WeightDtypeName(v1::Dtype dtype);

// All names.
std::vector<std::string> WeightDtypeNames();

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_WEIGHT_DTYPE_H_
