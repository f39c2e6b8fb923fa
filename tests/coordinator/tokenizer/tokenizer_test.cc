// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/tokenizer/utf8.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kModels[] = RINGFLEET_SOURCE_DIR "/tests/models/";

std::unique_ptr<Tokenizer> LoadModel(const std::string& name) {
  auto loaded = Tokenizer::Load(kModels + name);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *std::move(loaded) : nullptr;
}

// A model folder of its own for each test.
class TokenizerFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = {{"added_tokens",
                   {{{"id", 0}, {"content", "<s>"}, {"special", true}},
                    {{"id", 9}, {"content", "<x>"}}}},
                  {"normalizer", nullptr},
                  {"pre_tokenizer",
                   {{"type", "ByteLevel"},
                    {"add_prefix_space", false},
                    {"use_regex", false}}},
                  {"model",
                   {{"type", "BPE"},
                    {"vocab",
                     {{"<s>", 0},
                      {"a", 1},
                      {"b", 2},
                      {"\u0120", 3},
                      {"ab", 4},
                      {"abab", 5},
                      {"\u00c3", 6},
                      {"\u00a9", 7}}},
                    {"merges", {"a b", "ab ab"}}}}};
    config_ = {{"bos_token", "<s>"}, {"add_bos_token", true}};
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.File(name), std::ios::binary) << text;
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() const {
    Write("tokenizer.json", tokenizer_.dump());
    Write("tokenizer_config.json", config_.dump());
    return Tokenizer::Load(folder_.path());
  }
  std::unique_ptr<Tokenizer> LoadOk() const {
    auto loaded = Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }
  // The message of the INVALID_ARGUMENT that loading returns.
  std::string Problem() const {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
  // The same with one value of tokenizer.json replaced.
  std::string ProblemWith(const std::string& pointer, const json& value) {
    const json saved = tokenizer_;
    tokenizer_[json::json_pointer(pointer)] = value;
    const std::string problem = Problem();
    tokenizer_ = saved;
    return problem;
  }

  testing::TempDir folder_;
  json tokenizer_, config_;
};

TEST(TokenizerTest, BundledModelsReadTheirSpecialTokens) {
  for (const char* name : {"tiny-v2", "tiny-v2-lite", "tiny-v3"}) {
    const auto tokenizer = LoadModel(name);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->bos_id(), 0u);
    EXPECT_EQ(tokenizer->eos_id(), 1u);
    EXPECT_TRUE(tokenizer->add_bos());
    EXPECT_EQ(tokenizer->id_limit(), 2044u);
    EXPECT_EQ(tokenizer->eos_token(),
              "<\uff5cend\u2581of\u2581sentence\uff5c>");
    EXPECT_EQ(tokenizer->TokenBytes(1), tokenizer->eos_token());
    EXPECT_TRUE(tokenizer->IsSpecial(1));
    EXPECT_FALSE(tokenizer->IsSpecial(2040));
    EXPECT_EQ(tokenizer->TokenBytes(2040), "<think>");
    EXPECT_THAT(tokenizer->chat_template(), HasSubstr("bos_token"));
    EXPECT_EQ(tokenizer->TokenBytes(2044), "");
    EXPECT_FALSE(tokenizer->IsSpecial(0xFFFFFFFF));
    EXPECT_EQ(tokenizer->TokenBytes(0xFFFFFFFF), "");
  }
}

// Each piece of the trained vocabulary must encode to itself: a token made by
// merges is what its own bytes merge to, unless another merge comes first.
TEST(TokenizerTest, MostTokensEncodeToThemselves) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  int same = 0;
  int utf8 = 0;
  for (uint32_t id = 0; id < tokenizer->id_limit(); ++id) {
    const absl::string_view bytes = tokenizer->TokenBytes(id);
    if (!CheckUtf8(bytes).ok()) continue;
    ++utf8;
    const auto ids = tokenizer->Encode(bytes);
    ASSERT_TRUE(ids.ok());
    same += *ids == std::vector<uint32_t>{id};
  }
  EXPECT_GT(utf8, 1500);
  EXPECT_GT(same, utf8 * 9 / 10);
}

