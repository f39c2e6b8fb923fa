// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/context.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator::jinja {

absl::Status Context::Step() {
  if (++steps_ <= kMaxSteps) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the template takes more than ", kMaxSteps, " steps"));
}

absl::Status Context::Work(size_t bytes) {
  if (bytes <= kMaxWorkBytes - work_bytes_) {
    work_bytes_ += bytes;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the template builds and searches more than ", kMaxWorkBytes,
      " bytes of values: ", work_bytes_, " bytes and then ", bytes));
}

absl::Status Context::WorkOnItems(size_t count) {
  return Work(count > kMaxWorkBytes ? count : count * sizeof(Value));
}

Value Context::NewList(std::vector<Value> items, List::Kind kind) {
  List list;
  list.kind = kind;
  list.items = std::move(items);
  return Value(New(std::move(list)));
}

Value Context::NewPair(Value first, Value second) {
  return NewList({std::move(first), std::move(second)}, List::kTuple);
}

absl::Status Context::Nesting::Check() const {
  if (context_->nesting_ <= kMaxNesting) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the template calls and nests deeper than ", kMaxNesting, " levels"));
}

absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      absl::StrCat("a value nests deeper than ", kMaxDepth));
}

}  // namespace ringfleet::coordinator::jinja
