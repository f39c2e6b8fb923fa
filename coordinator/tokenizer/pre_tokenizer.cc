// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/tokenizer/split_expression.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
// A deleter by one of PCRE2's functions.
template <auto kFree>
struct Pcre2Free {
  template <typename T>
  void operator()(T* p) const {
    kFree(p);
  }
};

namespace {

using nlohmann::json;

// ByteLevel splits by this pattern if its use_regex is true (GPT-2's
// encoder.py).
constexpr char kGpt2Regex[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Backtracking memory for one match: a group that repeats needs some for each
// repetition. The compiled matcher takes 16 bytes for a group of a lookahead
// and a class, the interpreter 150.
constexpr size_t kMatchBytes = 64 << 20;
constexpr size_t kMatchBytesPerByte = 256;
constexpr size_t kFirstStackBytes = 1 << 20;

using CompileContext = std::unique_ptr<pcre2_compile_context,
                                       Pcre2Free<pcre2_compile_context_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Pcre2Free<pcre2_match_context_free>>;
using JitStack =
    std::unique_ptr<pcre2_jit_stack, Pcre2Free<pcre2_jit_stack_free>>;
using MatchData =
    std::unique_ptr<pcre2_match_data, Pcre2Free<pcre2_match_data_free>>;

std::string Pcre2Message(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof(text)) < 0) {
    return absl::StrCat("PCRE2 error ", code);
  }
  return reinterpret_cast<const char*>(text);
}

absl::Status InvalidRule(absl::string_view where, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", message));
}

absl::StatusOr<std::string> StringField(const json& object, const char* key,
                                        absl::string_view where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    return InvalidRule(where, absl::StrCat("\"", key, "\" is not a string"));
  }
  return found->get<std::string>();
}

absl::StatusOr<bool> BoolField(const json& object, const char* key,
                               bool fallback, absl::string_view where) {
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  if (!found->is_boolean()) {
    return InvalidRule(where, absl::StrCat("\"", key, "\" is not a boolean"));
  }
  return found->get<bool>();
}

// State that the calls of pcre2_match for one text share.
struct MatchMemory {
  explicit MatchMemory(size_t text_size)
      : bytes(kMatchBytes + kMatchBytesPerByte * text_size),
        context(pcre2_match_context_create(nullptr)),
        data(pcre2_match_data_create(1, nullptr)) {
    pcre2_set_heap_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(
                                            bytes / 1024, 0xFFFFFFFF)));
  }

  // Gives the compiled matcher more than the thread's own stack.
  void GrowStack() {
    stack.reset(pcre2_jit_stack_create(kFirstStackBytes, bytes, nullptr));
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  const size_t bytes;
  JitStack stack;
  MatchContext context;
  MatchData data;
};

}  // namespace

// One expression and what becomes of its matches and of the gaps between them.
class PreTokenizer::Rule {
 public:
  static absl::StatusOr<std::unique_ptr<Rule>> Compile(
      const std::string& pattern, bool literal, absl::string_view where) {
    std::string spelled = pattern;
    if (!literal) {
      absl::StatusOr<std::string> translated = TranslateExpression(pattern);
      if (!translated.ok()) {
        return InvalidRule(where, absl::StrCat("expression \"", pattern, "\": ",
                                               translated.status().message()));
      }
      spelled = *std::move(translated);
    }
    CompileContext context(pcre2_compile_context_create(nullptr));
    // As in the engine that these files are written for, ^ and $ match at
    // every line.
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    const uint32_t options =
        PCRE2_UTF |
        (literal ? PCRE2_LITERAL
                 : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto rule = std::make_unique<Rule>();
    rule->code_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()),
                      spelled.size(), options, &error, &offset, context.get()));
    if (rule->code_ == nullptr) {
      return InvalidRule(where, absl::StrCat("expression \"", pattern,
                                             "\": ", Pcre2Message(error)));
    }
    // Where there is no JIT compiler, pcre2_match interprets.
    pcre2_jit_compile(rule->code_.get(), PCRE2_JIT_COMPLETE);
    return rule;
  }

  void Keep(bool matches, bool gaps) {
    keep_matches_ = matches;
    keep_gaps_ = gaps;
  }

  // Appends the pieces of `text`.
  absl::Status Split(absl::string_view text, MatchMemory* memory,
                     std::vector<absl::string_view>* pieces) const {
    // Backtracking over a run of the text is legitimate, exponential time is
    // not: the limit is linear in the text.
    const size_t limit = 1'000'000 + 16 * text.size();
    pcre2_set_match_limit(
        memory->context.get(),
        static_cast<uint32_t>(std::min<size_t>(limit, 0xFFFFFFFF)));
    const auto add = [&](size_t begin, size_t end, bool keep) {
      if (keep && begin < end)
        pieces->push_back(text.substr(begin, end - begin));
    };
    size_t done = 0;  // End of the last piece.
    size_t from = 0;  // Where the search goes on.
    while (from < text.size()) {
      int found = Match(text, from, *memory);
      if (found == PCRE2_ERROR_JIT_STACKLIMIT && memory->stack == nullptr) {
        memory->GrowStack();
        found = Match(text, from, *memory);
      }
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("text cannot be split at offset ", from, ": ",
                         Pcre2Message(found)));
      }
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(memory->data.get());
      const size_t begin = std::max(range[0], done);  // \K may move it back.
      const size_t end = std::max(range[1], begin);
      add(done, begin, keep_gaps_);
      add(begin, end, keep_matches_);
      done = end;
      from = end;
      if (begin == end && end < text.size()) {
        from += NextUtf8(text.substr(end)).size;
      }
    }
    add(done, text.size(), keep_gaps_);
    return absl::OkStatus();
  }

 private:
  int Match(absl::string_view text, size_t from,
            const MatchMemory& memory) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), from, PCRE2_NO_UTF_CHECK, memory.data.get(),
                       memory.context.get());
  }

  std::unique_ptr<pcre2_code, Pcre2Free<pcre2_code_free>> code_;
  bool keep_matches_ = true;
  bool keep_gaps_ = true;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