TEST(TokenizerTest, EncodeThenDecodeGivesTheText) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    const int length = random() % 60;
    for (int i = 0; i < length; ++i) {
      switch (random() % 6) {
        case 0:
          text += "<think>";
          break;
        case 1:
          text += "<\uff5cUser\uff5c>";
          break;
        case 2: {
          const uint32_t code_point = random() % 0x110000;
          AppendUtf8(
              code_point >= 0xD800 && code_point <= 0xDFFF ? ' ' : code_point,
              &text);
          break;
        }
        default:
          text.push_back(static_cast<char>(random() % 128));
      }
    }
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(tokenizer->Decode(*ids, true), text);
  }
}

TEST(TokenizerTest, RandomBytesAreRefusedOrKept) {
  const auto tokenizer = LoadModel("tiny-v2");
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    const int length = random() % 12;
    for (int i = 0; i < length; ++i) {
      text.push_back(static_cast<char>(random() % 2 ? random() : 'a'));
    }
    const auto ids = tokenizer->Encode(text);
    EXPECT_EQ(ids.ok(), CheckUtf8(text).ok());
    if (ids.ok()) {
      EXPECT_EQ(tokenizer->Decode(*ids, true), text);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(TokenizerTest, InvalidUtf8NamesTheOffset) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  const auto ids = tokenizer->Encode("abc\xFFz");
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("offset 3"));
}

TEST(TokenizerTest, APromptGetsBosInFront) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  const auto plain = tokenizer->Encode("Once upon");
  auto prompt = tokenizer->EncodePrompt("Once upon");
  ASSERT_TRUE(plain.ok() && prompt.ok());
  EXPECT_EQ(prompt->front(), 0u);
  prompt->erase(prompt->begin());
  EXPECT_EQ(*prompt, *plain);
  EXPECT_THAT(*tokenizer->EncodePrompt(""), ElementsAre(0));
}

TEST(TokenizerTest, DecodeLeavesOutSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<uint32_t> ids = {0, 2040, 1, 5000, 0xFFFFFFFF};
  EXPECT_EQ(tokenizer->Decode(ids, false), "<think>");
  EXPECT_EQ(tokenizer->Decode(ids, true),
            tokenizer->bos_token() + "<think>" + tokenizer->eos_token());
}

TEST(TokenizerTest, AMegabyteWithoutSpacesEncodes) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  const std::string text(1 << 20, 'a');
  const auto ids = tokenizer->Encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_TRUE(tokenizer->Decode(*ids, true) == text);
}

TEST(StreamDecoderTest, EqualsDecodeOnRandomIds) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(3);
  StreamDecoder stream(tokenizer.get());
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint32_t> ids;
    const int length = random() % 20;
    for (int i = 0; i < length; ++i) {
      // Half of them single bytes, which seldom make characters.
      ids.push_back(random() % (random() % 2 ? 260 : 2100));
    }
    std::string text;
    for (const uint32_t id : ids) {
      const std::string grown = stream.Add(id);
      EXPECT_TRUE(CheckUtf8(grown).ok());
      text += grown;
    }
    text += stream.Finish();
    EXPECT_EQ(text, tokenizer->Decode(ids, false));
  }
}

// Cuts a text of characters of every length at each byte, by single-byte
// tokens, and ends the stream there.
TEST(StreamDecoderTest, HoldsBackIncompleteCharactersAtEverySplit) {
  const auto tokenizer = LoadModel("tiny-v3");
  ASSERT_NE(tokenizer, nullptr);
  std::vector<uint32_t> id_of_byte(256);
  for (uint32_t id = 0; id < tokenizer->id_limit(); ++id) {
    const absl::string_view bytes = tokenizer->TokenBytes(id);
    if (bytes.size() == 1) id_of_byte[static_cast<uint8_t>(bytes[0])] = id;
  }
  const std::string text = "a\u00e9\u4e16\U0001F642b";
  for (size_t split = 0; split <= text.size(); ++split) {
    StreamDecoder stream(tokenizer.get());
    std::vector<uint32_t> ids;
    std::string out;
    for (size_t i = 0; i < split; ++i) {
      ids.push_back(id_of_byte[static_cast<uint8_t>(text[i])]);
      out += stream.Add(ids.back());
      EXPECT_EQ(text.substr(0, out.size()), out);  // No U+FFFD so far.
    }
    out += stream.Finish();
    EXPECT_EQ(out, tokenizer->Decode(ids, false)) << split;
    EXPECT_EQ(stream.Finish(), "");
  }
}

