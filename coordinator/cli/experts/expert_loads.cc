// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/experts/expert_loads.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/json_depth.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/json_output.h"

namespace ringfleet::coordinator::cli {
namespace {

// A hundred times the loads of a model with 61 layers of 256 experts.
constexpr uint64_t kMaxLoadBytes = 32 << 20;
constexpr char kWanted[] =
    "want [[loads of layer 0], [loads of layer 1], ...] or what status "
    "--experts -o json prints";

// Returns the text of a wrong value for a message.
std::string Shown(const Json& value) {
  const std::string text =
      value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 40 ? text : absl::StrCat(text.substr(0, 37), "...");
}

absl::Status AddLayer(const std::string& name, const Json& row,
                      ExpertLoads* loads) {
  const std::string place = absl::StrCat("layer ", name);
  if (!row.is_array() || row.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        place, ": ", Shown(row), ", want an array of the experts' loads"));
  }
  const size_t num_experts = row.size();
  if (loads->layers.empty()) {
    loads->num_experts = static_cast<int>(num_experts);
  } else if (num_experts != static_cast<size_t>(loads->num_experts)) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": ", num_experts, " loads, want ",
                     loads->num_experts, " as in layer ", loads->layers[0]));
  }
  for (size_t e = 0; e < num_experts; ++e) {
    constexpr float kMost = std::numeric_limits<float>::max();
    const double load = row[e].is_number() ? row[e].get<double>() : -1;
    if (!(load >= 0 && load <= kMost)) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ", expert ", e, ": load ", Shown(row[e]),
                       ", want a number from 0 to ", kMost));
    }
    loads->loads.push_back(row[e].get<float>());
  }
  loads->layers.push_back(name);
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseDocument(absl::string_view text) {
  RF_RETURN_IF_ERROR(cluster::CheckJsonDepth(text));
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(error.what(), ", ", kWanted));
  }
}

}  // namespace

absl::StatusOr<ExpertLoads> ParseExpertLoads(absl::string_view json) {
  RF_ASSIGN_OR_RETURN(const Json document, ParseDocument(json));
  const bool by_number = document.is_object() && document.contains("experts") &&
                         document["experts"].is_object();
  const Json& rows = by_number ? document["experts"] : document;
  if (rows.empty() || !(by_number || rows.is_array())) {
    return absl::InvalidArgumentError(
        absl::StrCat(Shown(document), ", ", kWanted));
  }
  ExpertLoads loads;
  for (const auto& [name, row] : rows.items()) {
    RF_RETURN_IF_ERROR(AddLayer(name, row, &loads));
  }
  return loads;
}

absl::StatusOr<ExpertLoads> ReadExpertLoads(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const std::string text,
                      cluster::ReadSmallFile(path, kMaxLoadBytes));
  absl::StatusOr<ExpertLoads> loads = ParseExpertLoads(text);
  if (!loads.ok()) return Annotate(loads.status(), path);
  return loads;
}

}  // namespace ringfleet::coordinator::cli
