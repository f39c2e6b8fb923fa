// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tokenizer.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/process/status_macros.h"
#include "coordinator/tokenizer/tiktoken_model.h"
#include "coordinator/tokenizer/tokenizer_files.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

// R1's tokenizer.json has 8 MB.
constexpr uint64_t kMaxFileBytes = 256 << 20;
constexpr size_t kTrimBytes = 1 << 20;

// Calls on_gap(text) and on_token(id) for the parts of `text` in order; the
// gaps are not empty.
template <typename OnGap, typename OnToken>
absl::Status ForEachPart(const AddedTokenMatcher& matcher,
                         absl::string_view text,
                         AddedTokenMatcher::Accept accept, OnGap on_gap,
                         OnToken on_token) {
  size_t done = 0;
  size_t from = 0;
  while (from < text.size()) {
    const auto match = matcher.Find(text, from, done, accept);
    const size_t end = match.has_value() ? match->begin : text.size();
    if (end > done) RF_RETURN_IF_ERROR(on_gap(text.substr(done, end - done)));
    if (!match.has_value()) break;
    on_token(match->id);
    done = match->end;
    from = match->next;
  }
  return absl::OkStatus();
}

// The files of a model that may be absent.
class ModelFiles {
 public:
  explicit ModelFiles(const std::string& model) : model_(model) {}

  // Returns nothing if the model has no such file.
  absl::StatusOr<absl::optional<std::string>> Read(absl::string_view name) {
    path_ = absl::StrCat(model_, "/", name);
    absl::StatusOr<std::string> text =
        cluster::ReadModelFile(model_, name, kMaxFileBytes);
    if (absl::IsNotFound(text.status())) return absl::optional<std::string>();
    if (!text.ok()) return text.status();
    return absl::make_optional(*std::move(text));
  }

  // The file that was read last.
  const std::string& path() const { return path_; }

 private:
  const std::string model_;
  std::string path_;
};

absl::StatusOr<TokenizerSpec> ReadVocabulary(ModelFiles* files) {
  RF_ASSIGN_OR_RETURN(absl::optional<std::string> text,
                      files->Read("tokenizer.json"));
  absl::StatusOr<TokenizerSpec> spec;
  if (text.has_value()) {
    spec = ParseTokenizerJson(*text);
  } else {
    RF_ASSIGN_OR_RETURN(text, files->Read("tiktoken.model"));
    if (!text.has_value()) {
      return absl::NotFoundError(
          absl::StrCat(files->path(), ": no such file, nor tokenizer.json"));
    }
    spec = ParseTiktokenModel(*text);
  }
  if (!spec.ok()) return Annotate(spec.status(), files->path());
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    const std::string& model) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
  ModelFiles files(model);
  RF_ASSIGN_OR_RETURN(const absl::optional<std::string> config_text,
                      files.Read("tokenizer_config.json"));
  absl::StatusOr<TokenizerConfig> config = TokenizerConfig();
  if (config_text.has_value()) config = ParseTokenizerConfig(*config_text);
  const std::string config_path = files.path();
  if (!config.ok()) return Annotate(config.status(), config_path);

  RF_ASSIGN_OR_RETURN(TokenizerSpec spec, ReadVocabulary(&files));
  const std::string vocabulary_path = files.path();
  RF_RETURN_IF_ERROR(
      Annotate(AddTokens(config->added_tokens, &spec), config_path));
  if (spec.merges_by_id) {
    // The file has no expression: that of one class is known.
    if (!config->tokenizer_class.empty() &&
        config->tokenizer_class != "TikTokenTokenizer") {
      return absl::InvalidArgumentError(absl::StrCat(
          config_path, ": tokenizer_class: \"", config->tokenizer_class,
          "\" with tiktoken.model, want \"TikTokenTokenizer\""));
    }
    RF_ASSIGN_OR_RETURN(const absl::optional<std::string> model_config,
                        files.Read("config.json"));
    absl::StatusOr<absl::optional<uint32_t>> vocab_size =
        absl::optional<uint32_t>();
    if (model_config.has_value()) vocab_size = ParseVocabSize(*model_config);
    if (!vocab_size.ok()) return Annotate(vocab_size.status(), files.path());
    RF_RETURN_IF_ERROR(
        Annotate(AddReservedTokens(*vocab_size, &spec), vocabulary_path));
  }
  RF_RETURN_IF_ERROR(Annotate(tokenizer->Build(spec), vocabulary_path));
  RF_RETURN_IF_ERROR(Annotate(tokenizer->Configure(*config), config_path));

  RF_ASSIGN_OR_RETURN(absl::optional<std::string> chat_template,
                      files.Read("chat_template.jinja"));
  if (chat_template.has_value()) {
    tokenizer->chat_template_ = *std::move(chat_template);
    return tokenizer;
  }
  if (!tokenizer->chat_template_.empty()) return tokenizer;
  RF_ASSIGN_OR_RETURN(const absl::optional<std::string> processor,
                      files.Read("chat_template.json"));
  if (processor.has_value()) {
    absl::StatusOr<std::string> source = ParseChatTemplateJson(*processor);
    if (!source.ok()) return Annotate(source.status(), files.path());
    tokenizer->chat_template_ = *std::move(source);
  }
  return tokenizer;
}

