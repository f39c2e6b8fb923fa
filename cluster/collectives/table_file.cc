// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/table_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/file_reader.h"

namespace ringfleet::cluster {

absl::StatusOr<std::string> ReadTableFile(const std::string& path,
                                          absl::string_view wanted) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxTableBytes);
  if (text.ok()) return text;
  // The name is wrong, not the state of the system.
  const absl::StatusCode code = absl::IsFailedPrecondition(text.status())
                                    ? absl::StatusCode::kInvalidArgument
                                    : text.status().code();
  return absl::Status(code,
                      absl::StrCat(text.status().message(), ", want ", wanted));
}

absl::Status CheckTableKeys(const nlohmann::ordered_json& object,
                            absl::string_view where,
                            std::initializer_list<absl::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": unknown key '", key.substr(0, 64),
                     "', want one of ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
