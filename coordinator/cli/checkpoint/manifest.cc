// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/checkpoint/manifest.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/json_depth.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/output_file.h"

namespace ringfleet::coordinator::cli {
namespace {

std::string HashDigits(uint64_t hash) {
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

// False when it is not what HashDigits writes.
bool ParseHex(const Json& value, uint64_t* hash) {
  return value.is_string() && value.get<std::string>().size() == 16 &&
         absl::SimpleHexAtoi(value.get<std::string>(), hash);
}

bool ParseTensor(const std::string& name, const Json& value,
                 v1::CheckpointTensor* tensor) {
  uint64_t hash = 0;
  if (!value.is_object() || !value.contains("dtype") ||
      !value["dtype"].is_string() || !value.contains("shape") ||
      !value["shape"].is_array() || !value.contains("xxh3_64") ||
      !ParseHex(value["xxh3_64"], &hash)) {
    return false;
  }
  tensor->set_name(name);
  tensor->set_dtype(value["dtype"].get<std::string>());
  for (const Json& size : value["shape"]) {
    if (!size.is_number_integer()) return false;
    tensor->add_shape(size.get<int64_t>());
  }
  tensor->set_hash(hash);
  return true;
}

}  // namespace

Json ManifestJson(const v1::CheckpointFacts& facts) {
  Json files = Json::object();
  for (const v1::CheckpointFile& file : facts.files()) {
    files[file.name()] = {{"bytes", file.bytes()},
                          {"header_xxh3", HashDigits(file.header_hash())}};
  }
  Json tensors = Json::object();
  for (const v1::CheckpointTensor& tensor : facts.tensors()) {
    tensors[tensor.name()] = {
        {"dtype", tensor.dtype()},
        {"shape",
         std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())},
        {"bytes", tensor.bytes()},
        {"xxh3_64", HashDigits(tensor.hash())}};
  }
  return {{"version", 1}, {"files", files}, {"tensors", tensors}};
}

absl::StatusOr<v1::CheckpointFacts> ParseManifest(const std::string& text) {
  RF_RETURN_IF_ERROR(cluster::CheckJsonDepth(text));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("version") || json["version"] != 1 ||
      !json.contains("tensors") || !json["tensors"].is_object()) {
    return absl::InvalidArgumentError(
        "not a manifest, want what ringfleet convert wrote");
  }
  v1::CheckpointFacts facts;
  for (const auto& [name, value] : json["tensors"].items()) {
    if (!ParseTensor(name, value, facts.add_tensors())) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": want a dtype, a shape and an xxh3_64 of 16 digits"));
    }
  }
  return facts;
}

absl::Status WriteManifest(const std::string& path,
                           const v1::CheckpointFacts& facts) {
  return WriteOutputFile(path, ManifestJson(facts).dump(1) + "\n");
}

}  // namespace ringfleet::coordinator::cli
