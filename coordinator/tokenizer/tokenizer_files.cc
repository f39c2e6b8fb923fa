// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tokenizer_files.h"

#include <array>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/json_depth.h"
#include "cluster/process/status_macros.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;

// Longest text of an added token; bounds the time of a search.
constexpr size_t kMaxAddedTokenBytes = 4096;

absl::Status InvalidField(absl::string_view field, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", message));
}

// At most 80 bytes of the value, for messages.
std::string Show(const json& value) {
  if (value.is_structured()) return absl::StrCat("a JSON ", value.type_name());
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true,
                                json::error_handler_t::replace);
  if (text.size() > 80) text = absl::StrCat(text.substr(0, 77), "...");
  return text;
}

// The member `key`, or null when it is absent or null.
const json* Find(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<json> Parse(absl::string_view text) {
  RF_RETURN_IF_ERROR(cluster::CheckJsonDepth(text));
  try {
    json parsed = json::parse(text.begin(), text.end());
    if (!parsed.is_object()) {
      return absl::InvalidArgumentError("is not a JSON object");
    }
    return parsed;
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(e.what());
  }
}

absl::StatusOr<bool> BoolField(const json& object, const char* key,
                               absl::string_view where) {
  const json* value = Find(object, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    return InvalidField(absl::StrCat(where, ".", key),
                        absl::StrCat(Show(*value), " is not a boolean"));
  }
  return value->get<bool>();
}

absl::StatusOr<uint32_t> TokenId(const json& value, absl::string_view where) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() >= TokenizerSpec::kMaxTokenId) {
    return InvalidField(where, absl::StrCat("id ", Show(value), ", want 0 to ",
                                            TokenizerSpec::kMaxTokenId - 1));
  }
  return value.get<uint32_t>();
}

// Fields that would change the result if they were anything but off.
absl::Status CheckModelFields(const json& model) {
  const json* type = Find(model, "type");
  if (type != nullptr && *type != "BPE") {
    return InvalidField("model.type",
                        absl::StrCat(Show(*type), ", want \"BPE\""));
  }
  for (const char* key : {"unk_token", "continuing_subword_prefix",
                          "end_of_word_suffix", "dropout", "byte_fallback"}) {
    const json* value = Find(model, key);
    if (value != nullptr && *value != "" && *value != false && *value != 0.0) {
      return InvalidField(absl::StrCat("model.", key),
                          absl::StrCat(Show(*value), " is not supported"));
    }
  }
  return absl::OkStatus();
}

// ByteLevel makes bytes of the text, and Fuse joins what is joined anyway.
absl::Status CheckDecoder(const json& decoder, const std::string& where) {
  const json* type = decoder.is_object() ? Find(decoder, "type") : nullptr;
  if (type != nullptr && (*type == "ByteLevel" || *type == "Fuse")) {
    return absl::OkStatus();
  }
  const json* parts = type != nullptr && *type == "Sequence"
                          ? Find(decoder, "decoders")
                          : nullptr;
  if (parts == nullptr || !parts->is_array()) {
    return InvalidField(
        where, absl::StrCat("type ", type ? Show(*type) : "absent",
                            ", want null, \"ByteLevel\", \"Fuse\" or a "
                            "\"Sequence\" of them"));
  }
  for (size_t i = 0; i < parts->size(); ++i) {
    RF_RETURN_IF_ERROR(
        CheckDecoder((*parts)[i], absl::StrCat(where, ".decoders[", i, "]")));
  }
  return absl::OkStatus();
}

// Checks the steps around the model. Only steps that leave the text alone are
// supported.
absl::Status CheckSurroundings(const json& root) {
  const json* normalizer = Find(root, "normalizer");
  if (normalizer != nullptr) {
    const json* list =
        normalizer->is_object() ? Find(*normalizer, "normalizers") : nullptr;
    const json* type =
        normalizer->is_object() ? Find(*normalizer, "type") : nullptr;
    if (type == nullptr || *type != "Sequence" || list == nullptr ||
        !list->is_array() || !list->empty()) {
      return InvalidField(
          "normalizer", absl::StrCat("type ", type ? Show(*type) : "absent",
                                     " is not supported, want null or an empty "
                                     "Sequence"));
    }
  }
  const json* decoder = Find(root, "decoder");
  return decoder == nullptr ? absl::OkStatus()
                            : CheckDecoder(*decoder, "decoder");
}

