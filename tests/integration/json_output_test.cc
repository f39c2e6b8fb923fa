// SPDX-License-Identifier: Apache-2.0
// The JSON that other programs read: keys, types, one document on stdout.
#include <filesystem>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

// A type of a value: integer, number, string, or an array of one of them.
enum class Type { kInteger, kNumber, kString, kIntegers, kNumbers, kStrings };

bool Has(const json& value, Type type) {
  const auto all = [&](bool (*is)(const json&)) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is);
  };
  switch (type) {
    case Type::kInteger:
      return value.is_number_unsigned();
    case Type::kNumber:
      return value.is_number();
    case Type::kString:
      return value.is_string();
    case Type::kIntegers:
      return all([](const json& v) { return v.is_number_unsigned(); });
    case Type::kNumbers:
      return all([](const json& v) { return v.is_number(); });
    case Type::kStrings:
      return all([](const json& v) { return v.is_string(); });
  }
  return false;
}

void ExpectKeys(const json& object, const std::map<std::string, Type>& keys) {
  for (const auto& [key, type] : keys) {
    ASSERT_TRUE(object.contains(key)) << "no " << key << " in " << object;
    EXPECT_TRUE(Has(object[key], type)) << key << " is " << object[key];
  }
}

void ExpectGenerated(const json& document) {
  ExpectKeys(document, {{"prompt_ids", Type::kIntegers},
                        {"ids", Type::kIntegers},
                        {"text", Type::kString},
                        {"logprobs", Type::kNumbers},
                        {"finish_reason", Type::kString}});
  ASSERT_TRUE(document.contains("timings"));
  ExpectKeys(document["timings"], {{"load_ms", Type::kNumber},
                                   {"prompt_n", Type::kInteger},
                                   {"prompt_ms", Type::kNumber},
                                   {"predicted_n", Type::kInteger},
                                   {"predicted_ms", Type::kNumber},
                                   {"predicted_per_second", Type::kNumber}});
}

class JsonOutputTest : public HandFleet {};