TEST_F(TokenizerFilesTest, ASmallVocabularyMerges) {
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("ababab b"), ElementsAre(5, 4, 3, 2));
  EXPECT_THAT(*tokenizer->Encode("a<x>b<s>\u00e9"),
              ElementsAre(1, 9, 2, 0, 6, 7));
  EXPECT_EQ(tokenizer->id_limit(), 10u);
  EXPECT_EQ(tokenizer->TokenBytes(8), "");
  EXPECT_EQ(tokenizer->TokenBytes(3), " ");
  EXPECT_EQ(tokenizer->eos_id(), absl::nullopt);
  EXPECT_EQ(tokenizer->eos_token(), "");
  EXPECT_EQ(tokenizer->chat_template(), "");
}

TEST_F(TokenizerFilesTest, TextOutsideTheVocabularyIsAnError) {
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  const auto ids = tokenizer->Encode("z");
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("0x7a"));
}

TEST_F(TokenizerFilesTest, AddedTokensMatchLeftmostThenLongest) {
  tokenizer_["added_tokens"] = {{{"id", 10}, {"content", "ab"}},
                                {{"id", 11}, {"content", "abba"}},
                                {{"id", 12}, {"content", "bbbb"}}};
  tokenizer_["model"]["vocab"].erase("ab");
  tokenizer_["model"]["merges"] = json::array();
  config_ = json::object();
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("abba"), ElementsAre(11));
  EXPECT_THAT(*tokenizer->Encode("abbb"), ElementsAre(10, 2, 2));
  EXPECT_THAT(*tokenizer->Encode("abbbbb"), ElementsAre(10, 12));
  EXPECT_THAT(*tokenizer->Encode("aab"), ElementsAre(1, 10));
}

TEST_F(TokenizerFilesTest, NormalizedTokensComeAfterVerbatimOnes) {
  tokenizer_["added_tokens"] = {
      {{"id", 10}, {"content", "aab"}, {"normalized", true}},
      {{"id", 11}, {"content", "ba"}, {"normalized", false}}};
  config_ = json::object();
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("aaba"), ElementsAre(1, 1, 11));
  EXPECT_THAT(*tokenizer->Encode("aab"), ElementsAre(10));
}

TEST_F(TokenizerFilesTest, StripFlagsSwallowWhiteSpace) {
  tokenizer_["added_tokens"] = {
      {{"id", 10}, {"content", "<l>"}, {"lstrip", true}},
      {{"id", 11}, {"content", "<r>"}, {"rstrip", true}},
      {{"id", 12}, {"content", "<n>"}}};
  config_ = json::object();
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("a <l> a"), ElementsAre(1, 10, 3, 1));
  EXPECT_THAT(*tokenizer->Encode("a <r> a"), ElementsAre(1, 3, 11, 1));
  EXPECT_THAT(*tokenizer->Encode("a <n> a"), ElementsAre(1, 3, 12, 3, 1));
  EXPECT_THAT(*tokenizer->Encode("<r> <l> "), ElementsAre(11, 10, 3));
}

// As in the tokenizers package, whose search goes on behind the content.
TEST_F(TokenizerFilesTest, TokensAreFoundInWhiteSpaceThatATokenSwallows) {
  tokenizer_["added_tokens"] = {
      {{"id", 10}, {"content", "<l>"}, {"lstrip", true}},
      {{"id", 11}, {"content", "<r>"}, {"rstrip", true}},
      {{"id", 12}, {"content", "  "}}};
  config_ = json::object();
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("a<r>   a"), ElementsAre(1, 11, 12, 3, 1));
  EXPECT_THAT(*tokenizer->Encode("<r>     <l>a"),
              ElementsAre(11, 12, 12, 10, 1));
  EXPECT_THAT(*tokenizer->Encode("a  <l>"), ElementsAre(1, 12, 10));
  EXPECT_THAT(*tokenizer->Encode("<r>  "), ElementsAre(11, 12));
}

