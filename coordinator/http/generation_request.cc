// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/generation_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/http/chat_prompt.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/request_fields.h"
#include "protos/coordinator.pb.h"

namespace ringfleet::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// OpenAI's default of /v1/completions.
constexpr uint32_t kCompletionTokens = 16;
constexpr int64_t kMostTopLogprobs = 20;
constexpr size_t kMaxBadWords = 1024;
constexpr size_t kMaxBadWordBytes = 256;
constexpr size_t kMaxStopIds = 1024;
constexpr double kMaxTimeoutSeconds = 24 * 60 * 60;

// Fields of OpenAI, vLLM, SGLang and llama.cpp that change the answer and have
// no effect here. Dropping them would answer another question.
constexpr const char* kRefused[] = {"tools",
                                    "functions",
                                    "suffix",
                                    "allowed_token_ids",
                                    "logits_processors",
                                    "use_beam_search",
                                    "truncate_prompt_tokens",
                                    "structured_outputs",
                                    "guided_json",
                                    "guided_regex",
                                    "guided_choice",
                                    "guided_grammar",
                                    "regex",
                                    "ebnf",
                                    "stop_regex",
                                    "grammar",
                                    "json_schema",
                                    "chat_template",
                                    "documents",
                                    "audio",
                                    "web_search_options",
                                    "prompt_embeds",
                                    "n_probs",
                                    "n_predict",
                                    "mirostat",
                                    "dynatemp_range",
                                    "dry_multiplier",
                                    "xtc_probability",
                                    "return_token_ids",
                                    "return_tokens_as_token_ids",
                                    "no_stop_trim"};

void RefuseConstraints(RequestFields* fields) {
  for (const char* const name : kRefused) fields->Refuse(name);
  for (const char* const name :
       {"length_penalty", "repeat_penalty", "typical_p"}) {
    fields->Refuse(name, /*neutral=*/1);
  }
  if (!fields->Flag("skip_special_tokens", true)) {
    fields->Fail(UnsupportedField("skip_special_tokens"));
  }
  if (!fields->Flag("stream_reasoning", true)) {
    fields->Fail(UnsupportedField("stream_reasoning"));
  }
  for (const char* const name : {"tool_choice", "function_call"}) {
    const Json* const choice = fields->Find(name);
    if (choice != nullptr && *choice != "none" && *choice != "auto") {
      fields->Fail(UnsupportedField(name));
    }
  }
  if (const Json* const format = fields->Find("response_format")) {
    if (!format->is_object() || !format->contains("type") ||
        (*format)["type"] != "text") {
      fields->FailField("response_format", "want {\"type\": \"text\"}");
    }
  }
  if (const Json* const modalities = fields->Find("modalities")) {
    if (*modalities != Json::array({"text"})) {
      fields->FailField("modalities", "want [\"text\"]");
    }
  }
}

void ReadStops(RequestFields* fields, GenerationRequest* out) {
  out->text_rules.keeps_stop =
      fields->Flag("include_stop_str_in_output", false);
  const Json* const stop = fields->Find("stop");
  if (stop == nullptr) return;
  const bool list = stop->is_array();
  const size_t count = list ? stop->size() : 1;
  if (count > kMaxStops) {
    return fields->FailField(
        "stop", absl::StrCat(count, " strings, want at most ", kMaxStops));
  }
  for (size_t i = 0; i < count; ++i) {
    const Json& text = list ? (*stop)[i] : *stop;
    if (!text.is_string()) {
      return fields->FailField(
          "stop", absl::StrCat(text.type_name(),
                               ", want a string or a list of strings"));
    }
    out->text_rules.stops.push_back(text.get<std::string>());
  }
  const absl::Status valid = CheckStops(out->text_rules.stops);
  if (!valid.ok()) fields->FailField("stop", std::string(valid.message()));
}

