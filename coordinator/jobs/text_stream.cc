// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/text_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

absl::Status CheckStops(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStops) {
    return absl::InvalidArgumentError(
        absl::StrCat(stops.size(), " strings, want at most ", kMaxStops));
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a string of ", stop.size(), " bytes, want 1 to ", kMaxStopBytes));
    }
  }
  return absl::OkStatus();
}

TextStream::TextStream(TextRules rules) : rules_(std::move(rules)) {
  if (rules_.tokenizer != nullptr) decoder_.emplace(rules_.tokenizer);
}

std::string TextStream::Add(uint32_t id) {
  if (!decoder_.has_value()) return "";
  const std::string text = decoder_->Add(id);
  decoded_bytes_ += text.size();
  if (rules_.stops.empty()) return text;
  held_ += text;
  return Release();
}

std::string TextStream::Finish() {
  if (!decoder_.has_value()) return "";
  const std::string text = decoder_->Finish();
  decoded_bytes_ += text.size();
  held_ += text;
  std::string out = Release();
  if (!stop_.has_value()) out += std::exchange(held_, "");
  return out;
}

std::string TextStream::Release() {
  size_t first = std::string::npos;
  for (const std::string& stop : rules_.stops) {
    const size_t found = held_.find(stop);
    if (found >= first) continue;
    first = found;
    stop_ = stop;
  }
  if (stop_.has_value()) {
    std::string out = held_.substr(0, first);
    if (rules_.keeps_stop) out += *stop_;
    held_.clear();
    return out;
  }
  size_t held = 0;
  for (const std::string& stop : rules_.stops) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > held; --n) {
      if (absl::EndsWith(held_, absl::string_view(stop).substr(0, n))) held = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - held);
  held_.erase(0, out.size());
  return out;
}

}  // namespace ringfleet::coordinator
