// SPDX-License-Identifier: Apache-2.0
// Reads the fields of a JSON request with their limits.
#ifndef RINGFLEET_COORDINATOR_HTTP_REQUEST_FIELDS_H_
#define RINGFLEET_COORDINATOR_HTTP_REQUEST_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/http/api_error.h"

namespace ringfleet::coordinator {

// The first problem that any reader meets stays. A reader returns nothing for a
// field that is absent, null or wrong. Not thread-safe.
class RequestFields {
 public:
  using Json = nlohmann::ordered_json;

  // `object` must outlive this one. `path` precedes the names of fields in
  // errors, as in "stream_options.".
  explicit RequestFields(const Json& object, std::string path = "")
      : object_(object), path_(std::move(path)) {}

  // Returns a field's value. Null: absent or null.
  const Json* Find(const char* name) const;

  std::optional<double> Number(const char* name, double least, double most);
  std::optional<int64_t> Integer(const char* name, int64_t least, int64_t most);
  bool Flag(const char* name, bool absent);
  std::optional<std::string> Text(const char* name);
  // Reads a list of ids below `limit`, not longer than `most`.
  std::vector<uint32_t> Ids(const char* name, size_t most, uint32_t limit);

  // Refuses a field unless its value asks for nothing: absent, null, false, 0,
  // or empty; or, for a number, `neutral`.
  void Refuse(const char* name, double neutral = 0);

  void Fail(ApiError error);
  void FailField(const char* name, std::string message,
                 std::string code = kInvalidValue);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_REQUEST_FIELDS_H_
