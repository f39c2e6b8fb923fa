// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batch_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/json_text.h"

namespace ringfleet::coordinator {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kReadBytes = size_t{1} << 20;
// Prompts that are equal so far are worth running one after the other.
constexpr size_t kCommonBytes = 256;
constexpr size_t kMostShownBytes = 200;  // Of a value in an error.

// Returns a string field. Null: absent, or no string.
const std::string* TextField(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() ? nullptr : it->get_ptr<const std::string*>();
}

// A field that is null is absent.
bool Has(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && !it->is_null();
}

// Calls `on_line` with each line of a file, its first byte and its number,
// until it returns false.
absl::Status ForEachLine(
    const std::string& path,
    const std::function<bool(absl::string_view, int64_t, int64_t)>& on_line) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return cluster::FileError(path, errno);
  std::string held;
  int64_t begin = 0, number = 1;
  absl::Status status;
  for (bool more = true; more;) {
    const size_t before = held.size();
    held.resize(before + kReadBytes);
    const ssize_t got = read(file, held.data() + before, kReadBytes);
    held.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0) {
      status = cluster::FileError(path, errno);
      break;
    }
    const bool last = got == 0;
    if (last && !held.empty()) held.push_back('\n');
    absl::string_view rest = held;
    for (size_t end; more && (end = rest.find('\n')) != rest.npos; ++number) {
      more = on_line(rest.substr(0, end), begin, number);
      begin += static_cast<int64_t>(end) + 1;
      rest.remove_prefix(end + 1);
    }
    if (more && rest.size() > kMostLineBytes) {
      // The caller refuses it by its length.
      more = on_line(rest, begin, number);
      break;
    }
    held.erase(0, held.size() - rest.size());
    more = more && !last;
  }
  close(file);
  return status;
}

// Returns what prompts must have in common to run one after the other.
std::string CommonPart(const BatchLine& line) {
  const Json& prompt = line.body[line.chat ? "messages" : "prompt"];
  if (prompt.is_string()) {
    return prompt.get_ref<const std::string&>().substr(0, kCommonBytes);
  }
  const std::string first = prompt[0].dump(
      -1, ' ', false, nlohmann::detail::error_handler_t::replace);
  // A list of ids is long, and its first id says little.
  if (prompt[0].is_number()) {
    std::string ids;
    for (size_t i = 0; i < prompt.size() && ids.size() < kCommonBytes; ++i) {
      absl::StrAppend(&ids, prompt[i].dump(), ",");
    }
    return ids;
  }
  return first.substr(0, kCommonBytes);
}

// Checks lines one after the other.
class LineScanner {
 public:
  LineScanner(absl::string_view endpoint, const GenerationContext& context,
              ScannedLines* out)
      : endpoint_(endpoint),
        context_(context),
        random_(std::random_device()()),
        out_(out) {}

  // Returns false if no more lines are wanted.
  bool Add(absl::string_view text, int64_t begin, int64_t number) {
    // The rest of a line that is too long is not known.
    if (text.size() <= kMostLineBytes &&
        text.find_first_not_of(" \t\r") == text.npos) {
      return true;
    }
    if (out_->lines.size() == kMostLines) {
      return Fail({.code = "too_many_tasks",
                   .message = absl::StrCat("more than ", kMostLines, " lines"),
                   .param = "",
                   .number = number}) &&
             false;
    }
    BatchLine line;
    if (auto error = ReadBatchLine(text, number, endpoint_, &line)) {
      return Fail(*std::move(error));
    }
    const auto [twin, first] = ids_.try_emplace(line.custom_id, number);
    if (!first) {
      return Fail(
          {.code = "duplicate_custom_id",
           .message = absl::StrCat("custom_id: '", line.custom_id,
                                   "' is also that of line ", twin->second),
           .param = "custom_id",
           .number = number});
    }
    if (auto error = CheckBody(line, number)) return Fail(*std::move(error));
    LineRecord record;
    record.number = number;
    record.begin = begin;
    record.length = static_cast<int64_t>(text.size());
    record.place =
        places_
            .try_emplace(CommonPart(line), static_cast<int64_t>(places_.size()))
            .first->second;
    record.custom_id = std::move(line.custom_id);
    const auto seed = line.body.find("seed");
    if (seed == line.body.end() || seed->is_null()) {
      record.seed = static_cast<int64_t>(random_() >> 1);
    }
    out_->lines.push_back(std::move(record));
    return true;
  }

 private:
  std::optional<LineError> CheckBody(const BatchLine& line, int64_t number) {
    const std::string body = line.wrapped ? "body." : "";
    const auto fail = [&body, number](std::string code, const char* field,
                                      absl::string_view why) {
      return LineError{.code = std::move(code),
                       .message = absl::StrCat(body, field, ": ", why),
                       .param = absl::StrCat(body, field),
                       .number = number};
    };
    const bool names_model = Has(line.body, "model");
    if (!names_model && !endpoint_.empty()) {
      return fail("invalid_request", "model",
                  absl::StrCat("missing required parameter, want '",
                               context_.served_name, "'"));
    }
    const std::string* const model = TextField(line.body, "model");
    if (model == nullptr && names_model) {
      return fail(
          kInvalidType, "model",
          absl::StrCat(line.body["model"].type_name(), ", want a string"));
    }
    if (model != nullptr && *model != context_.served_name) {
      return fail("model_not_found", "model",
                  absl::StrCat("'", model->substr(0, kMostShownBytes),
                               "' is not supported, want '",
                               context_.served_name, "'"));
    }
    const auto stream = line.body.find("stream");
    if (stream != line.body.end() && *stream == true) {
      return fail("streaming_unsupported", "stream",
                  "streaming is not supported in batches, want false");
    }
    auto error = CheckGenerationRequest(line.body, line.chat, context_);
    if (!error.has_value()) return std::nullopt;
    // The message begins with the field, if there is one.
    const std::string prefix = error->param.empty() ? "" : body;
    return LineError{
        .code = error->code.empty() ? "invalid_request" : error->code,
        .message = absl::StrCat(prefix, error->message),
        .param = absl::StrCat(prefix, error->param),
        .number = number};
  }

