// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/dtype_names.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

template <typename Dtype>
struct NamedDtype {
  Dtype dtype;
  absl::string_view name;
};

constexpr NamedDtype<v1::Dtype> kWeightDtypes[] = {
    {v1::DTYPE_NATIVE, "native"},
    {v1::DTYPE_F32, "f32"},
    {v1::DTYPE_BF16, "bf16"},
    {v1::DTYPE_INT8, "int8"},
    {v1::DTYPE_INT4_EXPERTS, "int4-experts"},
    {v1::DTYPE_INT4, "int4"}};

constexpr NamedDtype<v1::CacheDtype> kCacheDtypes[] = {
    {v1::CACHE_DTYPE_F32, "f32"},
    {v1::CACHE_DTYPE_BF16, "bf16"},
    {v1::CACHE_DTYPE_INT8, "int8"}};

template <typename Dtype, size_t kCount>
absl::string_view NameOf(const NamedDtype<Dtype> (&dtypes)[kCount],
                         Dtype dtype) {
  for (const NamedDtype<Dtype>& entry : dtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "unspecified";
}

}  // namespace

absl::StatusOr<v1::Dtype> ParseWeightDtype(absl::string_view name) {
  for (const NamedDtype<v1::Dtype>& entry : kWeightDtypes) {
    if (entry.name == name) return entry.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", name, ", want ", kWeightDtypeChoices));
}

absl::string_view WeightDtypeName(v1::Dtype dtype) {
  return NameOf(kWeightDtypes, dtype);
}

absl::string_view CacheDtypeName(v1::CacheDtype dtype) {
  return NameOf(kCacheDtypes, dtype);
}

}  // namespace ringfleet::cluster
