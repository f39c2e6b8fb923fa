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
  const Tokenizer* const tokenizer = rules_.tokenizer;
  if (tokenizer == nullptr) return;
  std::vector<uint32_t> markers;
  if (rules_.reasoning.has_value()) {
    splitter_.emplace(*rules_.reasoning);
    for (const absl::string_view marker :
         {rules_.reasoning->markers.begin, rules_.reasoning->markers.end}) {
      if (const auto id = TokenOf(*tokenizer, marker)) markers.push_back(*id);
    }
  }
  decoder_.emplace(tokenizer, std::move(markers));
}

AnswerPiece TextStream::Add(uint32_t id) {
  if (!decoder_.has_value()) return {};
  if (splitter_.has_value()) undecided_.push_back(decoded_bytes_);
  std::string text = decoder_->Add(id);
  decoded_bytes_ += text.size();
  if (!rules_.stops.empty()) {
    held_ += text;
    text = Release();
  }
  return Divide(std::move(text), /*last=*/stop_.has_value());
}

AnswerPiece TextStream::Finish() {
  if (!decoder_.has_value()) return {};
  const std::string text = decoder_->Finish();
  decoded_bytes_ += text.size();
  held_ += text;
  std::string out = Release();
  if (!stop_.has_value()) out += std::exchange(held_, "");
  return Divide(std::move(out), /*last=*/true);
}

AnswerPiece TextStream::Divide(std::string text, bool last) {
  told_bytes_ += text.size();
  AnswerPiece piece;
  if (!splitter_.has_value()) {
    piece.text = std::move(text);
    return piece;
  }
  piece = splitter_->Add(text);
  CountReasoning();
  if (!last) return piece;
  const AnswerPiece rest = splitter_->Finish();
  piece.reasoning += rest.reasoning;
  piece.text += rest.text;
  // Tokens without text, such as the end token, follow the last text.
  if (splitter_->reasons()) reasoning_tokens_ += undecided_.size();
  undecided_.clear();
  return piece;
}

void TextStream::CountReasoning() {
  if (splitter_->state() == ReasoningState::kUndecided) return;
  const size_t end = splitter_->reasoning_end().value_or(
      splitter_->reasons() ? told_bytes_ : 0);
  const auto beyond =
      std::find_if(undecided_.begin(), undecided_.end(),
                   [end](size_t place) { return place >= end; });
  reasoning_tokens_ += static_cast<size_t>(beyond - undecided_.begin());
  undecided_.erase(undecided_.begin(),
                   splitter_->reasons() ? beyond : undecided_.end());
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
