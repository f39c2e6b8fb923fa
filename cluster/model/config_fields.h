// SPDX-License-Identifier: Apache-2.0
// Reads the members of config.json and generation_config.json.
#ifndef RINGFLEET_CLUSTER_MODEL_CONFIG_FIELDS_H_
#define RINGFLEET_CLUSTER_MODEL_CONFIG_FIELDS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {

// Parses the text of `file`. Errors: INVALID_ARGUMENT: not a JSON object, too
// long or nested too deeply.
absl::StatusOr<nlohmann::json> ParseConfigObject(absl::string_view json,
                                                 absl::string_view file);

// Returns enough of a value to recognise it in a message.
std::string ShowConfigValue(const nlohmann::json& value);

// Takes typed members out of a JSON object and keeps the first error, so that
// a parser reads like the list of its fields. A null member counts as absent.
// Remembers the members that were asked for.
class ConfigFields {
 public:
  // Messages begin with `prefix`. `object` outlives this.
  ConfigFields(const nlohmann::json& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  const absl::Status& status() const { return status_; }

  void Fail(absl::string_view field, absl::string_view problem);

  // Returns true if the member is there, even as null.
  bool Has(const char* field) const { return object_.contains(field); }

  // Returns null if the member is absent.
  const nlohmann::json* Get(const char* field);

  int Int(const char* field, int low, int high, std::optional<int> fallback);
  double Number(const char* field, double low, double high,
                std::optional<double> fallback);
  bool Bool(const char* field, bool fallback);
  std::string String(const char* field, absl::string_view fallback);
  // Returns a token id or a list of them.
  std::vector<uint32_t> TokenIds(const char* field, uint32_t vocab_size,
                                 std::vector<uint32_t> fallback);

  // Counts members as asked for that change no result.
  void Ignore(absl::Span<const absl::string_view> fields);

  // Returns the members that nobody has asked for, without nulls, sorted.
  std::vector<std::string> Unread() const;

 private:
  std::optional<double> Checked(const char* field, double low, double high,
                                bool integer, std::optional<double> fallback);

  const nlohmann::json& object_;
  const std::string prefix_;
  std::set<std::string, std::less<>> asked_;
  absl::Status status_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_CONFIG_FIELDS_H_
