// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/cache_dtype.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

struct Entry {
  v1::CacheDtype dtype;
  absl::string_view name;
};

constexpr Entry kEntries[] = {{v1::CACHE_DTYPE_F32, "f32"},
                              {v1::CACHE_DTYPE_BF16, "bf16"},
                              {v1::CACHE_DTYPE_INT8, "int8"}};

}  // namespace

absl::StatusOr<v1::CacheDtype> ParseCacheDtype(absl::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cache type ", name, ", want ", kCacheDtypeChoices));
}

absl::string_view CacheDtypeName(v1::CacheDtype dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "unspecified";
}

}  // namespace ringfleet::cluster
