// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/weight_dtype.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

struct Entry {
  v1::Dtype dtype;
  absl::string_view name;
};

constexpr Entry kEntries[] = {{v1::DTYPE_F32, "f32"},
                              {v1::DTYPE_BF16, "bf16"},
                              {v1::DTYPE_INT8, "int8"},
                              {v1::DTYPE_INT4_EXPERTS, "int4-experts"},
                              {v1::DTYPE_INT4, "int4"}};

}  // namespace

absl::StatusOr<v1::Dtype> ParseWeightDtype(absl::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", name, ", want ", kWeightDtypeChoices));
}

absl::string_view WeightDtypeName(v1::Dtype dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "unspecified";
}

std::vector<std::string> WeightDtypeNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

}  // namespace ringfleet::cluster
