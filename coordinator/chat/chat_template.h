// SPDX-License-Identifier: Apache-2.0
// Renders a conversation by the chat template of a model.
#ifndef RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_
#define RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace ringfleet::coordinator {

// Runs the Jinja template `source` over `messages`, a list of objects with
// "role" and "content". The template sees messages, add_generation_prompt,
// bos_token, eos_token, tools and documents (none), and the members of the
// object `extra`, which override these.
//
// Supports the part of Jinja that DeepSeek's templates use: if, for and set;
// namespace() and raise_exception(); expressions with slices, conditionals,
// tests, filters and string methods. Lines are trimmed as chat templates expect
// (trim_blocks and lstrip_blocks). Objects are in the order of their keys.
//
// INVALID_ARGUMENT, with the template's line: an unsupported construct, a type
// error, raise_exception(), or more work, nesting or output than the limits of
// jinja_value.h. Thread-safe.
absl::StatusOr<std::string> RenderChatTemplate(
    const std::string& source, const nlohmann::json& messages,
    bool add_generation_prompt, const std::string& bos_token,
    const std::string& eos_token, const nlohmann::json& extra = {});

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_