TEST_F(TokenizerFilesTest, MergesMayBeArraysAndWholePiecesMayGoFirst) {
  tokenizer_["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "ab"]])");
  EXPECT_THAT(*LoadOk()->Encode("abab"), ElementsAre(5));
  tokenizer_["model"]["merges"] = json::array();
  EXPECT_THAT(*LoadOk()->Encode("abab"), ElementsAre(1, 2, 1, 2));
  tokenizer_["model"]["ignore_merges"] = true;
  EXPECT_THAT(*LoadOk()->Encode("abab"), ElementsAre(5));
}

TEST_F(TokenizerFilesTest, TokensOfTheConfigMayBeObjects) {
  config_ = {{"bos_token", {{"content", "<s>"}}},
             {"eos_token", {{"content", "<x>"}, {"lstrip", false}}},
             {"add_bos_token", false},
             {"chat_template",
              {{{"name", "tool_use"}, {"template", "T"}},
               {{"name", "default"}, {"template", "D"}}}}};
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->bos_id(), 0u);
  EXPECT_EQ(tokenizer->eos_id(), 9u);
  EXPECT_FALSE(tokenizer->add_bos());
  EXPECT_THAT(*tokenizer->EncodePrompt("a"), ElementsAre(1));
  EXPECT_EQ(tokenizer->chat_template(), "D");
  Write("chat_template.jinja", "J");
  EXPECT_EQ(LoadOk()->chat_template(), "J");
}

// A template with these tokens in front.
json TemplateOf(const std::vector<std::string>& prefix, const json& ids) {
  json single = json::array();
  for (const std::string& token : prefix) {
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
  }
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  single.push_back(text);
  json special = json::object();
  for (const auto& [token, id] : ids.items()) {
    special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  }
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", {text, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
          {"special_tokens", special}};
}

// The ids are those of the tokenizers library with special tokens; a flag of
// the config adds a BOS, and never a second one.
TEST_F(TokenizerFilesTest, ATemplatePutsItsTokensInFrontOfPrompts) {
  const json byte_level = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  const json with_bos = TemplateOf({"<s>"}, {{"<s>", 0}});
  const json plain = TemplateOf({}, json::object());
  const auto sequence = [](const std::vector<json>& parts) -> json {
    return {{"type", "Sequence"}, {"processors", parts}};
  };
  const std::vector<uint32_t> text = {1, 3}, bos_text = {0, 1, 3};
  for (const auto& [processor, flag, want] :
       std::vector<std::tuple<json, json, std::vector<uint32_t>>>{
           {nullptr, nullptr, text},
           {nullptr, true, bos_text},
           {byte_level, nullptr, text},
           {byte_level, true, bos_text},
           {with_bos, nullptr, bos_text},
           {with_bos, true, bos_text},
           {with_bos, false, bos_text},
           {plain, nullptr, text},
           {plain, false, text},
           {plain, true, bos_text},
           {sequence({byte_level, with_bos}), nullptr, bos_text},
           {sequence({byte_level, with_bos}), true, bos_text},
           {sequence({byte_level, plain}), nullptr, text},
           {sequence({byte_level}), true, bos_text},
           {sequence({byte_level}), nullptr, text},
           {sequence({sequence({with_bos})}), nullptr, bos_text}}) {
    tokenizer_["post_processor"] = processor;
    config_ = {{"bos_token", "<s>"}, {"add_bos_token", flag}};
    const auto tokenizer = LoadOk();
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(*tokenizer->EncodePrompt("a "), want) << processor << flag;
    EXPECT_EQ(tokenizer->add_bos(), want == bos_text);
    EXPECT_EQ(*tokenizer->EncodePrompt(""),
              std::vector<uint32_t>(want == bos_text, 0));
    // A text that has its BOS already gets no second one.
    EXPECT_EQ(*tokenizer->EncodePrompt("<s>a "), bos_text);
    EXPECT_EQ(*tokenizer->Encode("a "), text);
  }
}

