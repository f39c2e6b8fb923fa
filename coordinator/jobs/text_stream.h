// SPDX-License-Identifier: Apache-2.0
// The text of a job's tokens as they come, up to a stop string, with its
// reasoning apart.
#ifndef RINGFLEET_COORDINATOR_JOBS_TEXT_STREAM_H_
#define RINGFLEET_COORDINATOR_JOBS_TEXT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/chat/reasoning.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator {

inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 256;

// The way from a job's tokens to its text.
struct TextRules {
  // Null: the text stays empty. Outlives the rules.
  const Tokenizer* tokenizer = nullptr;
  // The text ends where one of these strings would begin. UTF-8.
  std::vector<std::string> stops;
  bool keeps_stop = false;  // The text ends behind the stop string instead.
  // Nothing: all text is answer. Stop strings count in a reasoning, too, and in
  // its markers, as vLLM does.
  std::optional<Reasoning> reasoning;
};

// Errors: INVALID_ARGUMENT: more than kMaxStops strings, or one that is empty
// or longer than kMaxStopBytes.
absl::Status CheckStops(const std::vector<std::string>& stops);

// Turns tokens into whole characters. A stop token is text like another unless
// it is a special one. Text that may be the beginning of a stop string is held
// back until more tokens decide. Not thread-safe.
class TextStream {
 public:
  // Requires CheckStops(rules.stops).
  explicit TextStream(TextRules rules);

  // Returns the text to append. Call neither function after a stop.
  AnswerPiece Add(uint32_t id);
  // Ends the text: returns all that is held back.
  AnswerPiece Finish();

  // Returns the stop string that has ended the text.
  const std::optional<std::string>& stop() const { return stop_; }
  // Returns the bytes of text of all tokens so far, held back or not.
  size_t decoded_bytes() const { return decoded_bytes_; }
  // Returns the bytes of text that were told, or dropped around a reasoning.
  size_t told_bytes() const {
    return told_bytes_ - (splitter_.has_value() ? splitter_->held() : 0);
  }
  // Returns the tokens that belong to the reasoning so far, with its markers.
  size_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  // Returns what of `held_` can be told.
  std::string Release();
  // Divides text that can be told. `last`: no more follows.
  AnswerPiece Divide(std::string text, bool last);
  void CountReasoning();

  const TextRules rules_;
  std::optional<StreamDecoder> decoder_;
  std::string held_;
  size_t decoded_bytes_ = 0;
  std::optional<std::string> stop_;
  std::optional<ReasoningSplitter> splitter_;
  size_t told_bytes_ = 0;  // Without regard to `splitter_`.
  // Places in the text of tokens of which it is open where they belong.
  std::vector<size_t> undecided_;
  size_t reasoning_tokens_ = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_JOBS_TEXT_STREAM_H_
