// SPDX-License-Identifier: Apache-2.0
// The bodies and events of /v1/completions and /v1/chat/completions.
#ifndef RINGFLEET_COORDINATOR_HTTP_ANSWER_TEXT_H_
#define RINGFLEET_COORDINATOR_HTTP_ANSWER_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/chat/reasoning.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator {

struct AnswerUsage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t reasoning_tokens = 0;  // A part of completion_tokens.
  uint64_t cached_tokens = 0;     // Those of the prompts.
};

// The end of a choice.
struct AnswerEnd {
  absl::string_view finish_reason;   // "stop" or "length".
  std::string stop_reason = "null";  // JSON: a stop string, a stop id or null.
};

// Log probabilities of tokens in the order of their text. They leave together
// with it: a token is taken once the text in front of it is. Not thread-safe.
class LogprobList {
 public:
  // Null: tokens have no bytes. The tokenizer must outlive this object.
  LogprobList(bool chat, const Tokenizer* tokenizer)
      : chat_(chat), tokenizer_(tokenizer) {}

  // Adds a token. `offset` is the number of bytes of text in front of it.
  // Without `scored` it has no probability, as the first token of a prompt.
  void Add(const DrawnToken& token, size_t offset, bool scored = true);

  // Returns the JSON of tokens that begin before `told`, the text's bytes so
  // far, and forgets them; "null" if there are none. `text` is the text told
  // since the last call. At most `most` tokens; the others stay.
  std::string Take(size_t told, absl::string_view text, size_t most = kAll);
  // Returns whether Take has tokens.
  bool Waits(size_t told) const {
    return !tokens_.empty() && tokens_.front().offset < told;
  }
  size_t size() const { return tokens_.size(); }

  // Returns where the text of the next `count` tokens ends, behind `told`; kAll
  // if there are no more tokens.
  size_t EndOf(size_t count, size_t told) const;

  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

 private:
  struct Token {
    DrawnToken drawn;
    size_t offset;
    bool scored;
  };

  absl::string_view BytesOf(uint32_t id) const {
    return tokenizer_ == nullptr ? "" : tokenizer_->TokenBytes(id);
  }
  // Appends {"token","logprob","bytes"} without the closing brace.
  void AppendChatToken(uint32_t id, float logprob, std::string* out) const;
  // Appends {"TOKEN":LOGPROB,...}: the likeliest tokens and the drawn one.
  void AppendTopMap(const DrawnToken& token, std::string* out) const;

  const bool chat_;
  const Tokenizer* const tokenizer_;
  std::deque<Token> tokens_;
  size_t told_bytes_ = 0, told_characters_ = 0;  // Before Take's text.
};

// Returns the JSON of a prompt's probabilities, as vLLM shapes it: null for the
// first token, then for each an object of ids with "logprob", "rank" and
// "decoded_token". A token beyond its likeliest ones has the rank null.
std::string PromptLogprobsJson(const std::vector<uint32_t>& ids,
                               const v1::ScoreResult& score,
                               const Tokenizer* tokenizer);

// Immutable: texts of one answer, which share id, model and time.
class AnswerText {
 public:
  AnswerText(bool chat, bool usage_chunk, std::string id, int64_t created,
             absl::string_view model);

  // Events of a stream: "data: {...}\n\n". `usage` is that of the stream's end,
  // and of each chunk where the client wants it. `logprobs` is JSON.
  std::string RoleEvent(size_t index, const AnswerUsage* usage) const;
  // `reasoning`: the text is that of the reasoning, in a chat.
  std::string TextEvent(size_t index, bool reasoning, absl::string_view text,
                        absl::string_view logprobs,
                        const AnswerUsage* usage) const;
  std::string EndEvent(size_t index, const AnswerEnd& end,
                       absl::string_view logprobs,
                       const AnswerUsage* usage) const;
  std::string UsageEvent(const AnswerUsage& usage) const;

  struct Choice {
    AnswerPiece told;
    std::string logprobs;  // JSON.
    AnswerEnd end;
    std::string prompt_logprobs;  // JSON; empty: not asked for.
  };
  // Returns the body of an answer that is no stream.
  std::string Whole(const std::vector<Choice>& choices,
                    const AnswerUsage& usage) const;

 private:
  // Returns an event up to its first choice's value of `delta` or `text`.
  std::string BeginEvent(size_t index) const;
  std::string FinishEvent(std::string event, absl::string_view logprobs,
                          const AnswerEnd* end, const AnswerUsage* usage) const;

  const bool chat_;
  const bool usage_chunk_;
  std::string chunk_head_, whole_head_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_ANSWER_TEXT_H_
