// SPDX-License-Identifier: Apache-2.0
// Renders a conversation with the chat template of a model.
#ifndef RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_
#define RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "coordinator/tokenizer/marked_text.h"

namespace ringfleet::coordinator {

// The input of a template from a request. Objects keep their keys' order.
struct Conversation {
  // A list of objects with "role" and "content".
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // Null: none.
  nlohmann::ordered_json tools, documents;
  // An object of more variables, such as "thinking" or "enable_thinking", or
  // null. They replace the other variables of equal names.
  nlohmann::ordered_json variables;
  // The prompt ends with the beginning of an answer.
  bool add_generation_prompt = false;
  // The prompt ends with the content of the last message, for the model to
  // continue it. Excludes add_generation_prompt.
  bool continue_final_message = false;
};

// A parsed template. Any thread may call Render.
//
// A template renders as under Jinja's ImmutableSandboxedEnvironment with
// trim_blocks, lstrip_blocks and the loop controls, which chat templates expect
// from transformers, with tojson as plain JSON, from_json, raise_exception and
// strftime_now. Methods that change a list are allowed, as published templates
// use them. Statements that load other templates are not.
class ChatTemplate {
 public:
  // Parses `source`. `bos_token` and `eos_token` are the texts of the
  // tokenizer's tokens, or empty for none.
  // Errors: INVALID_ARGUMENT: malformed, or longer or deeper than the limits of
  // coordinator/jinja/context.h. The message names the template's line.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(
      absl::string_view source, const std::string& bos_token,
      const std::string& eos_token);
  ~ChatTemplate();

  // Returns the prompt. `now` is the time that strftime_now shows.
  //
  // Bytes of the template's source and of the two tokens have the origin
  // kTemplate, as does the role of a message if it is one of system, developer,
  // user, assistant, tool and function. Bytes of all other values of the
  // conversation have the origin kMessage, through every operation.
  //
  // Errors: INVALID_ARGUMENT: a value of the conversation has a wrong type, the
  // template raises an exception or fails, a limit of
  // coordinator/jinja/context.h is exceeded, or the last message is not in the
  // prompt that should continue it.
  absl::StatusOr<MarkedText> Render(const Conversation& conversation,
                                    absl::CivilSecond now) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::unique_ptr<const Parsed> parsed);

  const std::unique_ptr<const Parsed> parsed_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_
