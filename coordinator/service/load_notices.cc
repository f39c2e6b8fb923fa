// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/load_notices.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/model/absorbed_cost.h"
#include "coordinator/scheduling/scheduler.h"

namespace ringfleet::coordinator {
namespace {

// Long prompts pay most.
std::string PriceOfReproducible(const cluster::ModelSpec& spec) {
  const auto percent = [&spec](int positions) {
    return absl::StrFormat(
        "%.0f %%",
        100 * (cluster::AbsorbedCost(spec, positions, kPrefillChunk) - 1));
  };
  return absl::StrCat("reproducible: a prompt of 2048 tokens takes ",
                      percent(2048), " more multiplications, one of 8192 ",
                      percent(8192), "; experts do not move");
}

std::string BoundOfDenseAttention(const cluster::ModelSpec& spec, bool dense) {
  if (dense) {
    return absl::StrCat(
        "attention is dense: beyond ", spec.index_topk,
        " positions (index_topk) answers differ from those of the sparse "
        "attention that the model was trained with");
  }
  return absl::StrCat("attention is dense: sequences have at most ",
                      spec.MostPositions(false), " positions (",
                      spec.MostPositionsCause(false), ")");
}

}  // namespace

std::vector<std::string> LoadNotices(const cluster::ModelSpec& spec,
                                     const v1::FleetSettings& settings) {
  std::vector<std::string> notices;
  if (spec.MostPositions(false) < spec.MostPositions(true)) {
    notices.push_back(BoundOfDenseAttention(
        spec, settings.attention() == v1::ATTENTION_FORM_DENSE));
  }
  if (settings.reproducible()) notices.push_back(PriceOfReproducible(spec));
  return notices;
}

}  // namespace ringfleet::coordinator
