// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/weights_difference.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/model/dtype_names.h"

namespace ringfleet::cluster {
namespace {

// Returns what decides about the weights.
v1::LoadRequest OfWeights(v1::LoadRequest request) {
  request.clear_layout();
  request.clear_context();
  request.clear_slots();
  request.clear_cache_positions();
  request.clear_dense_attention();
  request.clear_memory_limit_bytes();
  request.clear_sources();
  request.clear_shard_cache();
  request.clear_await_shard_cache();
  return request;
}

template <typename Value>
std::string DifferenceOf(const char* name, const Value& wanted,
                         const Value& held) {
  if (wanted == held) return "";
  return absl::StrCat(name, " ", wanted, ", held ", held);
}

const char* OnOff(bool value) { return value ? "on" : "off"; }

// "sequence_parallel"
std::string StrategyName(v1::PrefillStrategy strategy) {
  return absl::AsciiStrToLower(absl::StripPrefix(
      v1::PrefillStrategy_Name(strategy), "PREFILL_STRATEGY_"));
}

}  // namespace

std::string WeightsDifference(const v1::LoadRequest& wanted,
                              const v1::LoadRequest& held) {
  if (OfWeights(wanted).SerializeAsString() ==
      OfWeights(held).SerializeAsString()) {
    return "";
  }
  for (const std::string& difference :
       {DifferenceOf("model", wanted.model_path(), held.model_path()),
        DifferenceOf("dtype", WeightDtypeName(wanted.dtype()),
                     WeightDtypeName(held.dtype())),
        DifferenceOf("cache type", CacheDtypeName(wanted.cache_dtype()),
                     CacheDtypeName(held.cache_dtype())),
        DifferenceOf("threads", wanted.threads(), held.threads()),
        DifferenceOf("prefill strategy",
                     StrategyName(wanted.prefill_strategy()),
                     StrategyName(held.prefill_strategy())),
        DifferenceOf("prediction layers",
                     std::string(OnOff(!wanted.without_mtp())),
                     std::string(OnOff(!held.without_mtp()))),
        DifferenceOf("float32 reference",
                     std::string(OnOff(wanted.reference())),
                     std::string(OnOff(held.reference())))}) {
    if (!difference.empty()) return difference;
  }
  return "another setting of the load";
}

}  // namespace ringfleet::cluster
