// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/answer_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/build_info.h"
#include "coordinator/http/json_text.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

// Returns the characters of a UTF-8 text.
size_t CountCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// A token that is a part of a character has no text of its own: OpenAI's
// completions print its bytes.
std::string CompletionName(absl::string_view bytes) {
  if (CheckUtf8(bytes).ok()) return std::string(bytes);
  std::string name = "bytes:";
  for (const char c : bytes) {
    absl::StrAppend(&name, "\\x",
                    absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
  }
  return name;
}

void AppendUsage(const AnswerUsage& usage, std::string* out) {
  absl::StrAppend(
      out, "{\"prompt_tokens\":", usage.prompt_tokens,
      ",\"completion_tokens\":", usage.completion_tokens,
      ",\"total_tokens\":", usage.prompt_tokens + usage.completion_tokens,
      ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens,
      "},\"completion_tokens_details\":{\"reasoning_tokens\":",
      usage.reasoning_tokens, "}}");
}

void AppendEnd(const AnswerEnd& end, std::string* out) {
  absl::StrAppend(out, ",\"finish_reason\":\"", end.finish_reason,
                  "\",\"stop_reason\":", end.stop_reason,
                  ",\"matched_stop\":", end.stop_reason);
}

}  // namespace

void LogprobList::Add(const DrawnToken& token, size_t offset, bool scored) {
  tokens_.push_back({token, offset, scored});
}

void LogprobList::AppendChatToken(uint32_t id, float logprob,
                                  std::string* out) const {
  const absl::string_view bytes = BytesOf(id);
  absl::StrAppend(out, "{\"token\":");
  AppendJsonString(bytes, out);
  absl::StrAppend(out, ",\"logprob\":");
  AppendJsonFloat(logprob, out);
  absl::StrAppend(out, ",\"bytes\":[");
  for (size_t i = 0; i < bytes.size(); ++i) {
    absl::StrAppend(out, i == 0 ? "" : ",",
                    static_cast<int>(static_cast<uint8_t>(bytes[i])));
  }
  out->push_back(']');
}

void LogprobList::AppendTopMap(const DrawnToken& token,
                               std::string* out) const {
  // Two ids may have one text: the first one stays.
  std::vector<std::string> names;
  const auto add = [&](uint32_t id, float logprob) {
    std::string name = CompletionName(BytesOf(id));
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    if (!names.empty()) out->push_back(',');
    AppendJsonString(name, out);
    out->push_back(':');
    AppendJsonFloat(logprob, out);
    names.push_back(std::move(name));
  };
  out->push_back('{');
  add(token.id, token.logprob);
  for (const DrawnToken::Likely& likely : token.top) {
    add(likely.id, likely.logprob);
  }
  out->push_back('}');
}

size_t LogprobList::EndOf(size_t count, size_t told) const {
  for (size_t i = count; i < tokens_.size(); ++i) {
    if (tokens_[i].offset > told) return tokens_[i].offset;
  }
  return kAll;
}

std::string LogprobList::Take(size_t told, absl::string_view text,
                              size_t most) {
  const auto last =
      tokens_.begin() + static_cast<ptrdiff_t>(std::min(most, tokens_.size()));
  const auto end =
      std::find_if(tokens_.begin(), last,
                   [told](const Token& token) { return token.offset >= told; });
  const auto begin = tokens_.begin();
  std::string out = "null";
  if (begin != end && chat_) {
    out = "{\"content\":[";
    for (auto token = begin; token != end; ++token) {
      if (token != begin) out += ',';
      AppendChatToken(token->drawn.id, token->drawn.logprob, &out);
      out += ",\"top_logprobs\":[";
      for (const DrawnToken::Likely& likely : token->drawn.top) {
        if (&likely != &token->drawn.top.front()) out += ',';
        AppendChatToken(likely.id, likely.logprob, &out);
        out += '}';
      }
      out += "]}";
    }
    out += "],\"refusal\":null}";
  } else if (begin != end) {
    std::string names, values, tops, offsets;
    for (auto token = begin; token != end; ++token) {
      if (token != begin) {
        for (std::string* list : {&names, &values, &tops, &offsets}) {
          *list += ',';
        }
      }
      AppendJsonString(CompletionName(BytesOf(token->drawn.id)), &names);
      if (token->scored) {
        AppendJsonFloat(token->drawn.logprob, &values);
        AppendTopMap(token->drawn, &tops);
      } else {
        values += "null";
        tops += "null";
      }
      const size_t into = std::min(
          token->offset - std::min(token->offset, told_bytes_), text.size());
      absl::StrAppend(&offsets,
                      told_characters_ + CountCharacters(text.substr(0, into)));
    }
    out = absl::StrCat("{\"tokens\":[", names, "],\"token_logprobs\":[", values,
                       "],\"top_logprobs\":[", tops, "],\"text_offset\":[",
                       offsets, "]}");
  }
  tokens_.erase(begin, end);
  told_bytes_ += text.size();
  told_characters_ += CountCharacters(text);
  return out;
}

