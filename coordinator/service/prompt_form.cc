// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/prompt_form.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/http/chat_prompt.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/request_fields.h"

namespace ringfleet::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// Returns the conversation as a body of /v1/chat/completions has it.
absl::StatusOr<Json> ChatBodyOf(const v1::Conversation& conversation) {
  Json body = Json::object();
  Json& messages = body["messages"] = Json::array();
  for (const v1::Conversation::Message& message : conversation.messages()) {
    Json& out = messages.emplace_back(Json::object());
    out["role"] = message.role();
    out["content"] = message.content();
    if (!message.reasoning().empty()) {
      out["reasoning_content"] = message.reasoning();
    }
  }
  body["continue_final_message"] = conversation.continue_final_message();
  if (conversation.has_add_generation_prompt()) {
    body["add_generation_prompt"] = conversation.add_generation_prompt();
  }
  if (!conversation.template_kwargs().empty()) {
    absl::StatusOr<Json> kwargs = ParseJsonBody(conversation.template_kwargs());
    RF_RETURN_IF_ERROR(Annotate(kwargs.status(), "template_kwargs"));
    body["chat_template_kwargs"] = *std::move(kwargs);
  }
  return body;
}

}  // namespace

absl::StatusOr<PromptForm> ReadPromptForm(const ServedModel& model,
                                          const v1::Prompt& prompt,
                                          uint64_t most) {
  PromptForm form;
  if (!prompt.has_conversation()) {
    RF_ASSIGN_OR_RETURN(form.ids, model.PromptIds(prompt, most));
    return form;
  }
  RF_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, model.tokenizer());
  RF_ASSIGN_OR_RETURN(const Json body, ChatBodyOf(prompt.conversation()));
  RequestFields fields(body);
  const ChatPrompt chat = RenderChat(*tokenizer, &fields);
  if (fields.error().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("conversation: ", fields.error()->message));
  }
  form.reasoning = chat.reasoning;
  RF_RETURN_IF_ERROR(model.CheckTextLength(chat.text.bytes(), most));
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                      tokenizer->Encode(chat.text));
  v1::Prompt encoded;
  encoded.mutable_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  RF_ASSIGN_OR_RETURN(form.ids, model.PromptIds(encoded));
  return form;
}

}  // namespace ringfleet::coordinator
