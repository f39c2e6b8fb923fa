// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/host_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ringfleet::cluster {

namespace {

absl::Status BadAddress(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "address \"", text, "\": ", why, "; want HOST:PORT or [IPV6]:PORT"));
}

}  // namespace

absl::StatusOr<ServerAddress> ParseAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return BadAddress(text, "no port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port_text = text.substr(colon + 1);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
    in6_addr ignored;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &ignored) != 1) {
      return BadAddress(text, "no IPv6 address in the brackets");
    }
  } else if (absl::StrContains(host, ':')) {
    return BadAddress(text, "an IPv6 host needs brackets");
  } else if (host.empty()) {
    return BadAddress(text, "no host");
  } else if (!std::all_of(host.begin(), host.end(), [](char c) {
               return absl::ascii_isalnum(c) || c == '.' || c == '-' ||
                      c == '_';
             })) {
    return BadAddress(text, "the host has characters that no name has");
  }
  int port = 0;
  if (port_text.empty() || port_text.size() > 5 ||
      !std::all_of(port_text.begin(), port_text.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(port_text, &port) || port > 65535) {
    return BadAddress(text, absl::StrCat("port \"", port_text,
                                         "\" is not a number of 0 to 65535"));
  }
  return ServerAddress{std::string(host), port};
}

std::string FormatAddress(const ServerAddress& address) {
  if (absl::StrContains(address.host, ':')) {
    return absl::StrCat("[", address.host, "]:", address.port);
  }
  return absl::StrCat(address.host, ":", address.port);
}

std::string NumericAddress(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") &&
      !absl::ConsumePrefix(&peer, "ipv6:")) {
    return "";
  }
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
}

bool IsLoopback(absl::string_view host) {
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
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

bool IsWildcard(absl::string_view host) {
  // Reads "0", "0.0" and "0x0" too, as listening does.
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(std::string(host).c_str(), nullptr, &hints, &found) != 0) {
    return false;
  }
  bool any = false;
  if (found->ai_family == AF_INET) {
    any =
        reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr ==
        htonl(INADDR_ANY);
  } else if (found->ai_family == AF_INET6) {
    const in6_addr& address =
        reinterpret_cast<const sockaddr_in6*>(found->ai_addr)->sin6_addr;
    const uint8_t* const v4 = address.s6_addr + 12;
    any = IN6_IS_ADDR_UNSPECIFIED(&address) ||
          (IN6_IS_ADDR_V4MAPPED(&address) &&
           std::all_of(v4, v4 + 4, [](uint8_t byte) { return byte == 0; }));
  }
  freeaddrinfo(found);
  return any;
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
