// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/token_endpoints.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/file_reader.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/chat_prompt.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/request_fields.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxTokenizerConfig = uint64_t{16} << 20;
// A text's tokens take several times its bytes in the response.
constexpr size_t kMaxTokenizedBytes = size_t{4} << 20;

// Appends a token as llama.cpp does: bytes that are no text are a list.
void AppendPiece(uint32_t id, absl::string_view bytes, std::string* out) {
  absl::StrAppend(out, "{\"id\":", id, ",\"piece\":");
  if (CheckUtf8(bytes).ok()) {
    AppendJsonString(bytes, out);
  } else {
    absl::StrAppend(out, "[",
                    absl::StrJoin(bytes, ",",
                                  [](std::string* list, char byte) {
                                    absl::StrAppend(list,
                                                    static_cast<uint8_t>(byte));
                                  }),
                    "]");
  }
  out->push_back('}');
}

// Reads a body with a tokenizer at hand, and answers with `write`'s text.
template <typename Write>
HttpResponse WithTokenizer(const ServedModel& model, absl::string_view body,
                           const Write& write) {
  const auto tokenizer = model.tokenizer();
  if (!tokenizer.ok()) return ErrorResponse(ErrorOf(tokenizer.status()));
  const absl::StatusOr<Json> json = ParseJsonBody(body);
  if (!json.ok()) return ErrorResponse(ErrorOf(json.status()));
  RequestFields fields(*json);
  HttpResponse response;
  response.body = write(**tokenizer, &fields);
  if (fields.error().has_value()) return ErrorResponse(*fields.error());
  return response;
}

}  // namespace

HttpResponse Tokenize(const ServedModel& model, uint32_t positions,
                      absl::string_view body) {
  return WithTokenizer(
      model, body,
      [positions](const Tokenizer& tokenizer, RequestFields* fields) {
        const bool with_pieces = fields->Flag("with_pieces", false);
        const bool strings = fields->Flag("return_token_strs", false);
        std::string text;
        MarkedText chat;
        const char* name = "prompt";
        bool prefix = true;
        if (fields->Find("messages") != nullptr) {
          name = "messages";
          prefix = false;
          chat = RenderChat(tokenizer, fields).text;
        } else if (fields->Find("content") != nullptr) {
          name = "content";
          prefix = fields->Flag("add_special", false);
          text = fields->Text("content").value_or("");
        } else if (const auto prompt = fields->Text("prompt")) {
          text = *prompt;
        } else {
          fields->FailField("prompt", "missing, want a string");
        }
        prefix = fields->Flag("add_special_tokens", prefix);
        std::string out = "{\"tokens\":[";
        if (fields->error().has_value()) return out;
        const size_t bytes = text.size() + chat.bytes().size();
        if (bytes > kMaxTokenizedBytes) {
          fields->FailField(name, absl::StrCat(bytes, " bytes, want at most ",
                                               kMaxTokenizedBytes));
          return out;
        }
        const auto ids = !chat.empty() ? tokenizer.Encode(chat)
                         : prefix      ? tokenizer.EncodePrompt(text)
                                       : tokenizer.Encode(text);
        if (!ids.ok()) {
          fields->FailField(name, std::string(ids.status().message()));
          return out;
        }
        std::string pieces;
        for (size_t i = 0; i < ids->size(); ++i) {
          if (i > 0) out += ',';
          if (with_pieces) {
            AppendPiece((*ids)[i], tokenizer.TokenBytes((*ids)[i]), &out);
          } else {
            absl::StrAppend(&out, (*ids)[i]);
          }
          if (!strings) continue;
          if (i > 0) pieces += ',';
          AppendJsonString(tokenizer.TokenBytes((*ids)[i]), &pieces);
        }
        absl::StrAppend(&out, "],\"count\":", ids->size(),
                        ",\"max_model_len\":",
                        positions > 0 ? absl::StrCat(positions) : "null",
                        ",\"token_strs\":",
                        strings ? absl::StrCat("[", pieces, "]") : "null", "}");
        return out;
      });
}

HttpResponse Detokenize(const ServedModel& model, absl::string_view body) {
  return WithTokenizer(
      model, body, [&model](const Tokenizer& tokenizer, RequestFields* fields) {
        if (fields->Find("tokens") == nullptr) {
          fields->FailField("tokens", "missing, want a list of ids");
        }
        const std::vector<uint32_t> ids =
            fields->Ids("tokens", kMaxJsonValues,
                        static_cast<uint32_t>(model.spec().vocab_size));
        std::string text;
        AppendJsonString(tokenizer.Decode(ids, /*keep_special=*/true), &text);
        return absl::StrCat("{\"prompt\":", text, ",\"content\":", text,
                            ",\"text\":", text, "}");
      });
}

HttpResponse ApplyTemplate(const ServedModel& model, absl::string_view body) {
  return WithTokenizer(
      model, body, [](const Tokenizer& tokenizer, RequestFields* fields) {
        fields->Refuse("tools");
        std::string out = "{\"prompt\":";
        AppendJsonString(RenderChat(tokenizer, fields).text.bytes(), &out);
        return out + "}";
      });
}

HttpResponse TokenizerInfo(const ServedModel& model,
                           const std::string& model_dir) {
  const auto tokenizer = model.tokenizer();
  if (!tokenizer.ok()) return ErrorResponse(ErrorOf(tokenizer.status()));
  Json info = Json::object();
  // Synthetic models have no files.
  const auto text = cluster::ReadSmallFile(
      absl::StrCat(model_dir, "/tokenizer_config.json"), kMaxTokenizerConfig);
  if (text.ok()) {
    info = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!info.is_object()) info = Json::object();
  }
  if (!info.contains("tokenizer_class")) {
    info["tokenizer_class"] = "PreTrainedTokenizerFast";
  }
  const std::pair<const char*, const std::string*> strings[] = {
      {"bos_token", &(*tokenizer)->bos_token()},
      {"eos_token", &(*tokenizer)->eos_token()},
      {"chat_template", &(*tokenizer)->chat_template()}};
  for (const auto& [name, value] : strings) {
    info[name] = value->empty() ? Json() : Json(*value);
  }
  HttpResponse response;
  response.body = info.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

}  // namespace ringfleet::coordinator
