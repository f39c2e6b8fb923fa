// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/chat_api.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/chat/chat_state.h"

namespace ringfleet::coordinator::cli {
namespace {

using google::protobuf::FieldDescriptor;

// Fields of an HTTP API beside those of /set.
constexpr const char* kMoreFields[] = {"bad_words", "stop_token_ids",
                                       "include_stop_str_in_output"};

// Returns the value of a scalar field, or of a list.
Json ValueOf(const v1::GenerateRequest& request, const FieldDescriptor& field) {
  const auto& reflection = *request.GetReflection();
  if (field.is_repeated()) {
    Json list = Json::array();
    for (int i = 0; i < reflection.FieldSize(request, &field); ++i) {
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        list.push_back(reflection.GetRepeatedString(request, &field, i));
      } else {
        list.push_back(reflection.GetRepeatedUInt32(request, &field, i));
      }
    }
    return list;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT: {
      // 0.6 and not 0.60000002384.
      double shortest = 0;
      if (!absl::SimpleAtod(absl::StrCat(reflection.GetFloat(request, &field)),
                            &shortest)) {
        return nullptr;
      }
      return shortest;
    }
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(request, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(request, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(request, &field);
    default:
      return reflection.GetBool(request, &field);
  }
}

// Returns a text field of an object; "" if it has none.
std::string TextField(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

uint32_t CountField(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number_unsigned() ? it->get<uint32_t>()
                                                        : 0;
}

}  // namespace

absl::StatusOr<ApiUrl> ParseApiUrl(absl::string_view url) {
  ApiUrl out;
  absl::string_view rest = url;
  out.tls = absl::ConsumePrefix(&rest, "https://");
  if (!out.tls && !absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "usage: --url ", url, ": no scheme, want http:// or https://"));
  }
  const size_t slash = rest.find('/');
  const absl::string_view authority = rest.substr(0, slash);
  absl::string_view path =
      slash == absl::string_view::npos ? "" : rest.substr(slash);
  while (absl::ConsumeSuffix(&path, "/")) {
  }
  absl::string_view host = authority;
  absl::string_view port = out.tls ? "443" : "80";
  const size_t colon = authority.rfind(':');
  const size_t bracket = authority.rfind(']');
  if (colon != absl::string_view::npos &&
      (bracket == absl::string_view::npos || colon > bracket)) {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
  }
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  int number;
  if (host.empty() || !absl::SimpleAtoi(port, &number) || number < 1 ||
      number > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --url ", url, ": '", authority,
                     "', want a host and perhaps a port"));
  }
  out.host = std::string(host);
  out.port = std::string(port);
  out.authority = std::string(authority);
  out.target = absl::StrCat(path, absl::EndsWith(path, "/v1") ? "" : "/v1",
                            "/chat/completions");
  return out;
}

std::string ChatBodyOf(const v1::GenerateRequest& request,
                       const std::string& model) {
  Json body = Json::object();
  if (!model.empty()) body["model"] = model;
  Json& messages = body["messages"] = Json::array();
  for (const auto& message : request.prompt().conversation().messages()) {
    messages.push_back(
        {{"role", message.role()}, {"content", message.content()}});
  }
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  std::vector<const char*> names(ChatSettings().begin(), ChatSettings().end());
  names.insert(names.end(), std::begin(kMoreFields), std::end(kMoreFields));
  for (const char* const name : names) {
    const FieldDescriptor* const field =
        v1::GenerateRequest::descriptor()->FindFieldByName(name);
    if (IsGiven(request, *field)) body[name] = ValueOf(request, *field);
  }
  for (const v1::LogitBias& bias : request.logit_bias()) {
    body["logit_bias"][absl::StrCat(bias.id())] = bias.bias();
  }
  // -1: no limit, which servers have of their own.
  if (request.max_tokens() < 0) body.erase("max_tokens");
  const std::string& variables =
      request.prompt().conversation().template_kwargs();
  if (!variables.empty()) body["chat_template_kwargs"] = Json::parse(variables);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status ApiErrorOf(int status, absl::string_view body) {
  const Json parsed = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string message;
  if (parsed.is_object()) {
    const auto error = parsed.find("error");
    if (error != parsed.end() && error->is_object()) {
      message = TextField(*error, "message");
    }
  }
  if (message.empty()) message = std::string(body.substr(0, 200));
  message = absl::StrCat("server: status ", status, ": ", message);
  if (status == 408) return absl::DeadlineExceededError(message);
  if (status == 429 || status >= 500) return absl::UnavailableError(message);
  return absl::InvalidArgumentError(message);
}

absl::Status ChatEvents::Add(absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.data(), std::min(end, bytes.size()));
    if (end == absl::string_view::npos) return absl::OkStatus();
    bytes.remove_prefix(end + 1);
    const std::string whole = std::exchange(line_, "");
    absl::string_view line = absl::StripSuffix(whole, "\r");
    if (absl::ConsumePrefix(&line, "data:")) {
      absl::ConsumePrefix(&line, " ");
      data_.append(line.data(), line.size());
    } else if (line.empty() && !data_.empty()) {
      RF_RETURN_IF_ERROR(TakeEvent(std::exchange(data_, "")));
    }
  }
  return absl::OkStatus();
}

absl::Status ChatEvents::TakeEvent(const std::string& data) {
  if (data == "[DONE]") {
    done_ = true;
    return absl::OkStatus();
  }
  const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    return absl::UnavailableError(
        absl::StrCat("server: an event is no JSON: ", data.substr(0, 100)));
  }
  if (event.contains("error")) return ApiErrorOf(500, data);
  if (const auto usage = event.find("usage");
      usage != event.end() && usage->is_object()) {
    v1::Timings* const timings = generated_->finished.mutable_timings();
    timings->set_prompt_n(CountField(*usage, "prompt_tokens"));
    timings->set_predicted_n(CountField(*usage, "completion_tokens"));
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty() ||
      !(*choices)[0].is_object()) {
    return absl::OkStatus();
  }
  const Json& choice = (*choices)[0];
  if (const std::string reason = TextField(choice, "finish_reason");
      !reason.empty()) {
    generated_->finished.set_reason(
        reason == "length" ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP);
  }
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return absl::OkStatus();
  AnswerPiece piece;
  piece.text = TextField(*delta, "content");
  piece.reasoning = TextField(*delta, "reasoning_content");
  // vLLM's name.
  if (piece.reasoning.empty()) piece.reasoning = TextField(*delta, "reasoning");
  if (piece.empty()) return absl::OkStatus();
  generated_->text += piece.text;
  generated_->reasoning += piece.reasoning;
  return on_piece_(piece, /*last=*/false);
}

}  // namespace ringfleet::coordinator::cli
