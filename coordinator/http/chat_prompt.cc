// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/chat_prompt.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/chat/chat_template.h"

namespace ringfleet::coordinator {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxMessages = 10'000;
constexpr absl::string_view kRoles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};

// Returns the text of a content that is a string or a list of text parts.
// Nothing: `error` says why.
std::optional<std::string> TextOfContent(const Json& content,
                                         const std::string& path,
                                         ApiError* error) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    *error = BadField(path, absl::StrCat(content.type_name(),
                                         ", want a string or a list of parts"));
    return std::nullopt;
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string at = absl::StrCat(path, "[", i, "]");
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    if (!part.is_object() || !part.contains("type")) {
      *error = BadField(at, "want a part {\"type\": \"text\", \"text\": ...}");
      return std::nullopt;
    }
    if (part["type"] != "text") {
      *error = BadField(absl::StrCat(at, ".type"),
                        absl::StrCat(part["type"].dump().substr(0, 40),
                                     " is not supported, want \"text\""));
      return std::nullopt;
    }
    const auto it = part.find("text");
    if (it == part.end() || !it->is_string()) {
      *error = BadField(absl::StrCat(at, ".text"), "want a string");
      return std::nullopt;
    }
    text += it->get<std::string>();
  }
  return text;
}

std::optional<ApiError> ReadMessage(const Json& message,
                                    const std::string& path, Json* out) {
  if (!message.is_object()) {
    return BadField(path, absl::StrCat(message.type_name(),
                                       ", want an object "
                                       "with a role"));
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() ||
      std::find(std::begin(kRoles), std::end(kRoles),
                role->get_ref<const std::string&>()) == std::end(kRoles)) {
    return BadField(absl::StrCat(path, ".role"),
                    "want system, developer, user, assistant, tool or "
                    "function");
  }
  // Some clients write all fields of a message. Templates ask which are there.
  *out = Json::object();
  for (const auto& [name, value] : message.items()) {
    const bool calls_nothing =
        name == "tool_calls" && value.is_array() && value.empty();
    if (!value.is_null() && !calls_nothing) (*out)[name] = value;
  }
  // Templates know the older names.
  if (*role == "developer") (*out)["role"] = "system";
  if (*role == "function") (*out)["role"] = "tool";
  const auto calls = out->find("tool_calls");
  if (calls != out->end() && (*role != "assistant" || !calls->is_array())) {
    return BadField(absl::StrCat(path, ".tool_calls"),
                    "want a list, in a message of the assistant");
  }
  for (const char* const name : {"reasoning_content", "reasoning"}) {
    const auto reasoning = message.find(name);
    if (reasoning == message.end() || reasoning->is_null()) continue;
    if (!reasoning->is_string()) {
      return BadField(absl::StrCat(path, ".", name), "want a string");
    }
    (*out)["reasoning_content"] = *reasoning;
    break;
  }
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (*role == "assistant") {
      (*out)["content"] = nullptr;
      return std::nullopt;
    }
    return BadField(absl::StrCat(path, ".content"),
                    "missing, want a string or a list of parts");
  }
  ApiError error;
  std::optional<std::string> text =
      TextOfContent(*content, absl::StrCat(path, ".content"), &error);
  if (!text.has_value()) return error;
  (*out)["content"] = *std::move(text);
  return std::nullopt;
}

std::optional<Json> ReadMessages(RequestFields* fields) {
  const Json* const messages = fields->Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMaxMessages) {
    fields->FailField(
        "messages",
        absl::StrCat("want a list of 1 to ", kMaxMessages, " messages"),
        messages == nullptr
            ? kMissingParameter
            : (messages->is_array() ? kInvalidValue : kInvalidType));
    return std::nullopt;
  }
  Json out = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    Json message;
    if (auto error = ReadMessage((*messages)[i],
                                 absl::StrCat("messages[", i, "]"), &message);
        error.has_value()) {
      fields->Fail(*std::move(error));
      return std::nullopt;
    }
    out.push_back(std::move(message));
  }
  return out;
}

// Returns the variables of a template that a request sets.
Json ReadTemplateVariables(RequestFields* fields) {
  Json variables = Json::object();
  if (const auto effort = fields->Text("reasoning_effort")) {
    variables["reasoning_effort"] = *effort;
  }
  for (const char* const name : {"thinking", "enable_thinking"}) {
    if (fields->Find(name) != nullptr) {
      variables[name] = fields->Flag(name, false);
    }
  }
  const Json* const given = fields->Find("chat_template_kwargs");
  if (given == nullptr) return variables;
  if (!given->is_object()) {
    fields->FailField("chat_template_kwargs", "want an object");
    return variables;
  }
  for (const auto& [name, value] : given->items()) {
    if (name == "messages" || name == "tools" || name == "documents") {
      fields->FailField("chat_template_kwargs",
                        absl::StrCat("sets ", name, ", want other variables"));
    }
    variables[name] = value;
  }
  return variables;
}

}  // namespace

ChatPrompt RenderChat(const Tokenizer& tokenizer, RequestFields* fields) {
  if (tokenizer.chat_template().empty()) {
    fields->FailField("messages",
                      "the model has no chat template, want /v1/completions");
    return {};
  }
  std::optional<Json> messages = ReadMessages(fields);
  const bool continues = fields->Flag("continue_final_message", false);
  const bool prompts = fields->Flag("add_generation_prompt", !continues);
  if (fields->error().has_value()) return {};
  if (continues && prompts) {
    fields->FailField("continue_final_message",
                      "excludes add_generation_prompt, want one of them");
    return {};
  }
  std::optional<std::string> continued;
  if (continues) {
    const Json& content = messages->back()["content"];
    if (!content.is_string()) {
      fields->FailField("continue_final_message",
                        "the last message has no text, want one to continue");
      return {};
    }
    continued = content.get<std::string>();
  }
  Conversation conversation;
  conversation.messages = *std::move(messages);
  conversation.variables = ReadTemplateVariables(fields);
  conversation.add_generation_prompt = prompts;
  conversation.continue_final_message = continues;
  if (fields->error().has_value()) return {};
  const auto parsed = ChatTemplate::Parse(
      tokenizer.chat_template(), tokenizer.bos_token(), tokenizer.eos_token());
  if (!parsed.ok()) {
    fields->Fail(ErrorOf(parsed.status()));
    return {};
  }
  absl::StatusOr<MarkedText> text = (*parsed)->Render(
      conversation, absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone()));
  if (!text.ok()) {
    fields->FailField("messages", std::string(text.status().message()));
    return {};
  }
  ChatPrompt prompt;
  if (const auto markers = MarkersOf(tokenizer)) {
    prompt.reasoning = {*markers, StateBehind(*text, *markers, continued)};
  }
  prompt.text = *std::move(text);
  return prompt;
}

}  // namespace ringfleet::coordinator
