// SPDX-License-Identifier: Apache-2.0
// The messages of a chat as a prompt.
#ifndef RINGFLEET_COORDINATOR_HTTP_CHAT_PROMPT_H_
#define RINGFLEET_COORDINATOR_HTTP_CHAT_PROMPT_H_

#include <nlohmann/json.hpp>
#include <optional>

#include "coordinator/chat/reasoning.h"
#include "coordinator/http/request_fields.h"
#include "coordinator/tokenizer/marked_text.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator {

struct ChatPrompt {
  MarkedText text;
  // Nothing: the model has no markers of reasoning.
  std::optional<Reasoning> reasoning;
};

// Renders `messages` of a request with the model's chat template. Reads also
// add_generation_prompt, continue_final_message, chat_template_kwargs,
// reasoning_effort, thinking and enable_thinking, which templates may know as
// variables. Content that is a list of text parts becomes one string; the role
// "developer" becomes "system". The reasoning of a message may stand in
// `reasoning_content` or `reasoning`; templates get the former. Problems go to
// `fields`; then the result is empty.
ChatPrompt RenderChat(const Tokenizer& tokenizer, RequestFields* fields);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_CHAT_PROMPT_H_