TEST_F(TokenizerFilesTest, ATemplateMayAddSeveralTokens) {
  tokenizer_["post_processor"] =
      TemplateOf({"<x>", "<s>"}, {{"<s>", 0}, {"<x>", 9}});
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->EncodePrompt("a"), ElementsAre(9, 0, 1));
  EXPECT_THAT(*tokenizer->EncodePrompt("<x><s>a"), ElementsAre(9, 0, 1));
  EXPECT_THAT(*tokenizer->EncodePrompt("<s>a"), ElementsAre(9, 0, 0, 1));
}

TEST_F(TokenizerFilesTest, TemplatesThatAreNotSupportedAreNamed) {
  json behind = TemplateOf({}, {{"<s>", 0}});
  behind["single"].push_back({{"SpecialToken", {{"id", "<s>"}}}});
  EXPECT_THAT(ProblemWith("/post_processor", behind),
              HasSubstr("post_processor.single[1]: a template that adds "
                        "something behind the text"));
  EXPECT_THAT(ProblemWith("/post_processor", TemplateOf({"<q>"}, {{"<s>", 0}})),
              HasSubstr("single[0]: \"<q>\" has no ids in special_tokens"));
  EXPECT_THAT(ProblemWith("/post_processor", TemplateOf({"<s>"}, {{"<s>", 8}})),
              HasSubstr("post_processor: id 8 names no token"));
  EXPECT_THAT(
      ProblemWith("/post_processor", TemplateOf({"<s>"}, {{"<s>", -1}})),
      HasSubstr("id -1"));
  json empty = TemplateOf({}, json::object());
  empty["single"] = json::array();
  EXPECT_THAT(ProblemWith("/post_processor", empty),
              HasSubstr("without a Sequence"));
  empty["single"] = {5};
  EXPECT_THAT(ProblemWith("/post_processor", empty),
              HasSubstr("single[0]: 5, want a SpecialToken or a Sequence"));
  EXPECT_THAT(ProblemWith("/post_processor", {{"type", "RobertaProcessing"}}),
              HasSubstr("RobertaProcessing"));
  EXPECT_THAT(ProblemWith("/post_processor", {{"type", "Sequence"}}),
              HasSubstr("processors"));
  EXPECT_THAT(ProblemWith("/post_processor",
                          {{"type", "Sequence"}, {"processors", {5}}}),
              HasSubstr("post_processor.processors[0]: type absent"));
  EXPECT_THAT(ProblemWith("/post_processor", 5), HasSubstr("post_processor"));
}

// Tokens that a fine-tune added, of which tokenizer.json knows nothing.
TEST_F(TokenizerFilesTest, AddedTokensMayStandOnlyInTheConfig) {
  const auto token = [](const char* content, bool special) -> json {
    return {{"content", content}, {"lstrip", false},      {"normalized", false},
            {"rstrip", false},    {"single_word", false}, {"special", special}};
  };
  config_ = {{"bos_token", "<s>"},
             {"eos_token", "<end>"},
             {"added_tokens_decoder",
              {{"0", token("<s>", true)},
               {"4", token("ab", false)},  // Of the vocabulary.
               {"9", token("<x>", true)},
               {"10", token("<end>", true)},
               {"12", token("<t>", false)}}}};
  config_["added_tokens_decoder"]["12"]["rstrip"] = true;
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->eos_id(), 10u);
  EXPECT_EQ(tokenizer->id_limit(), 13u);
  EXPECT_THAT(*tokenizer->Encode("a<end>b<t> <x>abab"),
              ElementsAre(1, 10, 2, 12, 9, 4, 4));
  const std::vector<uint32_t> ids = {9, 10, 12, 11, 4};
  EXPECT_EQ(tokenizer->Decode(ids, false), "<t>ab");
  EXPECT_EQ(tokenizer->Decode(ids, true), "<x><end><t>ab");
}