// The ids of a special token of a template, by the template's own table.
absl::StatusOr<std::vector<uint32_t>> TemplateIds(const json& processor,
                                                  const json& piece,
                                                  const std::string& where) {
  const json* name = piece.is_object() ? Find(piece, "id") : nullptr;
  const json* table = Find(processor, "special_tokens");
  const json* token =
      name != nullptr && name->is_string() && table != nullptr &&
              table->is_object()
          ? Find(*table, name->get_ref<const std::string&>().c_str())
          : nullptr;
  const json* list =
      token != nullptr && token->is_object() ? Find(*token, "ids") : nullptr;
  if (list == nullptr || !list->is_array()) {
    return InvalidField(
        where,
        absl::StrCat(name != nullptr ? Show(*name) : "a token without id",
                     " has no ids in special_tokens"));
  }
  std::vector<uint32_t> ids;
  for (const json& id : *list) {
    RF_ASSIGN_OR_RETURN(ids.emplace_back(), TokenId(id, where));
  }
  return ids;
}

// A TemplateProcessing may put tokens in front of the text, none behind it.
absl::Status ReadPromptTemplate(const json& processor, const std::string& where,
                                TokenizerSpec* spec) {
  const json* single = Find(processor, "single");
  if (single == nullptr || !single->is_array()) {
    return InvalidField(where, "TemplateProcessing has no array \"single\"");
  }
  std::vector<uint32_t> prefix;
  bool has_text = false;
  for (size_t i = 0; i < single->size(); ++i) {
    const json& piece = (*single)[i];
    const std::string place = absl::StrCat(where, ".single[", i, "]");
    const json* token =
        piece.is_object() ? Find(piece, "SpecialToken") : nullptr;
    const json* text = piece.is_object() ? Find(piece, "Sequence") : nullptr;
    if ((token == nullptr) == (text == nullptr)) {
      return InvalidField(place, absl::StrCat(Show(piece),
                                              ", want a SpecialToken or a "
                                              "Sequence"));
    }
    if (has_text) {
      return InvalidField(place,
                          "a template that adds something behind the text is "
                          "not supported");
    }
    if (text != nullptr) {
      has_text = true;
      continue;
    }
    RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                        TemplateIds(processor, *token, place));
    prefix.insert(prefix.end(), ids.begin(), ids.end());
  }
  if (!has_text) return InvalidField(where, "a template without a Sequence");
  spec->prefix.insert(spec->prefix.begin(), prefix.begin(), prefix.end());
  return absl::OkStatus();
}

// ByteLevel changes offsets alone. A Sequence is applied in its order.
absl::Status ReadPostProcessor(const json& processor, const std::string& where,
                               TokenizerSpec* spec) {
  const json* type = processor.is_object() ? Find(processor, "type") : nullptr;
  if (type != nullptr && *type == "ByteLevel") return absl::OkStatus();
  if (type != nullptr && *type == "TemplateProcessing") {
    return ReadPromptTemplate(processor, where, spec);
  }
  if (type == nullptr || *type != "Sequence") {
    return InvalidField(
        where, absl::StrCat("type ", type ? Show(*type) : "absent",
                            ", want null, \"ByteLevel\", "
                            "\"TemplateProcessing\" or a \"Sequence\" of "
                            "them"));
  }
  const json* parts = Find(processor, "processors");
  if (parts == nullptr || !parts->is_array()) {
    return InvalidField(where, "Sequence has no array \"processors\"");
  }
  for (size_t i = 0; i < parts->size(); ++i) {
    RF_RETURN_IF_ERROR(ReadPostProcessor(
        (*parts)[i], absl::StrCat(where, ".processors[", i, "]"), spec));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const json& merges, TokenizerSpec* spec) {
  spec->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    const std::string where = absl::StrCat("model.merges[", i, "]");
    std::string left, right;
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space != std::string::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    if (left.empty() || right.empty()) {
      return InvalidField(where,
                          absl::StrCat(Show(merge),
                                       ", want \"left right\" or [\"left\", "
                                       "\"right\"]"));
    }
    spec->merges.emplace_back(std::move(left), std::move(right));
  }
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> ReadAddedToken(const json& entry, const json& id,
                                          const std::string& where) {
  const json* content = entry.is_object() ? Find(entry, "content") : nullptr;
  if (content == nullptr || !content->is_string()) {
    return InvalidField(where, "needs a string \"content\" and an \"id\"");
  }
  AddedToken token;
  token.content = content->get<std::string>();
  if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
    return InvalidField(
        where, absl::StrCat("content of ", token.content.size(),
                            " bytes, want 1 to ", kMaxAddedTokenBytes));
  }
  RF_ASSIGN_OR_RETURN(token.id, TokenId(id, where));
  RF_ASSIGN_OR_RETURN(token.special, BoolField(entry, "special", where));
  RF_ASSIGN_OR_RETURN(token.lstrip, BoolField(entry, "lstrip", where));
  RF_ASSIGN_OR_RETURN(token.rstrip, BoolField(entry, "rstrip", where));
  RF_ASSIGN_OR_RETURN(token.normalized, BoolField(entry, "normalized", where));
  RF_ASSIGN_OR_RETURN(const bool single_word,
                      BoolField(entry, "single_word", where));
  if (single_word) return InvalidField(where, "single_word is not supported");
  return token;
}