void ReadLogitBias(const ServedModel& model, RequestFields* fields,
                   v1::GenerateRequest* wanted) {
  const Json* const biases = fields->Find("logit_bias");
  if (biases == nullptr) return;
  const auto limit = static_cast<uint32_t>(model.spec().vocab_size);
  if (biases->is_object()) {
    for (const auto& [key, value] : biases->items()) {
      uint32_t id = 0;
      const bool number = absl::SimpleAtoi(key, &id) && id < limit &&
                          value.is_number() && value.get<double>() >= -100 &&
                          value.get<double>() <= 100;
      if (!number) break;
      v1::LogitBias* const bias = wanted->add_logit_bias();
      bias->set_id(id);
      bias->set_bias(value.get<float>());
    }
    if (wanted->logit_bias_size() == static_cast<int>(biases->size())) return;
  }
  fields->FailField("logit_bias",
                    absl::StrCat("want an object of ids below ", limit,
                                 " with numbers from -100 to 100"));
}

// Rules that change logits; ranges are those of OpenAI, where it has one.
void ReadLogitRules(const ServedModel& model, RequestFields* fields,
                    v1::GenerateRequest* wanted) {
  if (const auto value = fields->Number("repetition_penalty", 0.01, 100)) {
    wanted->set_repetition_penalty(static_cast<float>(*value));
  }
  if (const auto value = fields->Number("presence_penalty", -2, 2)) {
    wanted->set_presence_penalty(static_cast<float>(*value));
  }
  if (const auto value = fields->Number("frequency_penalty", -2, 2)) {
    wanted->set_frequency_penalty(static_cast<float>(*value));
  }
  if (const auto value = fields->Integer("min_tokens", 0, 1 << 24)) {
    wanted->set_min_tokens(static_cast<uint32_t>(*value));
  }
  ReadLogitBias(model, fields, wanted);
  const Json* const words = fields->Find("bad_words");
  if (words == nullptr) return;
  const bool texts =
      words->is_array() && words->size() <= kMaxBadWords &&
      std::all_of(words->begin(), words->end(), [](const Json& word) {
        return word.is_string() && word != "" &&
               word.get_ref<const std::string&>().size() <= kMaxBadWordBytes;
      });
  if (!texts) {
    return fields->FailField(
        "bad_words",
        absl::StrCat("want a list of at most ", kMaxBadWords, " texts of 1 to ",
                     kMaxBadWordBytes, " bytes"));
  }
  for (const Json& word : *words) {
    wanted->add_bad_words(word.get<std::string>());
  }
}

void ReadSampling(const ServedModel& model, RequestFields* fields,
                  GenerationRequest* out) {
  v1::GenerateRequest wanted;
  if (const auto value = fields->Number("temperature", 0, 2)) {
    wanted.set_temperature(static_cast<float>(*value));
  }
  // Below the least float above 0 a top_p keeps one token, as this one does.
  if (const auto value = fields->Number("top_p", 0, 1)) {
    if (*value <= 0) fields->FailField("top_p", "0, want more than 0");
    wanted.set_top_p(std::max(static_cast<float>(*value),
                              std::numeric_limits<float>::min()));
  }
  if (const auto value = fields->Number("min_p", 0, 1)) {
    wanted.set_min_p(static_cast<float>(*value));
  }
  if (const auto value =
          fields->Integer("top_k", -1, std::numeric_limits<int32_t>::max())) {
    wanted.set_top_k(static_cast<uint32_t>(std::max<int64_t>(*value, 0)));
  }
  if (const auto value =
          fields->Integer("seed", std::numeric_limits<int64_t>::min(),
                          std::numeric_limits<int64_t>::max())) {
    wanted.set_seed(static_cast<uint64_t>(*value));
  }
  ReadLogitRules(model, fields, &wanted);
  out->user_stop_ids =
      fields->Ids("stop_token_ids", kMaxStopIds,
                  static_cast<uint32_t>(model.spec().vocab_size));
  wanted.mutable_stop_token_ids()->Add(out->user_stop_ids.begin(),
                                       out->user_stop_ids.end());
  wanted.set_ignore_eos(fields->Flag("ignore_eos", false));
  if (const auto value = fields->Number("timeout", 0.001, kMaxTimeoutSeconds)) {
    out->timeout = absl::Seconds(*value);
  }
  using Limits = std::numeric_limits<int32_t>;
  out->priority = static_cast<int32_t>(
      fields->Integer("priority", Limits::min(), Limits::max()).value_or(0));
  out->cache_salt = fields->Text("cache_salt").value_or("");
  if (fields->error().has_value()) return;
  auto sampling = model.Sampling(wanted);
  auto stop_ids = model.StopIdsOf(wanted);
  if (!sampling.ok()) return fields->Fail(ErrorOf(sampling.status()));
  if (!stop_ids.ok()) return fields->Fail(ErrorOf(stop_ids.status()));
  out->sampling = *std::move(sampling);
  out->stop_ids = *std::move(stop_ids);
}