TEST_F(TokenizerFilesTest, AddedTokensOfTheConfigMustFit) {
  const auto problem = [this](const std::string& id, const json& entry) {
    config_ = {{"added_tokens_decoder", {{id, entry}}}};
    return Problem();
  };
  EXPECT_THAT(problem("10", {{"content", "<x>"}}),
              HasSubstr("tokenizer_config.json: added_tokens_decoder: \"<x>\" "
                        "with id 10, but tokenizer.json gives it 9"));
  EXPECT_THAT(problem("1", {{"content", "<new>"}}), HasSubstr("\"<new>\""));
  EXPECT_THAT(problem("11", {{"content", "ab"}}), HasSubstr("\"ab\""));
  EXPECT_THAT(problem("x", {{"content", "<new>"}}),
              HasSubstr("added_tokens_decoder[\"x\"]"));
  EXPECT_THAT(problem("1048576", {{"content", "<new>"}}), HasSubstr("1048576"));
  EXPECT_THAT(problem("10", {{"content", ""}}), HasSubstr("0 bytes"));
  EXPECT_THAT(problem("10", "<new>"), HasSubstr("content"));
  EXPECT_THAT(problem("10", {{"content", "<new>"}, {"single_word", true}}),
              HasSubstr("single_word"));
  config_ = {{"added_tokens_decoder", 5}};
  EXPECT_THAT(Problem(), HasSubstr("added_tokens_decoder: is not an object"));
}

