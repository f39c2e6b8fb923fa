// SPDX-License-Identifier: Apache-2.0
// Names of the types that the latent cache may have in a worker's memory, as
// the command line and cluster files spell them.
#ifndef RINGFLEET_CLUSTER_MODEL_CACHE_DTYPE_H_
#define RINGFLEET_CLUSTER_MODEL_CACHE_DTYPE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/types.pb.h"

namespace ringfleet::cluster {

inline constexpr char kCacheDtypeChoices[] = "f32, bf16 or int8";

// INVALID_ARGUMENT, with the choices, for any other name.
absl::StatusOr<v1::CacheDtype> ParseCacheDtype(absl::string_view name);

// "unspecified" for what is none of them.
absl::string_view CacheDtypeName(v1::CacheDtype dtype);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_CACHE_DTYPE_H_
