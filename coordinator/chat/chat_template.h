// SPDX-License-Identifier: Apache-2.0
// Renders a conversation with the chat template of a model.
#ifndef RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_
#define RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace ringfleet::coordinator {

// Runs the Jinja template `source` over `messages`, a list of objects with
// "role" and "content". The template's variables are messages,
// add_generation_prompt, bos_token, eos_token, tools and documents. The last
// two are none. Members of the object `extra` are variables, too, and replace
// variables of equal name.
//
// Supports the part of Jinja that DeepSeek's templates use: if, for and set;
// namespace() and raise_exception(); expressions with slices, conditionals,
// tests, filters and string methods. Lines are trimmed by trim_blocks and
// lstrip_blocks, which chat templates expect. Objects keep the order of the
// caller's keys in tojson and in loops, as in Python.
//
// Thread-safe.
// Errors: INVALID_ARGUMENT: an unsupported construct, a type error,
// raise_exception(), or more work, nesting or output than the limits of
// jinja_value.h. The message names the template's line.
absl::StatusOr<std::string> RenderChatTemplate(
    const std::string& source, const nlohmann::ordered_json& messages,
    bool add_generation_prompt, const std::string& bos_token,
    const std::string& eos_token, const nlohmann::ordered_json& extra = {});

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_CHAT_CHAT_TEMPLATE_H_
