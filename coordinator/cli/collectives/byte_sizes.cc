// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/byte_sizes.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr uint64_t kElementBytes = 4;
constexpr uint64_t kMaxBytes = uint64_t{4} << 30;

struct Unit {
  absl::string_view name;  // Lower case.
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},        {"b", 1},         {"k", 1 << 10},        {"kib", 1 << 10},
    {"kb", 1'000},  {"m", 1 << 20},   {"mib", 1 << 20},      {"mb", 1'000'000},
    {"g", 1 << 30}, {"gib", 1 << 30}, {"gb", 1'000'000'000},
};

absl::Status Error(absl::string_view text, absl::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrCat("usage: --bytes '", text.substr(0, 64), "', want ", want));
}

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  const size_t digits =
      std::min(text.find_first_not_of("0123456789."), text.size());
  const absl::string_view number = text.substr(0, digits);
  const std::string unit = absl::AsciiStrToLower(text.substr(digits));
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    double value = 0;
    if (!absl::SimpleAtod(number, &value) ||
        value * static_cast<double>(known.bytes) > kMaxBytes) {
      break;
    }
    if (absl::StrContains(number, '.')) {
      const auto bytes =
          static_cast<uint64_t>(value * static_cast<double>(known.bytes));
      return bytes - bytes % kElementBytes;
    }
    const auto bytes = static_cast<uint64_t>(value) * known.bytes;
    if (bytes % kElementBytes != 0) {
      return Error(text, absl::StrCat("a multiple of ", kElementBytes,
                                      ", a float32 element, as ",
                                      bytes - bytes % kElementBytes));
    }
    return bytes;
  }
  return Error(text, "sizes as in 4,28k,1.8m,1GiB, at most 4g");
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> ParseByteSizes(absl::string_view text) {
  std::vector<uint64_t> sizes;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    RF_ASSIGN_OR_RETURN(const uint64_t bytes,
                        ParseByteSize(absl::StripAsciiWhitespace(part)));
    sizes.push_back(bytes);
  }
  return sizes;
}

}  // namespace ringfleet::coordinator::cli