absl::Status Tokenizer::Build(const TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(pre_tokenizer_, PreTokenizer::Parse(spec.pre_tokenizer));
  uint32_t limit = 0;
  for (const auto& entry : spec.vocab)
    limit = std::max(limit, entry.second + 1);
  for (const AddedToken& token : spec.added_tokens) {
    limit = std::max(limit, token.id + 1);
  }
  tokens_.resize(limit);

  for (const auto& [spelling, id] : spec.vocab) {
    const absl::optional<std::string> bytes = BytesOfSpelling(spelling);
    tokens_[id].bytes = bytes.value_or(spelling);
    if (!bytes.has_value()) continue;  // Only an added token can yield it.
    if (bytes->size() == 1) bpe_.SetByte(static_cast<uint8_t>((*bytes)[0]), id);
    const bool whole = spec.ignore_merges || spec.merges_by_id;
    if (whole && !bytes->empty()) bpe_.AddWhole(*bytes, id);
  }
  if (spec.merges_by_id) {
    AddMergesById(spec);
  } else {
    RF_RETURN_IF_ERROR(AddListedMerges(spec));
  }
  for (const AddedToken& token : spec.added_tokens) {
    tokens_[token.id].bytes = token.content;
    tokens_[token.id].special = token.special;
    (token.normalized ? normalized_ : verbatim_).Add(token);
  }
  prefix_ = spec.prefix;

  const auto strips = [](const AddedToken& token) {
    return token.lstrip || token.rstrip;
  };
  if (pre_tokenizer_->keeps_text() &&
      std::none_of(spec.added_tokens.begin(), spec.added_tokens.end(),
                   strips)) {
    size_t most = 1;
    for (const Token& token : tokens_) {
      most = std::max(most, token.bytes.size());
    }
    most_bytes_of_token_ = most;
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::AddListedMerges(const TokenizerSpec& spec) {
  absl::flat_hash_map<absl::string_view, uint32_t> id_of;
  id_of.reserve(spec.vocab.size());
  for (const auto& [spelling, id] : spec.vocab) id_of.emplace(spelling, id);
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const std::string merged = absl::StrCat(left, right);
    for (const std::string* name : {&left, &right, &merged}) {
      if (!id_of.contains(*name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("model.merges[", rank, "]: \"", *name,
                         "\" is not in the vocabulary"));
      }
    }
    bpe_.AddMerge(id_of[left], id_of[right], static_cast<uint32_t>(rank),
                  id_of[merged]);
  }
  return absl::OkStatus();
}

// A merge joins two tokens. So a pair's joined bytes have an id exactly if the
// pair is one of the ways to divide that token into two.
void Tokenizer::AddMergesById(const TokenizerSpec& spec) {
  absl::flat_hash_map<absl::string_view, uint32_t> id_of;
  id_of.reserve(spec.vocab.size());
  for (const auto& entry : spec.vocab) {
    id_of.emplace(tokens_[entry.second].bytes, entry.second);
  }
  for (const auto& [bytes, id] : id_of) {
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = id_of.find(bytes.substr(0, cut));
      const auto right = id_of.find(bytes.substr(cut));
      if (left == id_of.end() || right == id_of.end()) continue;
      bpe_.AddMerge(left->second, right->second, id, id);
    }
  }
}

absl::Status Tokenizer::Configure(const TokenizerConfig& config) {
  if (config.bos_token.has_value()) {
    bos_token_ = *config.bos_token;
    RF_ASSIGN_OR_RETURN(bos_id_, FindToken(bos_token_));
  }
  if (config.eos_token.has_value()) {
    eos_token_ = *config.eos_token;
    RF_ASSIGN_OR_RETURN(eos_id_, FindToken(eos_token_));
  }
  if (config.add_bos_token && !add_bos()) {
    prefix_.insert(prefix_.begin(), *bos_id_);
  }
  chat_template_ = config.chat_template;
  return absl::OkStatus();
}

