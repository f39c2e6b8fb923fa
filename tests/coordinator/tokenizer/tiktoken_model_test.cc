// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tiktoken_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/tokenizer/marked_text.h"
#include "coordinator/tokenizer/pre_tokenizer.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string KimiFile(const std::string& name) {
  return testing::ReadFile(testing::BundledModel("tiny-kimi/" + name));
}

// A folder with tiny-kimi's tokenizer, whose files a test changes.
class TiktokenModelTest : public ::testing::Test {
 protected:
  TiktokenModelTest() {
    for (const char* name : {"tiktoken.model", "tokenizer_config.json"}) {
      Write(name, KimiFile(name));
    }
  }

  void Write(const std::string& name, const std::string& text) const {
    testing::WriteFile(folder_.File(name), text);
  }
  void Remove(const std::string& name) const {
    std::filesystem::remove(folder_.File(name));
  }
  std::unique_ptr<Tokenizer> Load() const {
    auto loaded = Tokenizer::Load(folder_.path());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }
  std::string Problem() const {
    const absl::Status status = Tokenizer::Load(folder_.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  const testing::TempDir folder_;
};

TEST_F(TiktokenModelTest, EncodesTheRecordedTexts) {
  const json vectors = json::parse(KimiFile("tokenizer_vectors.json"));
  const auto tokenizer = Load();
  ASSERT_NE(tokenizer, nullptr);
  // Without the config no token but reserved ones can be in a text.
  Remove("tokenizer_config.json");
  const auto plain = Load();
  ASSERT_NE(plain, nullptr);
  const auto spec = ParseTiktokenModel(KimiFile("tiktoken.model"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto splitter = PreTokenizer::Parse(spec->pre_tokenizer);
  ASSERT_TRUE(splitter.ok()) << splitter.status();
  ASSERT_GE(vectors.at("encode").size(), 40u);
  for (const json& vector : vectors.at("encode")) {
    const auto text = vector.at("text").get<std::string>();
    const auto ids = vector.at("ids").get<std::vector<uint32_t>>();
    EXPECT_EQ(*tokenizer->Encode(text), ids) << text;
    EXPECT_EQ(*tokenizer->EncodePrompt(text), ids) << text;
    EXPECT_EQ(*plain->Encode(MarkedText(text, Origin::kMessage)),
              vector.at("ids_plain").get<std::vector<uint32_t>>())
        << text;
    std::vector<absl::string_view> pieces;
    ASSERT_TRUE((*splitter)->Split(text, &pieces).ok());
    EXPECT_EQ(std::vector<std::string>(pieces.begin(), pieces.end()),
              vector.at("pieces").get<std::vector<std::string>>());
    EXPECT_EQ(tokenizer->Decode(ids, /*keep_special=*/true), text);
  }
  ASSERT_GE(vectors.at("decode").size(), 2u);
  for (const json& vector : vectors.at("decode")) {
    EXPECT_EQ(tokenizer->Decode(vector.at("ids").get<std::vector<uint32_t>>(),
                                /*keep_special=*/true),
              vector.at("text").get<std::string>());
  }
}

TEST_F(TiktokenModelTest, IdsWithoutANameAreReserved) {
  for (const bool has_size : {false, true}) {
    if (has_size) Write("config.json", R"({"vocab_size": 2050})");
    const auto tokenizer = Load();
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->id_limit(), has_size ? 2050u : 2048u);
    EXPECT_EQ(tokenizer->TokenBytes(1791), " backend");
    EXPECT_EQ(tokenizer->TokenBytes(1792), "[BOS]");
    EXPECT_EQ(tokenizer->TokenBytes(1797), "<|reserved_token_1797|>");
    EXPECT_EQ(tokenizer->TokenBytes(2047), "[PAD]");
    EXPECT_EQ(tokenizer->TokenBytes(2049),
              has_size ? "<|reserved_token_2049|>" : "");
    EXPECT_THAT(*tokenizer->Encode("a<|reserved_token_1797|>"),
                ElementsAre(64, 1797));
    EXPECT_EQ(tokenizer->bos_id(), 1792u);
    EXPECT_EQ(tokenizer->eos_id(), 1793u);
    EXPECT_FALSE(tokenizer->add_bos());
  }
  Write("config.json", R"({"text_config": {"vocab_size": 2049}})");
  EXPECT_EQ(Load()->id_limit(), 2049u);
  // Names beyond the vocabulary stay.
  Write("config.json", R"({"vocab_size": 1800})");
  EXPECT_EQ(Load()->id_limit(), 2048u);
  Write("config.json", R"({"vocab_size": -1})");
  EXPECT_THAT(Problem(), HasSubstr("config.json: vocab_size: -1"));
}

// Runs of each kind of character: a run is one piece, or half as many pieces
// as it has characters.
TEST_F(TiktokenModelTest, LongRunsEncodeToThemselves) {
  const auto tokenizer = Load();
  ASSERT_NE(tokenizer, nullptr);
  for (const char* run : {"a", "A", "\u0628", "\u4e16", " ", "\u0301", "aB",
                          "/", "\r\n", "'s", "12 "}) {
    std::string text;
    while (text.size() < (1 << 18)) text += run;
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_TRUE(tokenizer->Decode(*ids, true) == text) << run;
  }
}

// The bytes "aab" can be divided into "a" and "ab", and into "aa" and "b". The
// pair that is there merges, whichever it is.
TEST_F(TiktokenModelTest, LowestRankOfTheJoinedBytesMergesFirst) {
  Remove("tokenizer_config.json");
  const auto ids_of = [&](const std::string& last, absl::string_view text) {
    // a, b, ab or aa, the other one, aab.
    Write("tiktoken.model", "YQ== 0\nYg== 1\n" + last + "YWFi 4\n");
    const auto tokenizer = Load();
    return tokenizer == nullptr ? std::vector<uint32_t>()
                                : *tokenizer->Encode(text);
  };
  const std::string ab_first = "YWI= 2\nYWE= 3\n",
                    aa_first = "YWE= 2\nYWI= 3\n";
  for (const std::string& order : {ab_first, aa_first}) {
    EXPECT_THAT(ids_of(order, "aab"), ElementsAre(4));
    EXPECT_THAT(ids_of(order, "baab"), ElementsAre(1, 4));
  }
  EXPECT_THAT(ids_of(ab_first, "aaab"), ElementsAre(3, 2));
  EXPECT_THAT(ids_of(aa_first, "aaab"), ElementsAre(2, 3));
  EXPECT_THAT(ids_of(ab_first, "aabaab"), ElementsAre(4, 4));
  EXPECT_THAT(ids_of(ab_first + "\r\n\n", "ba"), ElementsAre(1, 0));
}

TEST_F(TiktokenModelTest, LinesThatAreNoTokensAreNamed) {
  for (const auto& [line, problem] :
       std::vector<std::pair<std::string, std::string>>{
           {"YWI=", "line 2: \"YWI=\": want"},
           {"YWI= x", "line 2: \"YWI= x\": want"},
           {"YWI= -1", "\"YWI= -1\""},
           {"YWI= 1048576", "below 1048576"},
           {"Y*I= 3", "base64"},
           {" 3", "base64"},
           {"YQ== 3", "the bytes have a rank already"},
           {"YWI= 0", "the rank is taken already"},
           {std::string(4000, 'Y') + " 3", "1 to 1024 bytes"}}) {
    Write("tiktoken.model", "YQ== 0\n" + line + "\n");
    EXPECT_THAT(Problem(),
                AllOf(HasSubstr("tiktoken.model: "), HasSubstr(problem)));
  }
  Write("tiktoken.model", "\n");
  EXPECT_THAT(Problem(), HasSubstr("tiktoken.model: has no tokens"));
}

TEST_F(TiktokenModelTest, FilesThatContradictEachOtherAreNamed) {
  json config = json::parse(KimiFile("tokenizer_config.json"));
  config["tokenizer_class"] = "QWenTokenizer";
  Write("tokenizer_config.json", config.dump());
  EXPECT_THAT(Problem(), HasSubstr("tokenizer_class: \"QWenTokenizer\""));
  config.erase("tokenizer_class");
  // An id of the ranks.
  config["added_tokens_decoder"]["5"] = {{"content", "<new>"}};
  Write("tokenizer_config.json", config.dump());
  EXPECT_THAT(Problem(), HasSubstr("\"<new>\" with id 5"));
  config["added_tokens_decoder"].erase("5");
  config["added_tokens_decoder"]["1800"] = {
      {"content", "<|reserved_token_1797|>"}};
  Write("tokenizer_config.json", config.dump());
  EXPECT_THAT(Problem(), HasSubstr("<|reserved_token_1797|>"));
}

TEST_F(TiktokenModelTest, TokenizerJsonGoesFirst) {
  Write("tokenizer.json",
        testing::ReadFile(testing::BundledModel("tiny-v3/tokenizer.json")));
  Remove("tokenizer_config.json");
  EXPECT_EQ(Load()->TokenBytes(2040), "<think>");
  Remove("tokenizer.json");
  Remove("tiktoken.model");
  const absl::Status status = Tokenizer::Load(folder_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nor tokenizer.json"));
}

}  // namespace
}  // namespace ringfleet::coordinator
