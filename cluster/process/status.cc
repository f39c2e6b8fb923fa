// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/status.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {
namespace {

// Bytes of the mark in place of what is left out.
constexpr size_t kLeftOutBytes = 64;
// The end of a message often has the cause, the beginning the place.
constexpr size_t kMessageTail = kMaxStatusBytes / 4;
constexpr size_t kMessageHead = kMaxStatusBytes - kMessageTail - kLeftOutBytes;

// Detail of a grpc::Status, and payload of an absl::Status.
constexpr char kSuperseded[] = "superseded";

// The bytes of a character on the wire, where gRPC writes "%0A" for some.
size_t WireBytes(char c) { return c < ' ' || c > '~' || c == '%' ? 3 : 1; }

// Returns how many of the characters from `begin` on take at most `limit`.
template <typename Iterator>
size_t CountWithin(Iterator begin, Iterator end, size_t limit) {
  size_t bytes = 0;
  return std::find_if(begin, end,
                      [&](char c) { return (bytes += WireBytes(c)) > limit; }) -
         begin;
}

// True for a byte inside a UTF-8 character.
bool Continues(char c) { return (c & 0xC0) == 0x80; }

std::string Shortened(absl::string_view text) {
  if (CountWithin(text.begin(), text.end(), kMaxStatusBytes) == text.size()) {
    return std::string(text);
  }
  size_t head = CountWithin(text.begin(), text.end(), kMessageHead);
  size_t tail =
      text.size() - CountWithin(text.rbegin(), text.rend(), kMessageTail);
  while (head > 0 && Continues(text[head])) --head;
  while (tail < text.size() && Continues(text[tail])) ++tail;
  return absl::StrCat(text.substr(0, head), "...[", tail - head,
                      " bytes left out]...", text.substr(tail));
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_details() == kSuperseded) {
    return SupersededError(status.error_message());
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shortened(status.message()),
                      IsSuperseded(status) ? kSuperseded : "");
}

absl::Status SupersededError(absl::string_view message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kSuperseded, absl::Cord());
  return status;
}

bool IsSuperseded(const absl::Status& status) {
  return status.GetPayload(kSuperseded).has_value();
}

}  // namespace ringfleet::cluster
