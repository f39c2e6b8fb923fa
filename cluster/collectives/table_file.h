// SPDX-License-Identifier: Apache-2.0
// The files of algorithm tables and tile tables.
#ifndef RINGFLEET_CLUSTER_COLLECTIVES_TABLE_FILE_H_
#define RINGFLEET_CLUSTER_COLLECTIVES_TABLE_FILE_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// 75 rows of algorithms take 8 KiB, and a row of cuts takes 200 bytes.
inline constexpr uint64_t kMaxTableBytes = uint64_t{1} << 20;

// Reads a table's file. `wanted` ends the messages: "an algorithm table".
// Errors name the path. NOT_FOUND: no such file. INVALID_ARGUMENT: not a
// regular file, or more than kMaxTableBytes. Else those of FileReader.
absl::StatusOr<std::string> ReadTableFile(const std::string& path,
                                          absl::string_view wanted);

// Refuses unknown keys, because a misspelt key would be taken for a missing
// key. INVALID_ARGUMENT: "WHERE: unknown key 'x', want one of ...".
absl::Status CheckTableKeys(const nlohmann::ordered_json& object,
                            absl::string_view where,
                            std::initializer_list<absl::string_view> known);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_TABLE_FILE_H_
