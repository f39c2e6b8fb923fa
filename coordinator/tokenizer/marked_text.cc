// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/marked_text.h"

#include <algorithm>

namespace ringfleet::coordinator {
namespace {

// The first run that ends after byte `at`.
std::vector<MarkedText::Run>::const_iterator RunAt(
    const std::vector<MarkedText::Run>& runs, size_t at) {
  return std::upper_bound(
      runs.begin(), runs.end(), at,
      [](size_t byte, const MarkedText::Run& run) { return byte < run.end; });
}

}  // namespace

Origin MarkedText::origin() const {
  if (runs_.size() > 1) return Origin::kMessage;
  return runs_.empty() ? Origin::kTemplate : runs_[0].origin;
}

Origin MarkedText::OriginAt(size_t at) const {
  return RunAt(runs_, at)->origin;
}

bool MarkedText::IsAllOf(Origin origin, size_t begin, size_t end) const {
  const auto run = RunAt(runs_, begin);
  return run->origin == origin && run->end >= end;
}

void MarkedText::Append(absl::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_.append(bytes.data(), bytes.size());
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void MarkedText::Append(const MarkedText& text, size_t begin, size_t size) {
  const size_t end = begin + size;
  const absl::string_view bytes = text.bytes_;
  for (auto run = RunAt(text.runs_, begin); begin < end; ++run) {
    const size_t part = std::min(run->end, end) - begin;
    Append(bytes.substr(begin, part), run->origin);
    begin += part;
  }
}

MarkedText MarkedText::Part(size_t begin, size_t size) const {
  MarkedText part;
  begin = std::min(begin, bytes_.size());
  part.Append(*this, begin, std::min(size, bytes_.size() - begin));
  return part;
}

}  // namespace ringfleet::coordinator