std::string PromptLogprobsJson(const std::vector<uint32_t>& ids,
                               const v1::ScoreResult& score,
                               const Tokenizer* tokenizer) {
  std::string out = "[null";
  const auto add = [&](uint32_t id, float logprob, int rank, bool first) {
    absl::StrAppend(&out, first ? "" : ",", "\"", id, "\":{\"logprob\":");
    AppendJsonFloat(logprob, &out);
    absl::StrAppend(&out, ",\"rank\":");
    if (rank > 0) {
      absl::StrAppend(&out, rank);
    } else {
      out += "null";
    }
    out += ",\"decoded_token\":";
    AppendJsonString(tokenizer == nullptr ? "" : tokenizer->TokenBytes(id),
                     &out);
    out += '}';
  };
  for (int i = 0; i < score.logprobs_size(); ++i) {
    const v1::TopLogprobs* const top =
        i < score.prompt_top_size() ? &score.prompt_top(i) : nullptr;
    const uint32_t id = ids[i + 1];
    int rank = 0;
    for (int j = 0; top != nullptr && j < top->ids_size(); ++j) {
      if (top->ids(j) == id) rank = j + 1;
    }
    out += ",{";
    add(id, score.logprobs(i), rank, /*first=*/true);
    for (int j = 0; top != nullptr && j < top->ids_size(); ++j) {
      if (top->ids(j) != id) {
        add(top->ids(j), top->logprobs(j), j + 1, /*first=*/false);
      }
    }
    out += '}';
  }
  out += ']';
  return out;
}

AnswerText::AnswerText(bool chat, bool usage_chunk, std::string id,
                       int64_t created, absl::string_view model)
    : chat_(chat), usage_chunk_(usage_chunk) {
  const auto head = [&](absl::string_view object) {
    std::string out = absl::StrCat("{\"id\":\"", id, "\",\"object\":\"", object,
                                   "\",\"created\":", created, ",\"model\":");
    AppendJsonString(model, &out);
    absl::StrAppend(&out, ",\"system_fingerprint\":\"b",
                    cluster::GetBuildInfo().version(), "\",\"choices\":[");
    return out;
  };
  chunk_head_ = absl::StrCat(
      "data: ", head(chat ? "chat.completion.chunk" : "text_completion"));
  whole_head_ = head(chat ? "chat.completion" : "text_completion");
}

std::string AnswerText::BeginEvent(size_t index) const {
  return absl::StrCat(chunk_head_, "{\"index\":", index,
                      chat_ ? ",\"delta\":" : ",\"text\":");
}

std::string AnswerText::FinishEvent(std::string event,
                                    absl::string_view logprobs,
                                    const AnswerEnd* end,
                                    const AnswerUsage* usage) const {
  absl::StrAppend(&event, ",\"logprobs\":", logprobs);
  if (end == nullptr) {
    event += ",\"finish_reason\":null";
  } else {
    AppendEnd(*end, &event);
  }
  event += "}]";
  if (usage != nullptr) {
    event += ",\"usage\":";
    AppendUsage(*usage, &event);
  } else if (usage_chunk_) {
    event += ",\"usage\":null";
  }
  event += "}\n\n";
  return event;
}

std::string AnswerText::RoleEvent(size_t index,
                                  const AnswerUsage* usage) const {
  return FinishEvent(absl::StrCat(BeginEvent(index),
                                  "{\"role\":\"assistant\",\"content\":null}"),
                     "null", nullptr, usage);
}

std::string AnswerText::TextEvent(size_t index, bool reasoning,
                                  absl::string_view text,
                                  absl::string_view logprobs,
                                  const AnswerUsage* usage) const {
  std::string event = BeginEvent(index);
  if (chat_) event += reasoning ? "{\"reasoning_content\":" : "{\"content\":";
  AppendJsonString(text, &event);
  if (chat_) event += '}';
  return FinishEvent(std::move(event), logprobs, nullptr, usage);
}

std::string AnswerText::EndEvent(size_t index, const AnswerEnd& end,
                                 absl::string_view logprobs,
                                 const AnswerUsage* usage) const {
  return FinishEvent(absl::StrCat(BeginEvent(index), chat_ ? "{}" : "\"\""),
                     logprobs, &end, usage);
}

std::string AnswerText::UsageEvent(const AnswerUsage& usage) const {
  std::string event = absl::StrCat(chunk_head_, "],\"usage\":");
  AppendUsage(usage, &event);
  event += "}\n\n";
  return event;
}

std::string AnswerText::Whole(const std::vector<Choice>& choices,
                              const AnswerUsage& usage) const {
  std::string body = whole_head_;
  for (size_t i = 0; i < choices.size(); ++i) {
    absl::StrAppend(&body, i == 0 ? "" : ",", "{\"index\":", i,
                    chat_ ? ",\"message\":{\"role\":\"assistant\",\"content\":"
                          : ",\"text\":");
    const AnswerPiece& told = choices[i].told;
    if (told.text.empty() && !told.reasoning.empty()) {
      body += "null";
    } else {
      AppendJsonString(told.text, &body);
    }
    if (!told.reasoning.empty()) {
      body += ",\"reasoning_content\":";
      AppendJsonString(told.reasoning, &body);
    }
    if (chat_) body += ",\"refusal\":null}";
    absl::StrAppend(&body, ",\"logprobs\":", choices[i].logprobs);
    AppendEnd(choices[i].end, &body);
    if (!chat_ && !choices[i].prompt_logprobs.empty()) {
      absl::StrAppend(&body,
                      ",\"prompt_logprobs\":", choices[i].prompt_logprobs);
    }
    body += '}';
  }
  body += "],\"usage\":";
  AppendUsage(usage, &body);
  // All choices of a chat have one prompt.
  if (chat_ && !choices[0].prompt_logprobs.empty()) {
    absl::StrAppend(&body, ",\"prompt_logprobs\":", choices[0].prompt_logprobs);
  }
  body += '}';
  return body;
}

}  // namespace ringfleet::coordinator