TEST_F(TokenizerFilesTest, OnlyTokenizerJsonIsNeeded) {
  EXPECT_EQ(Tokenizer::Load(folder_.path()).status().code(),
            absl::StatusCode::kNotFound);
  Write("tokenizer.json", tokenizer_.dump());
  const auto tokenizer = Tokenizer::Load(folder_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_FALSE((*tokenizer)->add_bos());
  EXPECT_EQ((*tokenizer)->bos_id(), absl::nullopt);
}

TEST_F(TokenizerFilesTest, UnsupportedFieldsAreNamed) {
  EXPECT_THAT(ProblemWith("/normalizer", {{"type", "NFC"}}),
              AllOf(HasSubstr("normalizer"), HasSubstr("NFC")));
  EXPECT_THAT(
      ProblemWith("/normalizer",
                  {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}}),
      HasSubstr("normalizer"));
  EXPECT_THAT(ProblemWith("/normalizer", 5), HasSubstr("normalizer"));
  EXPECT_THAT(ProblemWith("/post_processor", {{"type", "TemplateProcessing"}}),
              HasSubstr("TemplateProcessing has no array \"single\""));
  EXPECT_THAT(ProblemWith("/decoder", {{"type", "Metaspace"}}),
              HasSubstr("Metaspace"));
  EXPECT_THAT(ProblemWith("/decoder", {{"type", "Sequence"}}),
              HasSubstr("Sequence"));
  EXPECT_THAT(
      ProblemWith("/decoder",
                  {{"type", "Sequence"},
                   {"decoders", {{{"type", "Fuse"}}, {{"type", "Strip"}}}}}),
      HasSubstr("decoder.decoders[1]: type \"Strip\""));
  EXPECT_THAT(ProblemWith("/model/type", "Unigram"), HasSubstr("Unigram"));
  EXPECT_THAT(ProblemWith("/model/unk_token", "<unk>"), HasSubstr("unk_token"));
  EXPECT_THAT(ProblemWith("/model/byte_fallback", true),
              HasSubstr("byte_fallback"));
  EXPECT_THAT(ProblemWith("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(ProblemWith("/pre_tokenizer", {{"type", "Whitespace"}}),
              HasSubstr("Whitespace"));
  EXPECT_THAT(ProblemWith("/added_tokens/1/single_word", true),
              HasSubstr("single_word"));
}

TEST_F(TokenizerFilesTest, DecodersMayStandInASequence) {
  tokenizer_["decoder"] = {
      {"type", "Sequence"},
      {"decoders", {{{"type", "ByteLevel"}}, {{"type", "Fuse"}}}}};
  const auto tokenizer = LoadOk();
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<uint32_t> ids = {4, 3, 6, 7};
  EXPECT_EQ(tokenizer->Decode(ids, false), "ab \u00e9");
}

TEST_F(TokenizerFilesTest, NamedTemplatesWithoutADefaultAreNone) {
  config_ = {{"chat_template", {{{"name", "rag"}, {"template", "R"}}}}};
  EXPECT_EQ(LoadOk()->chat_template(), "");
  config_ = {{"chat_template", {{{"name", "rag"}}}}};
  EXPECT_THAT(Problem(), HasSubstr("chat_template"));
}

TEST_F(TokenizerFilesTest, AProcessorsTemplateCountsWhereThereIsNoOther) {
  Write("chat_template.json",
        R"({"chat_template": [{"name": "default", "template": "P"}]})");
  EXPECT_EQ(LoadOk()->chat_template(), "P");
  config_["chat_template"] = "C";
  EXPECT_EQ(LoadOk()->chat_template(), "C");
  config_.erase("chat_template");
  for (const char* wrong : {R"({"chat_template": 7})", "{}", "[", "[]"}) {
    Write("chat_template.json", wrong);
    EXPECT_THAT(Problem(), HasSubstr("chat_template.json")) << wrong;
  }
  Write("chat_template.jinja", "J");
  EXPECT_EQ(LoadOk()->chat_template(), "J");
}

TEST_F(TokenizerFilesTest, MalformedFieldsAreNamed) {
  EXPECT_THAT(ProblemWith("/model", nullptr), HasSubstr("model"));
  EXPECT_THAT(ProblemWith("/model/vocab", json::array()), HasSubstr("vocab"));
  EXPECT_THAT(ProblemWith("/model/vocab", json::object()), HasSubstr("vocab"));
  for (const json& id :
       {json(-1), json(1 << 20), json(1e300), json("1"), json(1.5),
        json(~uint64_t{0}), json(nullptr), json(4294967296u)}) {
    EXPECT_THAT(ProblemWith("/model/vocab/a", id), HasSubstr("vocab[\"a\"]"));
    if (!id.is_null()) {
      EXPECT_THAT(ProblemWith("/added_tokens/1/id", id),
                  HasSubstr("added_tokens[1]"));
    }
  }
  EXPECT_THAT(ProblemWith("/model/vocab/a", 2), HasSubstr("id 2"));
  EXPECT_THAT(ProblemWith("/model/merges", nullptr), HasSubstr("merges"));
  for (const json& merge :
       {json(""), json(" "), json("ab"), json(" b"), json("a "), json(1),
        json({"a"}), json({"a", "b", "c"}), json({"a", 1}),
        json::object({{"a", "b"}})}) {
    EXPECT_THAT(ProblemWith("/model/merges/1", merge), HasSubstr("merges[1]"));
  }
  EXPECT_THAT(ProblemWith("/model/merges/1", "a q"), HasSubstr("\"q\""));
  EXPECT_THAT(ProblemWith("/model/merges/1", "b a"), HasSubstr("\"ba\""));
  EXPECT_THAT(ProblemWith("/added_tokens", 3), HasSubstr("added_tokens"));
  EXPECT_THAT(ProblemWith("/added_tokens/1", "x"),
              HasSubstr("added_tokens[1]"));
  EXPECT_THAT(ProblemWith("/added_tokens/1/content", ""), HasSubstr("0 bytes"));
  EXPECT_THAT(ProblemWith("/added_tokens/1/content", std::string(5000, 'x')),
              HasSubstr("5000 bytes"));
  EXPECT_THAT(ProblemWith("/added_tokens/1/special", 1), HasSubstr("special"));
  // An id or a text that is taken already.
  EXPECT_THAT(ProblemWith("/added_tokens/1/id", 1), HasSubstr("\"<x>\""));
  EXPECT_THAT(ProblemWith("/added_tokens/1/content", "ab"),
              HasSubstr("\"ab\""));
  EXPECT_THAT(ProblemWith("/added_tokens/1", {{"id", 0}, {"content", "<s>"}}),
              HasSubstr("\"<s>\""));
}

TEST_F(TokenizerFilesTest, MalformedConfigsAreNamed) {
  config_ = {{"bos_token", 1}};
  EXPECT_THAT(Problem(), HasSubstr("bos_token"));
  config_ = {{"bos_token", {{"text", "<s>"}}}};
  EXPECT_THAT(Problem(), HasSubstr("bos_token"));
  config_ = {{"eos_token", "<no>"}};
  EXPECT_THAT(Problem(), HasSubstr("<no>"));
  config_ = {{"eos_token", ""}};
  EXPECT_THAT(Problem(), HasSubstr("not in the vocabulary"));
  config_ = {{"add_bos_token", true}};
  EXPECT_THAT(Problem(), HasSubstr("add_bos_token"));
  config_ = {{"add_bos_token", "yes"}};
  EXPECT_THAT(Problem(), HasSubstr("\"yes\""));
  config_ = {{"add_eos_token", true}};
  EXPECT_THAT(Problem(), HasSubstr("add_eos_token"));
  config_ = {{"chat_template", 7}};
  EXPECT_THAT(Problem(), HasSubstr("chat_template"));
  config_ = json::array();
  EXPECT_THAT(Problem(), HasSubstr("tokenizer_config.json"));
}

TEST_F(TokenizerFilesTest, FilesThatAreNoJsonAreRefused) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("1"),
        std::string("{\"a\":\"\xFF\"}"), std::string(1 << 20, '['),
        std::string("\0\0", 2)}) {
    Write("tokenizer.json", text);
    const absl::Status status = Tokenizer::Load(folder_.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
  }
}

