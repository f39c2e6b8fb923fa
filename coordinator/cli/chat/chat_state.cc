// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/chat_state.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/prompt_options.h"

namespace ringfleet::coordinator::cli {
namespace {

using google::protobuf::FieldDescriptor;

constexpr const char* kSettings[] = {"temperature",
                                     "top_k",
                                     "top_p",
                                     "min_p",
                                     "max_tokens",
                                     "min_tokens",
                                     "seed",
                                     "stop",
                                     "repetition_penalty",
                                     "presence_penalty",
                                     "frequency_penalty",
                                     "ignore_eos"};

constexpr char kChatHelp[] =
    R"(/help              this text
/clear             forget the conversation, but for the system message
/system TEXT       set the system message; without TEXT there is none
/read FILE         put a text file in front of the next message
/set               show the settings
/set NAME VALUE    temperature, top_p, top_k, max_tokens, seed, stop and others;
                   another NAME is a variable of the chat template: thinking
/set NAME          back to the default
/save FILE         write the conversation as JSON
/quit              leave, as Ctrl-D does
A backslash at the end of a line goes on in the next one, and """ begins and
ends a text of many lines. Ctrl-C stops an answer.
)";

// Returns the descriptor of a setting, or null.
const FieldDescriptor* FindSetting(absl::string_view name) {
  const bool known = std::find(std::begin(kSettings), std::end(kSettings),
                               name) != std::end(kSettings);
  return known ? v1::GenerateRequest::descriptor()->FindFieldByName(
                     std::string(name))
               : nullptr;
}

absl::Status WrongValue(absl::string_view name, absl::string_view value,
                        const char* want) {
  return absl::InvalidArgumentError(
      absl::StrCat("/set ", name, ": '", value, "', want ", want));
}

// Splits a text at its first white space.
std::pair<absl::string_view, absl::string_view> FirstWord(
    absl::string_view text) {
  const auto end = std::find_if(text.begin(), text.end(), absl::ascii_isspace);
  const auto size = static_cast<size_t>(end - text.begin());
  return {text.substr(0, size), absl::StripAsciiWhitespace(text.substr(size))};
}

// Sets a scalar field, or the only string of a list.
absl::Status SetField(const FieldDescriptor& field, absl::string_view value,
                      v1::GenerateRequest* request) {
  const auto& reflection = *request->GetReflection();
  const std::string& name = field.name();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT: {
      float number;
      if (!absl::SimpleAtof(value, &number) || !std::isfinite(number)) {
        return WrongValue(name, value, "a number");
      }
      reflection.SetFloat(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t number;
      if (!absl::SimpleAtoi(value, &number)) {
        return WrongValue(name, value, "0 or more");
      }
      reflection.SetUInt32(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t number;
      if (!absl::SimpleAtoi(value, &number)) {
        return WrongValue(name, value, "0 or more");
      }
      reflection.SetUInt64(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t number;
      if (!absl::SimpleAtoi(value, &number)) {
        return WrongValue(name, value, "a whole number");
      }
      reflection.SetInt64(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool flag;
      if (!absl::SimpleAtob(value, &flag)) {
        return WrongValue(name, value, "true or false");
      }
      reflection.SetBool(request, &field, flag);
      return absl::OkStatus();
    }
    default:
      reflection.ClearField(request, &field);
      reflection.AddString(request, &field, std::string(value));
      return absl::OkStatus();
  }
}

}  // namespace

absl::Span<const char* const> ChatSettings() { return kSettings; }

bool IsGiven(const v1::GenerateRequest& request, const FieldDescriptor& field) {
  const auto& reflection = *request.GetReflection();
  return field.is_repeated() ? reflection.FieldSize(request, &field) > 0
                             : reflection.HasField(request, &field);
}

void ChatState::SetSystem(absl::string_view text) {
  auto* const messages = conversation().mutable_messages();
  const bool has = !messages->empty() && messages->Get(0).role() == "system";
  if (text.empty()) {
    if (has) messages->DeleteSubrange(0, 1);
    return;
  }
  if (!has) {
    messages->Add()->set_role("system");
    for (int i = messages->size() - 1; i > 0; --i) {
      messages->SwapElements(i, i - 1);
    }
  }
  messages->Mutable(0)->set_content(std::string(text));
}

void ChatState::AddQuestion(absl::string_view text) {
  v1::Conversation::Message* const message = conversation().add_messages();
  message->set_role("user");
  message->set_content(absl::StrCat(std::exchange(files_, ""), text));
}

void ChatState::AddAnswer(const std::string& text,
                          const std::string& reasoning) {
  v1::Conversation::Message* const message = conversation().add_messages();
  message->set_role("assistant");
  message->set_content(text);
  message->set_reasoning(reasoning);
}

void ChatState::DropQuestion() {
  conversation().mutable_messages()->RemoveLast();
}

absl::StatusOr<ChatState::Outcome> ChatState::Run(absl::string_view line) {
  const auto [command, rest] = FirstWord(line);
  if (command == "/help") return Outcome{.told = kChatHelp};
  if (command == "/quit") return Outcome{.told = "", .quits = true};
  if (command == "/clear") {
    auto* const messages = conversation().mutable_messages();
    const int kept = !messages->empty() && messages->Get(0).role() == "system";
    messages->DeleteSubrange(kept, messages->size() - kept);
    files_.clear();
    return Outcome{.told = "the conversation begins again\n"};
  }
  if (command == "/system") {
    SetSystem(rest);
    return Outcome();
  }
  if (command == "/set") {
    if (rest.empty()) return Outcome{.told = Settings()};
    const auto [name, value] = FirstWord(rest);
    RF_RETURN_IF_ERROR(Set(name, value));
    return Outcome();
  }
  if (command == "/read" && !rest.empty()) {
    RF_ASSIGN_OR_RETURN(const std::string text,
                        ReadTextFile(std::string(rest)));
    absl::StrAppend(&files_, text, "\n");
    return Outcome{.told = absl::StrCat("the next message begins with ",
                                        text.size(), " bytes of ", rest, "\n")};
  }
  if (command == "/save" && !rest.empty()) {
    RF_RETURN_IF_ERROR(Save(std::string(rest)));
    return Outcome();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(command,
                   ": no such command, or a FILE is missing, want one "
                   "of /help"));
}

absl::Status ChatState::Set(absl::string_view name, absl::string_view value) {
  if (const FieldDescriptor* const field = FindSetting(name)) {
    if (!value.empty()) return SetField(*field, value, &request_);
    request_.GetReflection()->ClearField(&request_, field);
    return absl::OkStatus();
  }
  if (value.empty()) {
    variables_.erase(std::string(name));
  } else {
    // A word that is no JSON is a text.
    Json parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    variables_[std::string(name)] =
        parsed.is_discarded() ? Json(std::string(value)) : std::move(parsed);
  }
  conversation().set_template_kwargs(variables_.empty() ? ""
                                                        : variables_.dump());
  return absl::OkStatus();
}

std::string ChatState::Settings() const {
  std::string out;
  for (const char* const name : kSettings) {
    const FieldDescriptor* const field = FindSetting(name);
    std::string value = "default";
    if (IsGiven(request_, *field)) {
      google::protobuf::TextFormat::PrintFieldValueToString(
          request_, field, field->is_repeated() ? 0 : -1, &value);
    }
    absl::StrAppend(&out, name, " ", value, "\n");
  }
  for (const auto& item : variables_.items()) {
    absl::StrAppend(&out, item.key(), " ", item.value().dump(), "\n");
  }
  return out;
}

absl::Status ChatState::Save(const std::string& path) {
  Json messages = Json::array();
  for (const v1::Conversation::Message& message : conversation().messages()) {
    Json& out = messages.emplace_back(Json::object());
    out["role"] = message.role();
    out["content"] = message.content();
    if (!message.reasoning().empty()) {
      out["reasoning_content"] = message.reasoning();
    }
  }
  std::ofstream file(path);
  file << messages.dump(1) << "\n";
  file.close();
  if (file.fail()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "/save ", path, ": cannot be written: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator::cli
