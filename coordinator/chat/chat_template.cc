// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/chat_template.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/chat/jinja_evaluator.h"
#include "coordinator/chat/jinja_parser.h"

namespace ringfleet::coordinator {

absl::StatusOr<std::string> RenderChatTemplate(
    const std::string& source, const nlohmann::ordered_json& messages,
    bool add_generation_prompt, const std::string& bos_token,
    const std::string& eos_token, const nlohmann::ordered_json& extra) {
  if (!messages.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "messages: a JSON ", messages.type_name(), ", want an array"));
  }
  if (!extra.is_null() && !extra.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "template variables: a JSON ", extra.type_name(), ", want an object"));
  }
  RF_ASSIGN_OR_RETURN(const std::vector<jinja::Stmt> body,
                      jinja::ParseTemplate(source));
  absl::flat_hash_map<std::string, jinja::Value> variables;
  const absl::StatusOr<jinja::Value> list = jinja::Value::FromJson(messages);
  if (!list.ok()) return Annotate(list.status(), "messages");
  variables["messages"] = *list;
  variables["add_generation_prompt"] = jinja::Value(add_generation_prompt);
  variables["bos_token"] = jinja::Value::String(bos_token);
  variables["eos_token"] = jinja::Value::String(eos_token);
  variables["tools"] = jinja::Value();
  variables["documents"] = jinja::Value();
  for (const auto& item : extra.items()) {
    absl::StatusOr<jinja::Value> value = jinja::Value::FromJson(item.value());
    if (!value.ok()) return Annotate(value.status(), item.key());
    variables[item.key()] = *std::move(value);
  }
  return jinja::Render(body, std::move(variables));
}

}  // namespace ringfleet::coordinator
