// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ringfleet::coordinator {
namespace {

constexpr size_t kLeastKeyBytes = 8;
constexpr size_t kMostKeyBytes = 512;

bool IsKeyName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
           c == '_' || c == '-';
  });
}

bool IsApiKey(absl::string_view key) {
  return key.size() >= kLeastKeyBytes && key.size() <= kMostKeyBytes &&
         std::all_of(key.begin(), key.end(), [](char c) {
           return absl::ascii_isgraph(static_cast<unsigned char>(c));
         });
}

}  // namespace

ApiKeys::Hash ApiKeys::HashOf(absl::string_view key) {
  Hash hash;
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), hash.data());
  return hash;
}

absl::StatusOr<ApiKeys> ApiKeys::Parse(absl::string_view text) {
  ApiKeys keys;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || absl::StartsWith(line, "#")) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    const absl::string_view key = absl::StripAsciiWhitespace(parts.second);
    if (!IsKeyName(name) || !IsApiKey(key)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, ": want 'NAME: KEY' with a key of ", kLeastKeyBytes,
          " to ", kMostKeyBytes, " printable characters"));
    }
    const Hash hash = HashOf(key);
    for (const Key& other : keys.keys_) {
      if (other.name == name || other.hash == hash) {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", number, ": its name or its key is that of '",
                         other.name, "', want another"));
      }
    }
    keys.keys_.push_back({std::string(name), hash});
  }
  if (keys.keys_.empty()) {
    return absl::InvalidArgumentError("no key, want lines 'NAME: KEY'");
  }
  return keys;
}

std::optional<std::string> ApiKeys::NameOf(absl::string_view key) const {
  const Hash hash = HashOf(key);
  const Key* found = nullptr;
  for (const Key& known : keys_) {
    if (CRYPTO_memcmp(known.hash.data(), hash.data(), hash.size()) == 0) {
      found = &known;
    }
  }
  if (found == nullptr) return std::nullopt;
  return found->name;
}

}  // namespace ringfleet::coordinator