  bool Fail(LineError error) {
    out_->errors.push_back(std::move(error));
    return out_->errors.size() < kMostLineErrors;
  }

  const absl::string_view endpoint_;
  const GenerationContext& context_;
  std::mt19937_64 random_;
  ScannedLines* const out_;
  absl::flat_hash_map<std::string, int64_t> ids_;     // Numbers of lines.
  absl::flat_hash_map<std::string, int64_t> places_;  // By common part.
};

}  // namespace

std::string LineErrorsJson(const std::vector<LineError>& errors) {
  std::string json = "[";
  for (const LineError& error : errors) {
    absl::StrAppend(&json, json.size() == 1 ? "" : ",", "{\"code\":");
    AppendJsonString(error.code, &json);
    json += ",\"message\":";
    AppendJsonString(error.message, &json);
    json += ",\"param\":";
    AppendJsonStringOrNull(error.param, &json);
    absl::StrAppend(&json, ",\"line\":",
                    error.number > 0 ? absl::StrCat(error.number) : "null",
                    "}");
  }
  return json + "]";
}

std::optional<LineError> ReadBatchLine(absl::string_view text, int64_t number,
                                       absl::string_view endpoint,
                                       BatchLine* out) {
  const auto fail = [number](const char* code, std::string message,
                             std::string param = "") {
    return LineError{.code = code,
                     .message = std::move(message),
                     .param = std::move(param),
                     .number = number};
  };
  if (text.size() > kMostLineBytes) {
    return fail("invalid_json_line",
                absl::StrCat("longer than ", kMostLineBytes, " bytes"));
  }
  absl::StatusOr<Json> json = ParseJsonBody(text);
  if (!json.ok()) {
    absl::string_view why = json.status().message();
    absl::ConsumePrefix(&why, "body: ");  // The body is a field of the line.
    return fail("invalid_json_line", std::string(why));
  }
  // The error of a field that is absent or has another type.
  const auto unfit = [&fail, &json](const char* name, const char* wanted) {
    const auto it = json->find(name);
    const bool absent = !Has(*json, name);
    return fail(
        absent ? kMissingParameter : kInvalidType,
        absl::StrCat(name, ": ",
                     absent ? "missing required parameter" : it->type_name(),
                     ", want ", wanted),
        name);
  };
  const bool wrapped = json->contains("body") || json->contains("url") ||
                       json->contains("method") || !endpoint.empty();
  if (const std::string* const text_id = TextField(*json, "custom_id")) {
    out->custom_id = *text_id;
  } else if (wrapped || Has(*json, "custom_id")) {
    return unfit("custom_id", "a string");
  } else {
    out->custom_id = absl::StrCat("line-", number);
  }
  if (out->custom_id.empty() || out->custom_id.size() > kMostCustomIdBytes) {
    return fail("invalid_custom_id",
                absl::StrCat("custom_id: ", out->custom_id.size(),
                             " bytes, want 1 to ", kMostCustomIdBytes),
                "custom_id");
  }
  if (!wrapped) {
    out->chat = Has(*json, "messages");
    const bool prompts = Has(*json, "prompt");
    if (!out->chat && !prompts) {
      return fail(kMissingParameter,
                  "neither body nor prompt nor messages, want one of them");
    }
    if (out->chat && prompts) {
      return fail(kInvalidValue, "prompt: beside messages, want one of them",
                  "prompt");
    }
    json->erase("custom_id");
    out->wrapped = false;
    out->body = *std::move(json);
    return std::nullopt;
  }
  const std::string* const method = TextField(*json, "method");
  if (method == nullptr) return unfit("method", "POST");
  if (*method != "POST") {
    return fail("invalid_method",
                absl::StrCat("method: '", method->substr(0, kMostShownBytes),
                             "', want POST"),
                "method");
  }
  const std::string* const url = TextField(*json, "url");
  if (url == nullptr) return unfit("url", "an endpoint");
  if (!endpoint.empty() && *url != endpoint) {
    return fail("invalid_url",
                absl::StrCat("url: '", url->substr(0, kMostShownBytes),
                             "' does not match the endpoint of the batch, ",
                             "want ", endpoint),
                "url");
  }
  if (*url != kChatEndpoint && *url != kCompletionEndpoint) {
    return fail(
        "invalid_url",
        absl::StrCat("url: '", url->substr(0, kMostShownBytes), "', want ",
                     kChatEndpoint, " or ", kCompletionEndpoint),
        "url");
  }
  out->chat = *url == kChatEndpoint;
  const auto body = json->find("body");
  if (body == json->end() || !body->is_object()) {
    return unfit("body", "an object");
  }
  out->body = std::move(*body);
  return std::nullopt;
}

absl::StatusOr<ScannedLines> ScanLines(const std::string& path,
                                       absl::string_view endpoint,
                                       const GenerationContext& context) {
  ScannedLines scanned;
  LineScanner scanner(endpoint, context, &scanned);
  RF_RETURN_IF_ERROR(ForEachLine(
      path, [&scanner](absl::string_view text, int64_t begin, int64_t number) {
        return scanner.Add(text, begin, number);
      }));
  if (scanned.lines.empty() && scanned.errors.empty()) {
    scanned.errors.push_back({.code = "empty_file",
                              .message = "no line, want at least one",
                              .param = "",
                              .number = 0});
  }
  return scanned;
}

}  // namespace ringfleet::coordinator
