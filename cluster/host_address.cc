// SPDX-License-Identifier: Apache-2.0
#include "cluster/host_address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ringfleet::cluster {

bool IsLoopback(absl::string_view host) {
  if (absl::EqualsIgnoreCase(host, "localhost") || host == "ip6-localhost") {
    return true;
  }
  const std::string text(host);
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == 127;
  }
  in6_addr v6;
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

std::string JoinHostPort(absl::string_view host, int port) {
  const bool v6 = absl::StrContains(host, ':');
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", ":", port);
}

absl::StatusOr<std::pair<int, int>> ParseHostRange(absl::string_view range,
                                                   int size) {
  if (range.empty()) return std::make_pair(0, size - 1);
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(range, absl::MaxSplits('-', 1));
  const bool single = !absl::StrContains(range, '-');
  const auto parse = [](absl::string_view text, int* rank) {
    return !text.empty() && text.size() <= 6 &&
           std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
           absl::SimpleAtoi(text, rank);
  };
  int first = 0, last = 0;
  if (!parse(ends.first, &first) ||
      !parse(single ? ends.first : ends.second, &last) || first > last ||
      last >= size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hosts '", range, "', want RANK or FIRST-LAST within 0-", size - 1));
  }
  return std::make_pair(first, last);
}

}  // namespace ringfleet::cluster