TEST_F(TokenizerFilesTest, DeepNestingIsRefused) {
  const std::string deep =
      std::string(1 << 18, '[') + std::string(1 << 18, ']');
  for (const char* field : {"model", "normalizer", "added_tokens"}) {
    Write("tokenizer.json", absl::StrCat("{\"", field, "\":", deep, "}"));
    EXPECT_EQ(Tokenizer::Load(folder_.path()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Damages the text of a good file in many places: whatever loads must still
// encode and decode without harm.
TEST_F(TokenizerFilesTest, DamagedFilesNeverCrash) {
  const std::string good = tokenizer_.dump();
  std::mt19937 random(5);
  int loaded = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    const int changes = 1 + random() % 3;
    for (int i = 0; i < changes; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, 1, "0123456789{}[]\",:"[random() % 17]);
      }
      if (text.empty()) text.push_back('x');
    }
    Write("tokenizer.json", text);
    const auto tokenizer = Tokenizer::Load(folder_.path());
    if (!tokenizer.ok()) continue;
    ++loaded;
    const auto ids = (*tokenizer)->Encode("abab<x> b\u00e9<s>");
    if (ids.ok()) (*tokenizer)->Decode(*ids, true);
  }
  EXPECT_GT(loaded, 0);
}

TEST(SyntheticTokenizerTest, EveryIdHasATextOfItsOwn) {
  for (const auto& [model, vocab_size] :
       {std::pair("synth:tiny", 512u), std::pair("synth:r1-slice", 32768u)}) {
    const auto loaded = Tokenizer::Load(model);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Tokenizer& tokenizer = **loaded;
    EXPECT_EQ(tokenizer.id_limit(), vocab_size);
    std::set<absl::string_view> texts;
    for (uint32_t id = 0; id < vocab_size; ++id) {
      EXPECT_NE(tokenizer.TokenBytes(id), "") << id;
      EXPECT_EQ(tokenizer.IsSpecial(id), id < 3) << id;
      texts.insert(tokenizer.TokenBytes(id));
    }
    EXPECT_EQ(texts.size(), vocab_size);
    EXPECT_EQ(tokenizer.bos_id(), 0u);
    EXPECT_EQ(tokenizer.eos_id(), 1u);

    std::string text = "the quick\n brown FOX";
    for (int byte = 0; byte < 128; ++byte) text.push_back(byte);
    absl::StrAppend(&text, " \u00e9\u4e2d\U0001f600");
    const auto ids = tokenizer.EncodePrompt(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(ids->front(), 0u);
    EXPECT_LT(ids->size(), text.size());  // Letters are merged.
    EXPECT_EQ(tokenizer.Decode(*ids, false), text);
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