void ReadStream(RequestFields* fields, GenerationRequest* out) {
  out->stream = fields->Flag("stream", false);
  const Json* const options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!out->stream) {
    return fields->FailField("stream_options", "want it only with stream");
  }
  if (!options->is_object()) {
    return fields->FailField("stream_options", "want an object");
  }
  RequestFields inner(*options, "stream_options.");
  out->usage_chunk = inner.Flag("include_usage", false);
  out->usage_in_each =
      inner.Flag("continuous_usage_stats", false) && out->usage_chunk;
  if (inner.error().has_value()) fields->Fail(*inner.error());
}

void ReadLogprobs(RequestFields* fields, GenerationRequest* out) {
  const Json* const wanted = fields->Find("logprobs");
  if (out->chat) {
    out->logprobs = fields->Flag("logprobs", false);
    const auto top = fields->Integer("top_logprobs", 0, kMostTopLogprobs);
    out->top_logprobs = static_cast<uint32_t>(top.value_or(0));
    if (out->top_logprobs > 0 && !out->logprobs) {
      fields->FailField("top_logprobs", "want it only with logprobs");
    }
  } else if (wanted != nullptr && wanted->is_boolean()) {
    out->logprobs = wanted->get<bool>();
  } else if (const auto top =
                 fields->Integer("logprobs", 0, kMostTopLogprobs)) {
    out->logprobs = true;
    out->top_logprobs = static_cast<uint32_t>(*top);
  }
  if (const auto top =
          fields->Integer("prompt_logprobs", 0, kMostTopLogprobs)) {
    if (out->stream) {
      fields->FailField("prompt_logprobs", "want it only without stream");
    }
    out->prompt_logprobs = static_cast<uint32_t>(*top);
  }
  out->echo = fields->Flag("echo", false);
  if (out->echo && out->chat) fields->Fail(UnsupportedField("echo"));
}

class PromptReader {
 public:
  PromptReader(const GenerationContext& context, RequestFields* fields,
               GenerationRequest* out)
      : context_(context), fields_(fields), out_(out) {}

  void Read() { out_->chat ? ReadChat() : ReadCompletion(); }

 private:
  void ReadChat() {
    const auto tokenizer = context_.model->tokenizer();
    if (!tokenizer.ok()) return fields_->Fail(ErrorOf(tokenizer.status()));
    const bool separates = fields_->Flag("separate_reasoning", true);
    out_->tells_reasoning = fields_->Flag("include_reasoning", true);
    const ChatPrompt prompt = RenderChat(**tokenizer, fields_);
    if (fields_->error().has_value()) return;
    if (separates) out_->text_rules.reasoning = prompt.reasoning;
    if (CheckLength(prompt.text.bytes())) {
      Add((*tokenizer)->Encode(prompt.text), "messages");
    }
  }

  // A string, a list of strings, a list of ids, or a list of these.
  void ReadCompletion() {
    const Json* const prompt = fields_->Find("prompt");
    const bool prefix = fields_->Flag("add_special_tokens", true);
    if (prompt == nullptr) {
      return fields_->FailField("prompt", "missing, want a string or ids",
                                kMissingParameter);
    }
    const bool ids =
        prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number();
    const bool list =
        prompt->is_array() && !ids &&
        std::any_of(prompt->begin(), prompt->end(), [](const Json& part) {
          return part.is_string() || part.is_array();
        });
    if (!list) return AddPrompt(*prompt, prefix);
    if (prompt->size() > kMaxChoices) {
      return fields_->FailField(
          "prompt",
          absl::StrCat(prompt->size(), " prompts, want at most ", kMaxChoices));
    }
    for (const Json& one : *prompt) {
      if (fields_->error().has_value()) return;
      AddPrompt(one, prefix);
    }
  }

