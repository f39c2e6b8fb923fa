// SPDX-License-Identifier: Apache-2.0
// Reads the files of algorithm tables and tile tables.
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

// Largest accepted file. A complete algorithm table of 75 rows takes 8 KiB. A
// row of a tile table takes 200 bytes.
inline constexpr uint64_t kMaxTableBytes = uint64_t{1} << 20;

// Returns the text of a table's file. Errors name the path and end with
// `wanted`, for example "an algorithm table". NOT_FOUND: no such file.
// INVALID_ARGUMENT: not a regular file, or more than kMaxTableBytes. Other
// errors: those of FileReader.
absl::StatusOr<std::string> ReadTableFile(const std::string& path,
                                          absl::string_view wanted);

// Checks that every key of `object` is one of `known`, because a misspelt key
// would pass for a missing key. INVALID_ARGUMENT: "WHERE: unknown key 'x', want
// one of ...".
absl::Status CheckTableKeys(const nlohmann::ordered_json& object,
                            absl::string_view where,
                            std::initializer_list<absl::string_view> known);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_COLLECTIVES_TABLE_FILE_H_