// The id of a token given by its text, as bos_token and eos_token are.
absl::StatusOr<uint32_t> Tokenizer::FindToken(const std::string& text) const {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!text.empty() && tokens_[id].bytes == text) {
      return static_cast<uint32_t>(id);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("token \"", text, "\" is not in the vocabulary"));
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::Encode(
    absl::string_view text) const {
  return EncodeAccepted(text,
                        [](const AddedToken&, size_t, size_t) { return true; });
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::Encode(
    const MarkedText& prompt) const {
  return EncodeAccepted(prompt.bytes(), [&](const AddedToken& token,
                                            size_t begin, size_t end) {
    return !IsControl(token) || prompt.IsAllOf(Origin::kTemplate, begin, end);
  });
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::EncodeAccepted(
    absl::string_view text, AddedTokenMatcher::Accept accept) const {
  if (text.size() > Bpe::kMaxPieceBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text of ", text.size(), " bytes, want at most ", Bpe::kMaxPieceBytes));
  }
  RF_RETURN_IF_ERROR(CheckUtf8(text));
  std::vector<uint32_t> ids;
  Bpe::Scratch scratch;
  const auto on_token = [&](uint32_t id) { ids.push_back(id); };
  RF_RETURN_IF_ERROR(ForEachPart(
      verbatim_, text, accept,
      [&](absl::string_view gap) {
        const size_t offset = gap.data() - text.data();
        return ForEachPart(
            normalized_, gap,
            [&](const AddedToken& token, size_t begin, size_t end) {
              return accept(token, offset + begin, offset + end);
            },
            [&](absl::string_view plain) {
              return EncodePlain(plain, &scratch, &ids);
            },
            on_token);
      },
      on_token));
  // A long text needs many times its size for a moment. The allocator would
  // keep it.
  if (text.size() >= kTrimBytes) malloc_trim(0);
  return ids;
}

absl::Status Tokenizer::EncodePlain(absl::string_view text,
                                    Bpe::Scratch* scratch,
                                    std::vector<uint32_t>* ids) const {
  std::vector<absl::string_view> pieces;
  RF_RETURN_IF_ERROR(pre_tokenizer_->Split(text, &pieces));
  for (const absl::string_view piece : pieces) {
    RF_RETURN_IF_ERROR(bpe_.Encode(piece, scratch, ids));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::EncodePrompt(
    absl::string_view text) const {
  RF_ASSIGN_OR_RETURN(std::vector<uint32_t> ids, Encode(text));
  if (ids.size() < prefix_.size() ||
      !std::equal(prefix_.begin(), prefix_.end(), ids.begin())) {
    ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
  }
  return ids;
}

bool Tokenizer::add_bos() const {
  return bos_id_.has_value() &&
         std::find(prefix_.begin(), prefix_.end(), *bos_id_) != prefix_.end();
}

absl::string_view Tokenizer::TokenBytes(uint32_t id) const {
  return id < tokens_.size() ? absl::string_view(tokens_[id].bytes)
                             : absl::string_view();
}

bool Tokenizer::IsSpecial(uint32_t id) const {
  return id < tokens_.size() && tokens_[id].special;
}

std::string Tokenizer::Decode(absl::Span<const uint32_t> ids,
                              bool keep_special) const {
  std::string bytes;
  for (const uint32_t id : ids) {
    if (keep_special || !IsSpecial(id)) absl::StrAppend(&bytes, TokenBytes(id));
  }
  std::string text;
  AppendLossy(bytes, &text);
  return text;
}

absl::Status CheckTokenIds(absl::Span<const uint32_t> ids) {
  constexpr uint32_t kBound = uint32_t{1} << 31;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= kBound) {
      return absl::InvalidArgumentError(absl::StrCat(
          "id ", ids[i], " at index ", i, ", want less than ", kBound));
    }
  }
  return absl::OkStatus();
}

std::string StreamDecoder::Add(uint32_t id) {
  std::string text;
  if (tokenizer_->IsSpecial(id) &&
      std::find(kept_.begin(), kept_.end(), id) == kept_.end()) {
    return text;
  }
  absl::StrAppend(&pending_, tokenizer_->TokenBytes(id));
  pending_.erase(0, AppendWholeCharacters(pending_, &text));
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  AppendLossy(pending_, &text);
  pending_.clear();
  return text;
}

}  // namespace ringfleet::coordinator