  void AddPrompt(const Json& prompt, bool prefix) {
    if (prompt.is_string()) {
      return AddText(prompt.get_ref<const std::string&>(), prefix);
    }
    v1::Prompt ids;
    if (!prompt.is_array()) {
      return fields_->FailField(
          "prompt", absl::StrCat(prompt.type_name(), ", want a string or ids"),
          kInvalidType);
    }
    if (prompt.size() > context_.positions) return FailLength(prompt.size());
    const auto limit = static_cast<uint64_t>(context_.model->spec().vocab_size);
    for (size_t i = 0; i < prompt.size(); ++i) {
      const Json& id = prompt[i];
      if (!id.is_number_unsigned()) {
        return fields_->FailField("prompt", "an entry is no id, want integers",
                                  kInvalidType);
      }
      if (id.get<uint64_t>() >= limit) {
        return fields_->FailField(
            "prompt",
            absl::StrCat("id ", id.get<uint64_t>(), " at index ", i,
                         ", want less than ", limit, " (vocab_size)"));
      }
      ids.mutable_ids()->add_ids(id.get<uint32_t>());
    }
    Add(context_.model->PromptIds(ids), "prompt");
  }

  // Returns false if a text is too long for any tokens.
  bool CheckLength(const std::string& text) {
    const ServedModel& model = *context_.model;
    const absl::Status length = model.CheckTextLength(text, context_.positions);
    if (absl::IsInvalidArgument(length)) {
      const auto longest = (*model.tokenizer())->most_bytes_of_token();
      FailLength(text.size() / longest.value_or(1), "at least ");
    } else if (!length.ok()) {
      fields_->Fail(ErrorOf(length));
    }
    return length.ok();
  }

  void AddText(const std::string& text, bool prefix) {
    if (!CheckLength(text)) return;
    const Tokenizer& tokenizer = **context_.model->tokenizer();
    Add(prefix ? tokenizer.EncodePrompt(text) : tokenizer.Encode(text),
        "prompt");
  }

  void Add(absl::StatusOr<std::vector<uint32_t>> ids, const char* name) {
    if (!ids.ok()) {
      ApiError error = ErrorOf(ids.status());
      error.param = name;
      if (error.status == 400) error.code = kInvalidValue;
      return fields_->Fail(std::move(error));
    }
    if (ids->empty()) {
      return fields_->FailField(name, "empty, want at least one token");
    }
    if (ids->size() > context_.positions) return FailLength(ids->size());
    out_->prompts.push_back(*std::move(ids));
  }

  void FailLength(uint64_t tokens, absl::string_view bound = "") {
    ApiError error;
    error.message =
        absl::StrCat("the prompt has ", bound, tokens, " tokens, want at most ",
                     context_.positions, " (context)");
    error.param = out_->chat ? "messages" : "prompt";
    error.code = "context_length_exceeded";
    error.context = {tokens, context_.positions};
    fields_->Fail(std::move(error));
  }

  const GenerationContext& context_;
  RequestFields* const fields_;
  GenerationRequest* const out_;
};