absl::Status ReadAddedTokens(const json& list, TokenizerSpec* spec) {
  for (size_t i = 0; i < list.size(); ++i) {
    const json& entry = list[i];
    const std::string where = absl::StrCat("added_tokens[", i, "]");
    if (!entry.is_object()) return InvalidField(where, "is not an object");
    const json* id = Find(entry, "id");
    RF_ASSIGN_OR_RETURN(
        AddedToken token,
        ReadAddedToken(entry, id == nullptr ? json() : *id, where));
    spec->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// tokenizer_config.json has the ids as keys.
absl::Status ReadAddedTokensDecoder(const json& object,
                                    std::vector<AddedToken>* tokens) {
  constexpr char kField[] = "added_tokens_decoder";
  if (!object.is_object()) return InvalidField(kField, "is not an object");
  for (const auto& item : object.items()) {
    uint32_t id = 0;
    const std::string where = absl::StrCat(kField, "[\"", item.key(), "\"]");
    if (!absl::SimpleAtoi(item.key(), &id)) {
      return InvalidField(where, "the key is not an id");
    }
    RF_ASSIGN_OR_RETURN(AddedToken token,
                        ReadAddedToken(item.value(), id, where));
    tokens->push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Each id names one text and each text has one id.
absl::Status CheckIds(const TokenizerSpec& spec) {
  absl::flat_hash_map<uint32_t, absl::string_view> text_of;
  absl::flat_hash_map<absl::string_view, uint32_t> id_of;
  for (const auto& [text, id] : spec.vocab) {
    const auto inserted = text_of.emplace(id, text);
    if (!inserted.second) {
      return InvalidField(
          "model.vocab",
          absl::StrCat("id ", id, " names both \"", inserted.first->second,
                       "\" and \"", text, "\""));
    }
    id_of.emplace(text, id);
  }
  absl::flat_hash_map<absl::string_view, uint32_t> added;
  for (const AddedToken& token : spec.added_tokens) {
    const auto id = id_of.emplace(token.content, token.id).first;
    const auto text = text_of.emplace(token.id, token.content).first;
    if (id->second != token.id || text->second != token.content ||
        !added.emplace(token.content, token.id).second) {
      return InvalidField(
          "added_tokens",
          absl::StrCat("\"", token.content, "\" with id ", token.id,
                       " meets \"", text->second, "\" with id ", id->second));
    }
  }
  for (const uint32_t id : spec.prefix) {
    if (!text_of.contains(id)) {
      return InvalidField("post_processor",
                          absl::StrCat("id ", id, " names no token"));
    }
  }
  return absl::OkStatus();
}

// A token as tokenizer_config.json spells it: a string, or an object.
absl::Status ReadToken(const json& root, const char* key,
                       absl::optional<std::string>* out) {
  const json* value = Find(root, key);
  if (value == nullptr) return absl::OkStatus();
  if (value->is_object()) value = Find(*value, "content");
  if (value == nullptr || !value->is_string()) {
    return InvalidField(key, "is neither a string nor {\"content\": string}");
  }
  *out = value->get<std::string>();
  return absl::OkStatus();
}

// One template, or a list of named ones of which "default" counts. Without it
// the model has no template.
absl::Status ReadTemplate(const json& value, std::string* out) {
  const json named =
      value.is_array()
          ? value
          : json::array({{{"name", "default"}, {"template", value}}});
  for (size_t i = 0; i < named.size(); ++i) {
    const json& entry = named[i];
    const json* name = entry.is_object() ? Find(entry, "name") : nullptr;
    const json* source = entry.is_object() ? Find(entry, "template") : nullptr;
    if (name == nullptr || source == nullptr || !source->is_string()) {
      return InvalidField(
          "chat_template",
          "is neither a string nor a list of {\"name\", \"template\"}");
    }
    if (*name == "default") *out = source->get<std::string>();
  }
  return absl::OkStatus();
}

// The byte alphabet: the code point of each byte.
std::array<uint32_t, 256> MakeCodePointOfByte() {
  std::array<uint32_t, 256> code_point_of;
  uint32_t moved = 0x100;  // Bytes without a printable character come here.
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) ||
                           (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    code_point_of[byte] = printable ? byte : moved++;
  }
  return code_point_of;
}

const std::array<uint32_t, 256>& CodePointOfByte() {
  static const std::array<uint32_t, 256> kCodePointOf = MakeCodePointOfByte();
  return kCodePointOf;
}

// Byte of each code point of the byte alphabet, or -1.
std::array<int16_t, 0x144> MakeByteOfCodePoint() {
  std::array<int16_t, 0x144> byte_of;
  byte_of.fill(-1);
  for (int16_t byte = 0; byte < 256; ++byte) {
    byte_of[CodePointOfByte()[byte]] = byte;
  }
  return byte_of;
}

}  // namespace

absl::optional<std::string> BytesOfSpelling(absl::string_view text) {
  static const std::array<int16_t, 0x144> kByteOf = MakeByteOfCodePoint();
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = NextUtf8(text.substr(i));
    if (unit.kind != Utf8Unit::kCharacter ||
        unit.code_point >= kByteOf.size() || kByteOf[unit.code_point] < 0) {
      return absl::nullopt;
    }
    bytes.push_back(static_cast<char>(kByteOf[unit.code_point]));
    i += unit.size;
  }
  return bytes;
}

std::string SpellingOfBytes(absl::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    AppendUtf8(CodePointOfByte()[static_cast<uint8_t>(byte)], &text);
  }
  return text;
}

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(absl::string_view text) {
  RF_ASSIGN_OR_RETURN(const json root, Parse(text));
  RF_RETURN_IF_ERROR(CheckSurroundings(root));
  const json* model = Find(root, "model");
  if (model == nullptr || !model->is_object()) {
    return InvalidField("model", "is not an object");
  }
  RF_RETURN_IF_ERROR(CheckModelFields(*model));
  const json* vocab = Find(*model, "vocab");
  if (vocab == nullptr || !vocab->is_object() || vocab->empty()) {
    return InvalidField("model.vocab", "is not an object with tokens");
  }
  TokenizerSpec spec;
  spec.vocab.reserve(vocab->size());
  for (const auto& item : vocab->items()) {
    RF_ASSIGN_OR_RETURN(const uint32_t id,
                        TokenId(item.value(), absl::StrCat("model.vocab[\"",
                                                           item.key(), "\"]")));
    spec.vocab.emplace_back(item.key(), id);
  }
  RF_ASSIGN_OR_RETURN(spec.ignore_merges,
                      BoolField(*model, "ignore_merges", "model"));
  const json* merges = Find(*model, "merges");
  if (merges == nullptr || !merges->is_array()) {
    return InvalidField("model.merges", "is not an array");
  }
  RF_RETURN_IF_ERROR(ReadMerges(*merges, &spec));
  const json* added = Find(root, "added_tokens");
  if (added != nullptr) {
    if (!added->is_array())
      return InvalidField("added_tokens", "is not an array");
    RF_RETURN_IF_ERROR(ReadAddedTokens(*added, &spec));
  }
  const json* post_processor = Find(root, "post_processor");
  if (post_processor != nullptr) {
    RF_RETURN_IF_ERROR(
        ReadPostProcessor(*post_processor, "post_processor", &spec));
  }
  RF_RETURN_IF_ERROR(CheckIds(spec));
  const json* pre_tokenizer = Find(root, "pre_tokenizer");
  if (pre_tokenizer != nullptr) spec.pre_tokenizer = *pre_tokenizer;
  return spec;
}

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(absl::string_view text) {
  RF_ASSIGN_OR_RETURN(const json root, Parse(text));
  TokenizerConfig config;
  RF_RETURN_IF_ERROR(ReadToken(root, "bos_token", &config.bos_token));
  RF_RETURN_IF_ERROR(ReadToken(root, "eos_token", &config.eos_token));
  RF_ASSIGN_OR_RETURN(config.add_bos_token,
                      BoolField(root, "add_bos_token", "tokenizer_config"));
  RF_ASSIGN_OR_RETURN(const bool add_eos,
                      BoolField(root, "add_eos_token", "tokenizer_config"));
  if (add_eos) return InvalidField("add_eos_token", "true is not supported");
  if (config.add_bos_token && !config.bos_token.has_value()) {
    return InvalidField("add_bos_token", "true, but there is no bos_token");
  }
  const json* tokenizer_class = Find(root, "tokenizer_class");
  if (tokenizer_class != nullptr && tokenizer_class->is_string()) {
    config.tokenizer_class = tokenizer_class->get<std::string>();
  }
  const json* added = Find(root, "added_tokens_decoder");
  if (added != nullptr) {
    RF_RETURN_IF_ERROR(ReadAddedTokensDecoder(*added, &config.added_tokens));
  }
  const json* chat_template = Find(root, "chat_template");
  if (chat_template != nullptr) {
    RF_RETURN_IF_ERROR(ReadTemplate(*chat_template, &config.chat_template));
  }
  return config;
}

