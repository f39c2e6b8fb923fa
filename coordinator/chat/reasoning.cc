// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/reasoning.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace ringfleet::coordinator {
namespace {

// "<think>" of DeepSeek, Kimi and GLM; Mistral's.
constexpr ReasoningMarkers kFamilies[] = {{"<think>", "</think>"},
                                          {"[THINK]", "[/THINK]"}};

// Returns the length of the longest end of `text` that begins `marker`, without
// being all of it.
size_t PartialMarker(absl::string_view text, absl::string_view marker) {
  for (size_t n = std::min(marker.size() - 1, text.size()); n > 0; --n) {
    if (absl::EndsWith(text, marker.substr(0, n))) return n;
  }
  return 0;
}

void DropLeadingSpace(std::string* text) {
  text->erase(0,
              text->size() - absl::StripLeadingAsciiWhitespace(*text).size());
}

// Returns the template's text that decides where the output begins, or nothing.
absl::string_view LastTemplateText(const MarkedText& prompt, bool continues) {
  const auto& runs = prompt.runs();
  size_t index = runs.size();
  if (continues && index > 0 && runs[index - 1].origin == Origin::kMessage) {
    --index;
  }
  if (index == 0 || runs[index - 1].origin != Origin::kTemplate) return "";
  const size_t begin = index > 1 ? runs[index - 2].end : 0;
  return absl::string_view(prompt.bytes())
      .substr(begin, runs[index - 1].end - begin);
}

}  // namespace

std::optional<uint32_t> TokenOf(const Tokenizer& tokenizer,
                                absl::string_view marker) {
  const auto ids = tokenizer.Encode(marker);
  const bool one =
      ids.ok() && ids->size() == 1 && tokenizer.TokenBytes((*ids)[0]) == marker;
  return one ? std::optional<uint32_t>((*ids)[0]) : std::nullopt;
}

std::optional<ReasoningMarkers> MarkersOf(const Tokenizer& tokenizer) {
  for (const ReasoningMarkers& markers : kFamilies) {
    if (absl::StrContains(tokenizer.chat_template(), markers.end)) {
      return markers;
    }
  }
  for (const ReasoningMarkers& markers : kFamilies) {
    if (TokenOf(tokenizer, markers.begin).has_value() &&
        TokenOf(tokenizer, markers.end).has_value()) {
      return markers;
    }
  }
  return std::nullopt;
}

ReasoningState StateBehind(const MarkedText& prompt,
                           const ReasoningMarkers& markers,
                           const std::optional<std::string>& continued) {
  const absl::string_view text =
      LastTemplateText(prompt, continued.has_value());
  const size_t begin = text.rfind(markers.begin);
  const size_t end = text.rfind(markers.end);
  ReasoningState state = ReasoningState::kUndecided;
  if (begin != absl::string_view::npos &&
      (end == absl::string_view::npos || end < begin)) {
    state = ReasoningState::kReasoningBegins;
  }
  if (!continued.has_value()) return state;
  ReasoningSplitter splitter({markers, state});
  splitter.Add(*continued);
  return splitter.state();
}

AnswerPiece ReasoningSplitter::Add(absl::string_view text) {
  added_ += text.size();
  held_.append(text.data(), text.size());
  AnswerPiece out;
  if (state_ == ReasoningState::kUndecided) {
    const absl::string_view seen = absl::StripLeadingAsciiWhitespace(held_);
    if (absl::StartsWith(seen, markers_.begin) ||
        absl::StartsWith(seen, markers_.end)) {
      state_ = ReasoningState::kReasoningBegins;
    } else if (absl::StartsWith(markers_.begin, seen) ||
               absl::StartsWith(markers_.end, seen)) {
      return out;
    } else {
      state_ = ReasoningState::kAnswer;
    }
  }
  if (state_ == ReasoningState::kReasoningBegins) {
    if (!SkipBegin()) return out;
    state_ = ReasoningState::kReasoning;
  }
  if (state_ == ReasoningState::kReasoning) {
    if (!TakeReasoning(&out)) return out;
    state_ = ReasoningState::kAnswerBegins;
  }
  if (state_ == ReasoningState::kAnswerBegins) {
    DropLeadingSpace(&held_);
    if (held_.empty()) return out;
    state_ = ReasoningState::kAnswer;
  }
  out.text = std::exchange(held_, "");
  return out;
}

bool ReasoningSplitter::SkipBegin() {
  DropLeadingSpace(&held_);
  while (absl::StartsWith(held_, markers_.begin)) {
    held_.erase(0, markers_.begin.size());
    DropLeadingSpace(&held_);
  }
  return !held_.empty() && !absl::StartsWith(markers_.begin, held_);
}

bool ReasoningSplitter::TakeReasoning(AnswerPiece* out) {
  const size_t found = held_.find(markers_.end.data(), 0, markers_.end.size());
  const absl::string_view held = held_;
  const absl::string_view before =
      found != std::string::npos
          ? held.substr(0, found)
          : held.substr(0, held.size() - PartialMarker(held, markers_.end));
  const absl::string_view told = absl::StripTrailingAsciiWhitespace(before);
  out->reasoning.assign(told.data(), told.size());
  const bool ended = found != std::string::npos;
  held_.erase(0, ended ? found + markers_.end.size() : told.size());
  if (ended) reasoning_end_ = added_ - held_.size();
  return ended;
}

AnswerPiece ReasoningSplitter::Finish() {
  const absl::string_view held = absl::StripTrailingAsciiWhitespace(held_);
  AnswerPiece out;
  if (state_ == ReasoningState::kUndecided) {
    out.text = std::exchange(held_, "");
  } else {
    out.reasoning.assign(held.data(), held.size());
  }
  held_.clear();
  return out;
}

}  // namespace ringfleet::coordinator