TEST_F(JsonOutputTest, Generate) {
  const Finished finished = Cli({"generate", "--model", Model(), "-p", "def ",
                                 "-n", "6", "--temp", "0", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.errors, "");
  const json document = finished.document();
  ExpectGenerated(document);
  EXPECT_EQ(document["prompt_ids"][0], 0) << "no BOS in front of a text";
  EXPECT_EQ(document["ids"].size(), 6u);
  EXPECT_EQ(document["logprobs"].size(), 6u);
  EXPECT_EQ(document["finish_reason"], "length");
  EXPECT_EQ(document["timings"]["predicted_n"], 6);
  EXPECT_EQ(document["timings"]["prompt_n"], document["prompt_ids"].size());
}

// Which a model may stop at is no special token by that.
TEST_F(JsonOutputTest, TextHasAnOrdinaryStopToken) {
  const auto generate = [this](const std::string& model) {
    return Cli({"generate", "--model", model, "-p", "def ", "-n", "12",
                "--temp", "0", "--json"})
        .document();
  };
  const json free = generate(Model());
  ASSERT_EQ(free["ids"].size(), 12u);
  const json stop = free["ids"][6];
  const std::string model = CopyModel();
  for (const std::string name : {"/config.json", "/generation_config.json"}) {
    if (!std::filesystem::exists(model + name)) continue;
    json config = json::parse(testing::ReadFile(model + name));
    config["eos_token_id"] = stop;
    testing::WriteFile(model + name, config.dump());
  }
  const json stopped = generate(model);
  EXPECT_EQ(stopped["finish_reason"], "stop");
  ASSERT_FALSE(stopped["ids"].empty());
  EXPECT_EQ(stopped["ids"].back(), stop);
  const std::string text = Cli({"detokenize", "--model", model, "--ids",
                                JoinIds(stopped["ids"]), "--json"})
                               .document()["text"];
  EXPECT_EQ(stopped["text"], text);
  EXPECT_FALSE(
      Cli({"detokenize", "--model", model, "--ids", JoinIds({stop}), "--json"})
          .document()["text"]
          .get<std::string>()
          .empty());
}

TEST_F(JsonOutputTest, TextGoesToStdoutAndTheRestToStderr) {
  const Arguments command = {"generate", "--model", Model(),  "-p", "def ",
                             "-n",       "6",       "--temp", "0"};
  const Finished text = Cli(command);
  ASSERT_EQ(text.code, 0) << text.errors;
  Arguments as_json = command;
  as_json.push_back("--json");
  EXPECT_EQ(text.output,
            Cli(as_json).document()["text"].get<std::string>() + "\n");
  EXPECT_THAT(text.errors, HasSubstr("tokens/s"));
  // One token has no rate.
  const Finished one =
      Cli({"generate", "--model", Model(), "-p", "def ", "-n", "1"});
  EXPECT_THAT(one.errors, HasSubstr(" | 1 token | length"));
}

TEST_F(JsonOutputTest, AStopStringCutsTheText) {
  Arguments command = {"generate", "--model", Model(),  "-p", "def ",
                       "-n",       "12",      "--temp", "0",  "--json"};
  const json whole = Cli(command).document();
  const std::string text = whole["text"];
  // The middle of the text, whichever tokens it is made of.
  const size_t half = text.size() / 2;
  const std::string stop = text.substr(half, 3);
  command.insert(command.end(), {"--stop", "never written", "--stop", stop});
  const json cut = Cli(command).document();
  ExpectGenerated(cut);
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_LE(cut["ids"].size(), whole["ids"].size());
  EXPECT_EQ(cut["timings"]["predicted_n"], cut["ids"].size());
}

TEST_F(JsonOutputTest, ScoreWithEverything) {
  const Finished finished =
      Cli({"score", "--model", Model(), "--ids", "0,318,287,5", "--top", "3",
           "--hidden", "--mtp", "--reference", "f32", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  const json document = finished.document();
  ExpectKeys(document, {{"ids", Type::kIntegers},
                        {"logprobs", Type::kNumbers},
                        {"top_ids", Type::kIntegers},
                        {"top_logprobs", Type::kNumbers},
                        {"mtp_top_ids", Type::kIntegers},
                        {"mtp_top_logprobs", Type::kNumbers}});
  EXPECT_EQ(document["logprobs"].size(), 3u);
  EXPECT_EQ(document["top_ids"].size(), 3u);
  EXPECT_EQ(document["mtp_top_ids"].size(), 3u);
  ASSERT_EQ(document["hidden_states"].size(), 7u);
  for (const json& state : document["hidden_states"]) {
    ExpectKeys(state, {{"last_token_head", Type::kNumbers},
                       {"last_token_norm", Type::kNumber}});
  }
  ExpectKeys(document["reference"],
             {{"mean_kl", Type::kNumber}, {"top1_agreement", Type::kNumber}});
  EXPECT_LT(document["reference"]["mean_kl"], 0.1);
}

TEST_F(JsonOutputTest, ScoreInWindowsHasANumberForEveryId) {
  json ids = Golden("tiny-v3")["cases"][5]["prompt_ids"];
  ASSERT_EQ(ids.size(), 401u);
  const Finished finished = Cli({"score", "--model", Model(), "-c", "100",
                                 "--ids", JoinIds(ids), "--json"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.document()["logprobs"].size(), 400u);
}

TEST_F(JsonOutputTest, TokenizeAndBack) {
  const std::string text = "def f(x):\n    return x  # é";
  const Finished finished =
      Cli({"tokenize", "--model", Model(), "-p", text, "--bos", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  const json document = finished.document();
  ExpectKeys(document, {{"ids", Type::kIntegers}, {"pieces", Type::kStrings}});
  EXPECT_EQ(document["ids"].size(), document["pieces"].size());
  EXPECT_EQ(document["ids"][0], 0);
  const std::string ids = JoinIds(document["ids"]);
  EXPECT_EQ(Cli({"detokenize", "--model", Model(), "--ids", ids, "--json"})
                .document(),
            json({{"text", text}}));
  EXPECT_THAT(Cli({"detokenize", "--model", Model(), "--ids", ids,
                   "--keep-special", "--json"})
                  .document()["text"]
                  .get<std::string>(),
              HasSubstr("begin"));
}

TEST_F(JsonOutputTest, AnIdWithoutATokenDecodesToNothing) {
  const Finished finished =
      Cli({"detokenize", "--model", Model(), "--ids", "99999,5", "--json"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.document()["text"].get<std::string>().size(), 1u);
  EXPECT_EQ(finished.errors, "1 of 2 ids have no token, the first is 99999\n");
}

// The greedy ids are those without the file's beams, and a line says so.
TEST_F(JsonOutputTest, SettingsOfTheModelThatAreNotSupportedAreNamed) {
  const std::string copy = CopyModel();
  const Arguments generate = {"generate", "--model", copy, "-p",
                              "def main", "-n",      "24", "--json"};
  testing::WriteFile(copy + "/generation_config.json", R"({"top_k": -1})");
  const Finished plain = Cli(generate);
  EXPECT_EQ(plain.errors, "");
  testing::WriteFile(copy + "/generation_config.json",
                     R"({"num_beams": 2, "length_penalty": 5})");
  const Finished named = Cli(generate);
  EXPECT_EQ(named.document()["ids"], plain.document()["ids"]);
  EXPECT_EQ(named.errors,
            "generation_config.json: length_penalty 5 is not supported, "
            "ignored\n"
            "generation_config.json: num_beams 2 is not supported, ignored\n");
  // A supported setting holds, unless a flag says otherwise.
  testing::WriteFile(copy + "/generation_config.json",
                     R"({"repetition_penalty": 5, "min_new_tokens": 4})");
  const Finished penalised = Cli(generate);
  EXPECT_EQ(penalised.errors, "");
  Arguments without = generate;
  without.insert(without.end(), {"--repeat-penalty", "1"});
  EXPECT_EQ(Cli(without).document()["ids"], plain.document()["ids"]);
  EXPECT_NE(penalised.document()["ids"], plain.document()["ids"]);
}

TEST_F(JsonOutputTest, AnEmptyPromptIsTheBosAlone) {
  const json document =
      Cli({"generate", "--model", Model(), "-p", "", "-n", "1", "--json"})
          .document();
  EXPECT_EQ(document["prompt_ids"], json::array({0}));
  EXPECT_EQ(document["ids"].size(), 1u);
}

TEST_F(JsonOutputTest, FlagsThatDoNotExistAreNamedAsTyped) {
  const Finished finished =
      Cli({"generate", "--model", Model(), "-p", "x", "--grammar", "foo"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_EQ(finished.error_line(),
            "usage: unexpected arguments --grammar foo: grammars are not "
            "supported (see ringfleet generate --help)");
}

TEST_F(JsonOutputTest, RunningFleet) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  const json status = Status();
  ExpectKeys(status, {{"epoch", Type::kInteger},
                      {"state", Type::kString},
                      {"model", Type::kString}});
  ExpectKeys(status["mesh"], {{"data", Type::kInteger},
                              {"expert", Type::kInteger},
                              {"tensor", Type::kInteger}});
  ExpectKeys(status["requests"],
             {{"running", Type::kInteger}, {"waiting", Type::kInteger}});
  ASSERT_EQ(status["workers"].size(), 2u);
  for (const json& worker : status["workers"]) {
    ExpectKeys(worker, {{"rank", Type::kInteger},
                        {"address", Type::kString},
                        {"state", Type::kString},
                        {"pid", Type::kInteger},
                        {"version", Type::kString},
                        {"resident_bytes", Type::kInteger},
                        {"cache_bytes", Type::kInteger},
                        {"heartbeat_age_ms", Type::kInteger}});
    EXPECT_EQ(worker["pid"], workers_[worker["rank"].get<int>()]->pid());
    EXPECT_GT(worker["resident_bytes"], 0);
    EXPECT_GT(worker["cache_bytes"], 0);
    EXPECT_GE(worker["heartbeat_age_ms"], 0);
    ExpectKeys(worker,
               {{"host", Type::kString}, {"memory_bytes", Type::kInteger}});
    EXPECT_TRUE(worker["collectives"].is_array());
    EXPECT_TRUE(worker["round_trips_s"].is_object());
  }
  ExpectKeys(status, {{"replays", Type::kInteger},
                      {"sent_bytes", Type::kInteger},
                      {"sent_bytes_per_token", Type::kNumber}});
  for (const char* const key : {"epochs", "tokens", "steps", "imbalance"}) {
    EXPECT_TRUE(status[key].is_object()) << key;
  }

  const Finished submitted = Cli({"submit", "--cluster", cluster(), "-p",
                                  "def ", "-n", "4", "--temp", "0", "--json"});
  ASSERT_EQ(submitted.code, 0) << submitted.errors;
  const auto ordered = nlohmann::ordered_json::parse(submitted.output);
  EXPECT_EQ(ordered.begin().key(), "id");
  ExpectKeys(submitted.document(), {{"id", Type::kString}});
  ExpectGenerated(submitted.document());

  const Finished detached = Cli({"submit", "--cluster", cluster(), "-p", "def ",
                                 "-n", "4", "--detach", "--json"});
  ASSERT_EQ(detached.code, 0) << detached.errors;
  EXPECT_EQ(detached.document().size(), 1u);
  ExpectKeys(detached.document(), {{"id", Type::kString}});

  const json tokens =
      Cli({"tokenize", "--cluster", cluster(), "-p", "def ", "--bos", "--json"})
          .document();
  EXPECT_EQ(tokens, Cli({"tokenize", "--model", Model(), "-p", "def ", "--bos",
                         "--json"})
                        .document());

  const json shares = Status({"--experts"})["experts"];
  ASSERT_FALSE(shares.empty());
  for (const auto& [layer, values] : shares.items()) {
    EXPECT_TRUE(Has(values, Type::kNumbers)) << "layer " << layer;
    double sum = 0;
    for (const json& value : values) sum += value.get<double>();
    EXPECT_NEAR(sum, 1, 1e-4) << "layer " << layer;
  }
}

// Both spellings, and another format beside --json, of a verb that prints
// tables.
TEST_F(JsonOutputTest, JsonAndOtherFormatsExcludeEachOther) {
  const json document = Cli({"inspect", Model(), "-o", "json"}).document();
  EXPECT_EQ(Cli({"inspect", Model(), "--json"}).document(), document);
  EXPECT_EQ(Cli({"inspect", Model(), "-o", "json", "--json"}).document(),
            document);
  const Finished both = Cli({"inspect", Model(), "--json", "-o", "md"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.error_line(), HasSubstr("--json excludes -o md"));
  const Finished unknown = Cli({"inspect", Model(), "-o", "csv", "--json"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.error_line(), HasSubstr("csv not in {md,json}"));
}

TEST_F(JsonOutputTest, Errors) {
  const Finished finished =
      Cli({"generate", "--model", File("absent"), "-p", "x", "--json"});
  EXPECT_EQ(finished.code, 2);
  const json document = finished.document();
  ASSERT_TRUE(document.contains("error"));
  ExpectKeys(document["error"],
             {{"code", Type::kString}, {"message", Type::kString}});
  EXPECT_EQ(document["error"]["code"], "NOT_FOUND");
  EXPECT_EQ(document["error"]["message"], finished.error_line());
}

}  // namespace
}  // namespace ringfleet::integration