// Adds what one pre-tokenizer other than a Sequence does.
absl::Status PreTokenizer::AddRules(const json& spec, const char* where) {
  if (!spec.is_object()) return InvalidRule(where, "is not an object");
  RF_ASSIGN_OR_RETURN(const std::string type, StringField(spec, "type", where));
  if (type == "ByteLevel") {
    RF_ASSIGN_OR_RETURN(const bool prefix,
                        BoolField(spec, "add_prefix_space", true, where));
    if (prefix) {
      return InvalidRule(where,
                         "ByteLevel add_prefix_space true is not supported");
    }
    RF_ASSIGN_OR_RETURN(const bool use_regex,
                        BoolField(spec, "use_regex", true, where));
    if (use_regex) {
      RF_ASSIGN_OR_RETURN(auto rule, Rule::Compile(kGpt2Regex, false, where));
      rules_.push_back(std::move(rule));
    }
    return absl::OkStatus();
  }
  if (type == "Digits") {
    RF_ASSIGN_OR_RETURN(const bool individual,
                        BoolField(spec, "individual_digits", false, where));
    RF_ASSIGN_OR_RETURN(
        auto rule,
        Rule::Compile(individual ? "\\p{N}" : "\\p{N}+", false, where));
    rules_.push_back(std::move(rule));
    return absl::OkStatus();
  }
  if (type != "Split") {
    return InvalidRule(
        where, absl::StrCat("type \"", type,
                            "\" is not supported, want Split, Digits or "
                            "ByteLevel"));
  }
  const auto pattern = spec.find("pattern");
  if (pattern == spec.end() || !pattern->is_object() || pattern->size() != 1) {
    return InvalidRule(
        where, "\"pattern\" is not {\"Regex\": ...} or {\"String\": ...}");
  }
  const bool literal = pattern->contains("String");
  RF_ASSIGN_OR_RETURN(
      const std::string text,
      StringField(*pattern, literal ? "String" : "Regex", where));
  RF_ASSIGN_OR_RETURN(const std::string behavior,
                      StringField(spec, "behavior", where));
  RF_ASSIGN_OR_RETURN(const bool invert,
                      BoolField(spec, "invert", false, where));
  if (behavior != "Isolated" && behavior != "Removed") {
    return InvalidRule(where,
                       absl::StrCat("behavior \"", behavior,
                                    "\" is not supported, want Isolated or "
                                    "Removed"));
  }
  RF_ASSIGN_OR_RETURN(auto rule, Rule::Compile(text, literal, where));
  if (behavior == "Removed") {
    rule->Keep(invert, !invert);
    keeps_text_ = false;
  }
  rules_.push_back(std::move(rule));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Parse(
    const json& spec) {
  constexpr char kWhere[] = "pre_tokenizer";
  if (!spec.is_object()) {
    return InvalidRule(kWhere,
                       "is not an object, want ByteLevel or a Sequence");
  }
  std::unique_ptr<PreTokenizer> result(new PreTokenizer);
  RF_ASSIGN_OR_RETURN(const std::string type,
                      StringField(spec, "type", kWhere));
  if (type != "Sequence") {
    if (type != "ByteLevel") {
      return InvalidRule(kWhere, absl::StrCat("type \"", type,
                                              "\" is not supported alone, want "
                                              "ByteLevel or a Sequence"));
    }
    RF_RETURN_IF_ERROR(result->AddRules(spec, kWhere));
    return result;
  }
  const auto parts = spec.find("pretokenizers");
  if (parts == spec.end() || !parts->is_array()) {
    return InvalidRule(kWhere, "\"pretokenizers\" is not an array");
  }
  for (size_t i = 0; i < parts->size(); ++i) {
    const json& part = (*parts)[i];
    const std::string where =
        absl::StrCat("pre_tokenizer.pretokenizers[", i, "]");
    RF_RETURN_IF_ERROR(result->AddRules(part, where.c_str()));
    // Later parts would see bytes spelled as characters.
    const bool byte_level = part.at("type") == "ByteLevel";
    if (byte_level != (i + 1 == parts->size())) {
      return InvalidRule(where,
                         "ByteLevel must be the last part, and only that");
    }
  }
  if (parts->empty()) return InvalidRule(kWhere, "has no ByteLevel part");
  return result;
}

absl::Status PreTokenizer::Split(absl::string_view text,
                                 std::vector<absl::string_view>* pieces) const {
  if (text.empty()) return absl::OkStatus();
  MatchMemory memory(text.size());
  std::vector<absl::string_view> current = {text};
  std::vector<absl::string_view> next;
  for (const auto& rule : rules_) {
    next.clear();
    for (const absl::string_view piece : current) {
      RF_RETURN_IF_ERROR(rule->Split(piece, &memory, &next));
    }
    current.swap(next);
  }
  pieces->insert(pieces->end(), current.begin(), current.end());
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator
