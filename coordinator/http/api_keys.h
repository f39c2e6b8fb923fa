// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_HTTP_API_KEYS_H_
#define RINGFLEET_COORDINATOR_HTTP_API_KEYS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// The keys that clients show. Keeps their hashes only. Immutable.
class ApiKeys {
 public:
  // Parses lines `NAME: KEY`. Empty lines and lines that begin with '#' are
  // skipped. A name has letters, digits, '.', '_' and '-'; a key has 8 to 512
  // printable characters without spaces.
  //
  // Errors: INVALID_ARGUMENT names the line, never its key: malformed, a name
  // or a key given twice, or no key at all.
  static absl::StatusOr<ApiKeys> Parse(absl::string_view text);

  // Returns the name of a key. The time taken does not depend on which key
  // resembles `key`.
  std::optional<std::string> NameOf(absl::string_view key) const;

 private:
  using Hash = std::array<uint8_t, 32>;  // SHA-256.
  struct Key {
    std::string name;
    Hash hash;
  };
  static Hash HashOf(absl::string_view key);

  std::vector<Key> keys_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_API_KEYS_H_
