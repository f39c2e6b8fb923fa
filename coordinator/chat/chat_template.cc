// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/chat_template.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/evaluator.h"
#include "coordinator/jinja/functions.h"
#include "coordinator/jinja/json.h"
#include "coordinator/jinja/parser.h"

namespace ringfleet::coordinator {
namespace {

using Variables = absl::flat_hash_map<std::string, jinja::Value>;

absl::Status WrongKind(absl::string_view name,
                       const nlohmann::ordered_json& json,
                       absl::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": a JSON ", json.type_name(), ", want ", want));
}

absl::Status SetVariable(const std::string& name,
                         const nlohmann::ordered_json& json,
                         jinja::Context* context, Variables* variables) {
  absl::StatusOr<jinja::Value> value = jinja::FromJson(json, context);
  if (!value.ok()) return Annotate(value.status(), name);
  (*variables)[name] = *std::move(value);
  return absl::OkStatus();
}

// Templates build tokens from roles, as in "<|" + role + "|>". A role that is
// one of these words holds no text of a user.
void TrustRoles(const jinja::Value& messages) {
  for (const jinja::Value& message : messages.AsList()->items) {
    jinja::Dict* fields = message.AsDict();
    const jinja::Value* role = fields ? fields->Find("role") : nullptr;
    if (role == nullptr || role->AsString() == nullptr) continue;
    for (const char* word :
         {"system", "developer", "user", "assistant", "tool", "function"}) {
      if (*role->AsString() != word) continue;
      fields->Set("role", jinja::Value::Literal(word));
      break;
    }
  }
}

// The text of the last message, or of its last part with a text.
absl::StatusOr<std::string> FinalContent(
    const nlohmann::ordered_json& messages) {
  if (!messages.empty() && messages.back().is_object()) {
    const auto content = messages.back().find("content");
    if (content != messages.back().end() && content->is_string()) {
      return content->get<std::string>();
    }
    if (content != messages.back().end() && content->is_array()) {
      for (auto part = content->rbegin(); part != content->rend(); ++part) {
        const auto text = part->is_object() ? part->find("text") : part->end();
        if (part->is_object() && text != part->end() && text->is_string()) {
          return text->get<std::string>();
        }
      }
    }
  }
  return absl::InvalidArgumentError(
      "continue_final_message: the last message has no text");
}

// Cuts the prompt behind the last place where a message wrote `content`. White
// space around the content counts only if the template kept it.
absl::StatusOr<MarkedText> CutBehind(const MarkedText& prompt,
                                     const std::string& content) {
  const absl::string_view whole = content;
  const absl::string_view from_text = whole.substr(jinja::LeadingSpace(whole));
  const absl::string_view text =
      from_text.substr(0, from_text.size() - jinja::TrailingSpace(from_text));
  if (text.empty()) {
    return absl::InvalidArgumentError(
        "continue_final_message: the last message has no text");
  }
  const absl::string_view bytes = prompt.bytes();
  size_t at = bytes.rfind(text);
  while (at != absl::string_view::npos &&
         !prompt.IsAllOf(Origin::kMessage, at, at + text.size())) {
    at = at == 0 ? absl::string_view::npos : bytes.rfind(text, at - 1);
  }
  if (at == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        "continue_final_message: the template does not print the last message");
  }
  const bool kept = bytes.substr(at, from_text.size()) == from_text;
  return prompt.Part(0, at + (kept ? from_text : text).size());
}

}  // namespace

struct ChatTemplate::Parsed {
  std::vector<jinja::Stmt> body;
  std::string bos_token, eos_token;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Parsed> parsed)
    : parsed_(std::move(parsed)) {}

ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Parse(
    absl::string_view source, const std::string& bos_token,
    const std::string& eos_token) {
  auto parsed = std::make_unique<Parsed>();
  RF_ASSIGN_OR_RETURN(parsed->body, jinja::ParseTemplate(source));
  parsed->bos_token = bos_token;
  parsed->eos_token = eos_token;
  return std::unique_ptr<const ChatTemplate>(
      new ChatTemplate(std::move(parsed)));
}

absl::StatusOr<MarkedText> ChatTemplate::Render(
    const Conversation& conversation, absl::CivilSecond now) const {
  if (!conversation.messages.is_array()) {
    return WrongKind("messages", conversation.messages, "an array");
  }
  const nlohmann::ordered_json& more = conversation.variables;
  if (!more.is_null() && !more.is_object()) {
    return WrongKind("template variables", more, "an object");
  }
  if (conversation.add_generation_prompt &&
      conversation.continue_final_message) {
    return absl::InvalidArgumentError(
        "continue_final_message and add_generation_prompt exclude each other");
  }
  jinja::Context context(now);
  Variables variables = jinja::Functions(&context);
  RF_RETURN_IF_ERROR(
      SetVariable("messages", conversation.messages, &context, &variables));
  TrustRoles(variables["messages"]);
  RF_RETURN_IF_ERROR(
      SetVariable("tools", conversation.tools, &context, &variables));
  RF_RETURN_IF_ERROR(
      SetVariable("documents", conversation.documents, &context, &variables));
  variables["add_generation_prompt"] =
      jinja::Value::Boolean(conversation.add_generation_prompt);
  for (const auto& [name, token] :
       {std::make_pair("bos_token", &parsed_->bos_token),
        std::make_pair("eos_token", &parsed_->eos_token)}) {
    if (!token->empty()) variables[name] = jinja::Value::Literal(*token);
  }
  for (const auto& item : more.items()) {
    RF_RETURN_IF_ERROR(
        SetVariable(item.key(), item.value(), &context, &variables));
  }
  RF_ASSIGN_OR_RETURN(
      MarkedText prompt,
      jinja::Render(parsed_->body, std::move(variables), &context));
  if (!conversation.continue_final_message) return prompt;
  RF_ASSIGN_OR_RETURN(const std::string content,
                      FinalContent(conversation.messages));
  return CutBehind(prompt, content);
}

}  // namespace ringfleet::coordinator
