// SPDX-License-Identifier: Apache-2.0
// The border between a model's reasoning and its answer. The rendered prompt
// and the model's output decide where it is, not the model's name.
#ifndef RINGFLEET_COORDINATOR_CHAT_REASONING_H_
#define RINGFLEET_COORDINATOR_CHAT_REASONING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/tokenizer/marked_text.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator {

// The texts in front of and behind a reasoning.
struct ReasoningMarkers {
  absl::string_view begin, end;
};

// Returns the token that is all of a marker. Nothing: there is none.
std::optional<uint32_t> TokenOf(const Tokenizer& tokenizer,
                                absl::string_view marker);

// Returns the markers that a model uses: <think> and </think>, or [THINK] and
// [/THINK]. The template names them, else both are added tokens. Nothing: the
// model has none.
std::optional<ReasoningMarkers> MarkersOf(const Tokenizer& tokenizer);

// The place of an output's next character.
enum class ReasoningState {
  kUndecided,        // Only white space so far: a marker may follow.
  kReasoningBegins,  // Behind the first marker and white space.
  kReasoning,
  kAnswerBegins,  // Behind the second marker and white space.
  kAnswer,
};

// The way in which an output is divided.
struct Reasoning {
  ReasoningMarkers markers;
  ReasoningState state = ReasoningState::kUndecided;  // Where it begins.
};

// Returns the place behind a prompt.
//
// The template's last text, behind all messages, opens a reasoning if its last
// marker is the first of the two. `continued` is the content of a last message
// that the output continues, and nothing without one. Then the template's text
// in front of that message counts, and the message counts as output. Markers in
// other messages are text.
ReasoningState StateBehind(const MarkedText& prompt,
                           const ReasoningMarkers& markers,
                           const std::optional<std::string>& continued);

// Parts of one text, in its order: the reasoning comes first.
struct AnswerPiece {
  std::string reasoning, text;

  bool empty() const { return reasoning.empty() && text.empty(); }
};

// Divides an output. The result does not depend on how the output is cut into
// pieces. Reasoning ends with the first end marker; all that follows is answer.
// Without an end marker everything is reasoning. Dropped are begin markers that
// the output repeats at the beginning of an open reasoning, an end marker with
// which the output begins, and white space around the reasoning and in front of
// the answer (llama.cpp does so). Not thread-safe.
class ReasoningSplitter {
 public:
  explicit ReasoningSplitter(const Reasoning& reasoning)
      : markers_(reasoning.markers), state_(reasoning.state) {}

  // Returns what the next piece of output decides.
  AnswerPiece Add(absl::string_view text);
  // Ends the output: returns all that is held back.
  AnswerPiece Finish();

  ReasoningState state() const { return state_; }
  // Returns whether a reasoning is open.
  bool reasons() const {
    return state_ == ReasoningState::kReasoningBegins ||
           state_ == ReasoningState::kReasoning;
  }
  // Returns the bytes at the output's end that are neither told nor dropped.
  size_t held() const { return held_.size(); }
  // Returns the bytes of output up to the end of the reasoning, with its
  // marker. Nothing: no reasoning has ended.
  std::optional<size_t> reasoning_end() const { return reasoning_end_; }

 private:
  // Drops white space and begin markers in front of `held_`. Returns false
  // if more text must decide.
  bool SkipBegin();
  // Takes from `held_` what is reasoning. Returns false if more text must
  // decide.
  bool TakeReasoning(AnswerPiece* out);

  const ReasoningMarkers markers_;
  ReasoningState state_;
  std::string held_;
  size_t added_ = 0;  // Bytes of output.
  std::optional<size_t> reasoning_end_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_CHAT_REASONING_H_