void ReadLengths(const GenerationContext& context, RequestFields* fields,
                 GenerationRequest* out) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  // A prompt alone has an answer where the prompt is told.
  const int64_t least = out->echo ? 0 : 1;
  const char* name = "max_tokens";
  auto wanted = fields->Integer(name, least, kMost);
  if (const auto value = fields->Integer("max_completion_tokens", 1, kMost)) {
    name = "max_completion_tokens";
    wanted = value;
  }
  if (fields->error().has_value()) return;
  uint64_t all = 0;
  for (const std::vector<uint32_t>& prompt : out->prompts) {
    const uint64_t prompt_n = prompt.size();
    // One token may follow a prompt that fills the context.
    uint64_t most = std::min<uint64_t>(
        out->chat ? context.default_max_tokens : kCompletionTokens,
        context.positions - prompt_n + 1);
    if (wanted.has_value()) {
      most = static_cast<uint64_t>(*wanted);
      if (prompt_n + most > context.positions) {
        ApiError error;
        error.message = absl::StrCat(
            "the prompt has ", prompt_n, " tokens and ", name, " is ", most,
            ", want at most ", context.positions, " together (context)");
        error.param = name;
        error.code = "context_length_exceeded";
        error.context = {prompt_n, context.positions};
        return fields->Fail(std::move(error));
      }
    }
    out->max_tokens.push_back(static_cast<uint32_t>(most));
    const uint64_t each =
        1 + std::max(out->top_logprobs, out->prompt_logprobs.value_or(0));
    all += out->n * (prompt_n + most) * each;
  }
  if (all > kMaxRequestTokens) {
    fields->FailField("n", absl::StrCat(all,
                                        " tokens of all choices, and "
                                        "likeliest ones beside them, want at "
                                        "most ",
                                        kMaxRequestTokens));
  }
}

// Reads everything but the prompts and what depends on their lengths.
void ReadFields(const GenerationContext& context, RequestFields* fields,
                GenerationRequest* out) {
  out->text_rules.tokenizer = context.model->tokenizer().value_or(nullptr);
  if (const auto name = fields->Text("model");
      name.has_value() && *name != context.served_name) {
    ApiError error = BadField("model", absl::StrCat("'", name->substr(0, 200),
                                                    "' is not served, want '",
                                                    context.served_name, "'"));
    error.status = 404;
    error.code = "model_not_found";
    return fields->Fail(std::move(error));
  }
  out->n =
      static_cast<uint32_t>(fields->Integer("n", 1, kMaxSamples).value_or(1));
  if (const auto best = fields->Integer("best_of", 1, kMaxSamples);
      best.has_value() && *best != out->n) {
    fields->FailField("best_of", "want the value of n");
  }
  ReadStream(fields, out);
  ReadStops(fields, out);
  ReadLogprobs(fields, out);
  ReadSampling(*context.model, fields, out);
  RefuseConstraints(fields);
}

}  // namespace

std::optional<ApiError> ReadGenerationRequest(absl::string_view body, bool chat,
                                              const GenerationContext& context,
                                              GenerationRequest* out) {
  const absl::StatusOr<Json> json = ParseJsonBody(body);
  if (!json.ok()) return ErrorOf(json.status());
  RequestFields fields(*json);
  out->chat = chat;
  ReadFields(context, &fields, out);
  if (fields.error().has_value()) return fields.error();
  PromptReader(context, &fields, out).Read();
  if (fields.error().has_value()) return fields.error();
  if (out->prompts.size() * out->n > kMaxChoices) {
    fields.FailField("n", absl::StrCat(out->prompts.size() * out->n,
                                       " choices, want at most ", kMaxChoices));
  }
  ReadLengths(context, &fields, out);
  return fields.error();
}

std::optional<ApiError> CheckGenerationRequest(
    const nlohmann::ordered_json& body, bool chat,
    const GenerationContext& context) {
  RequestFields fields(body);
  GenerationRequest request;
  request.chat = chat;
  ReadFields(context, &fields, &request);
  if (request.stream) fields.FailField("stream", "true, want false");
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  fields.Integer("max_tokens", request.echo ? 0 : 1, kMost);
  fields.Integer("max_completion_tokens", 1, kMost);
  const char* const name = chat ? "messages" : "prompt";
  const Json* const prompt = fields.Find(name);
  if (prompt == nullptr) {
    fields.FailField(name, "missing", kMissingParameter);
  } else if (!(prompt->is_array() || (!chat && prompt->is_string()))) {
    fields.FailField(
        name,
        absl::StrCat(prompt->type_name(), ", want ",
                     chat ? "a list of messages" : "a string or ids"),
        kInvalidType);
  } else if (prompt->empty()) {
    fields.FailField(name, "empty, want at least one entry");
  }
  return fields.error();
}

}  // namespace ringfleet::coordinator
