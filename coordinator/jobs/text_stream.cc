// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/text_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

TextStream::TextStream(const Tokenizer* tokenizer,
                       std::vector<std::string> stops, bool keeps_stop)
    : stops_(std::move(stops)), keeps_stop_(keeps_stop) {
  if (tokenizer != nullptr) decoder_.emplace(tokenizer);
}

std::string TextStream::Add(uint32_t id) {
  if (!decoder_.has_value()) return "";
  const std::string text = decoder_->Add(id);
  decoded_bytes_ += text.size();
  if (stops_.empty()) return text;
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
  for (const std::string& stop : stops_) {
    const size_t found = held_.find(stop);
    if (found >= first) continue;
    first = found;
    stop_ = stop;
  }
  if (stop_.has_value()) {
    std::string out = held_.substr(0, first);
    if (keeps_stop_) out += *stop_;
    held_.clear();
    return out;
  }
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > held; --n) {
      if (absl::EndsWith(held_, absl::string_view(stop).substr(0, n))) held = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - held);
  held_.erase(0, out.size());
  return out;
}

}  // namespace ringfleet::coordinator