absl::StatusOr<std::string> ParseChatTemplateJson(absl::string_view text) {
  RF_ASSIGN_OR_RETURN(const json root, Parse(text));
  const json* chat_template = Find(root, "chat_template");
  if (chat_template == nullptr) {
    return InvalidField("chat_template", "is missing");
  }
  std::string source;
  RF_RETURN_IF_ERROR(ReadTemplate(*chat_template, &source));
  return source;
}

absl::StatusOr<absl::optional<uint32_t>> ParseVocabSize(
    absl::string_view text) {
  RF_ASSIGN_OR_RETURN(const json root, Parse(text));
  const json* size = Find(root, "vocab_size");
  const json* inner = Find(root, "text_config");
  if (size == nullptr && inner != nullptr && inner->is_object()) {
    size = Find(*inner, "vocab_size");
  }
  if (size == nullptr) return absl::optional<uint32_t>();
  if (!size->is_number_unsigned() || *size > TokenizerSpec::kMaxTokenId) {
    return InvalidField("vocab_size", absl::StrCat(Show(*size), ", want 0 to ",
                                                   TokenizerSpec::kMaxTokenId));
  }
  return absl::optional<uint32_t>(size->get<uint32_t>());
}

absl::Status AddTokens(const std::vector<AddedToken>& tokens,
                       TokenizerSpec* spec) {
  absl::flat_hash_map<std::string, size_t> index_of;
  for (size_t i = 0; i < spec->added_tokens.size(); ++i) {
    index_of.emplace(spec->added_tokens[i].content, i);
  }
  for (const AddedToken& token : tokens) {
    const auto known = index_of.find(token.content);
    if (known == index_of.end()) {
      spec->added_tokens.push_back(token);
      continue;
    }
    AddedToken& other = spec->added_tokens[known->second];
    if (other.id != token.id) {
      return InvalidField(
          "added_tokens_decoder",
          absl::StrCat("\"", token.content, "\" with id ", token.id,
                       ", but tokenizer.json gives it ", other.id));
    }
    other.special |= token.special;
  }
  return spec->added_tokens.size() == index_of.size() ? absl::OkStatus()
                                                      : CheckIds(*spec);
}

}  // namespace ringfleet::coordinator
