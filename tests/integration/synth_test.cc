// SPDX-License-Identifier: Apache-2.0
// Checkpoints of random weights: written by `synth`, and named by `synth:`.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

class SynthTest : public HandFleet {
 protected:
  json Generate(const std::string& model, int local) {
    const Finished finished =
        Cli({"generate", "--model", model, "--local", std::to_string(local),
             "--dtype", "f32", "--wire", "f32", "-p", "Hello, world", "-n",
             "12", "--temp", "0", "--ignore-eos", "--json"});
    EXPECT_EQ(finished.code, 0) << finished.errors;
    return finished.document();
  }
};

TEST_F(SynthTest, FolderAndNameAreTheSameModel) {
  const Finished written =
      Cli({"synth", "--preset", "tiny", "--out", File("model"), "--seed", "7",
           "--router-zipf", "1", "--json"});
  ASSERT_EQ(written.code, 0) << written.errors;
  EXPECT_EQ(written.errors, "");
  const json document = written.document();
  EXPECT_EQ(document["path"], File("model"));
  EXPECT_EQ(document["preset"], "tiny");
  EXPECT_EQ(document["seed"], 7);
  EXPECT_EQ(document["router_zipf"], 1.0);
  EXPECT_EQ(document["model"], "synth:tiny,seed=7,zipf=1");
  EXPECT_GT(document["parameters"], 1'000'000);
  EXPECT_GT(document["seconds"], 0);
  EXPECT_EQ(document["index_xxh3_128"].get<std::string>().size(), 32u);
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(File("model"))) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  EXPECT_EQ(document["bytes"], bytes);

  const json folder = Generate(File("model"), 1);
  ASSERT_EQ(folder["ids"].size(), 12u);
  EXPECT_FALSE(folder["text"].get<std::string>().empty());
  for (const int local : {1, 2}) {
    const json memory = Generate("synth:tiny,zipf=1,seed=7", local);
    EXPECT_EQ(memory["ids"], folder["ids"]) << local << " workers";
    EXPECT_EQ(memory["text"], folder["text"]) << local << " workers";
    if (local == 1) {
      EXPECT_EQ(memory["logprobs"], folder["logprobs"]);
    }
  }
  EXPECT_NE(Generate("synth:tiny", 1)["ids"], folder["ids"]);
}

TEST_F(SynthTest, EveryVerbTakesTheName) {
  const std::string model = "synth:tiny";
  const std::string text = "The quick brown fox, \xc3\xa9t\xc3\xa9 2024\n";
  const json tokens =
      Cli({"tokenize", "--model", model, "-p", text, "--bos", "--json"})
          .document();
  ASSERT_GT(tokens["ids"].size(), 10u);
  EXPECT_EQ(tokens["ids"][0], 0);
  EXPECT_EQ(Cli({"detokenize", "--model", model, "--ids",
                 JoinIds(tokens["ids"]), "--json"})
                .document()["text"],
            text);
  json all = json::array();
  for (int id = 0; id < 512; ++id) all.push_back(id);
  const Finished scored =
      Cli({"score", "--model", model, "--ids", JoinIds(all), "--top", "3",
           "--mtp", "--reference", "f32", "--json"});
  ASSERT_EQ(scored.code, 0) << scored.errors;
  EXPECT_EQ(scored.document()["logprobs"].size(), 511u);
  EXPECT_LT(scored.document()["reference"]["mean_kl"], 0.1);
}

// 512 different tokens, each in four contexts, so about as many independent
// draws: an expert that 8 % choose is counted within 15 % (one deviation), the
// fit and what attention adds come to that.
TEST_F(SynthTest, AFleetServesItWithExpertsAsPopularAsAsked) {
  ASSERT_NO_FATAL_FAILURE(
      StartCoordinator(2, {}, {}, 0, "synth:tiny,seed=1,zipf=1"));
  StartWorker(0);
  StartWorker(1);
  const json status = WaitForState("ready");
  ASSERT_EQ(status["state"], "ready") << coordinator_->errors();
  EXPECT_EQ(status["model"], "synth:tiny,seed=1,zipf=1");
  EXPECT_EQ(Cli({"score", "--cluster", cluster(), "--model",
                 "synth:tiny,zipf=1,seed=1", "--ids", "5,6,7"})
                .code,
            0);
  EXPECT_EQ(Cli({"score", "--cluster", cluster(), "--model", "synth:tiny",
                 "--ids", "5,6,7"})
                .code,
            2);
  Status({"--experts", "--counts", "--reset"});
  constexpr int kTokens = 2048;
  for (int part = 0; part < 4; ++part) {
    json ids = json::array();
    for (int i = 0; i < kTokens / 4; ++i) {
      ids.push_back(i * (2 * part + 1) * 37 % 512);
    }
    ASSERT_EQ(
        Cli({"score", "--cluster", cluster(), "--ids", JoinIds(ids)}).code, 0);
  }
  const json counts = Status({"--experts", "--counts"})["experts"];
  ASSERT_EQ(counts.size(), 2u);
  // Probability of the i-th expert: min(0.98, c / i), with the sum 4.
  constexpr double kC = 1.2685;
  for (const auto& [layer, values] : counts.items()) {
    std::vector<double> share;
    for (const json& value : values) {
      share.push_back(value.get<double>() / kTokens);
    }
    std::sort(share.rbegin(), share.rend());
    for (int i = 1; i <= 16; ++i) {
      const double p = std::min(0.98, kC / i);
      EXPECT_NEAR(share[i - 1], p, 0.25 * p) << "layer " << layer << ", " << i;
    }
  }
}

TEST_F(SynthTest, AnInterruptedRunLeavesNothing) {
  const auto synth =
      StartCli({"synth", "--preset", "r1-slice", "--out", File("big")});
  ASSERT_TRUE(WaitUntil(20, [&] {
    return std::filesystem::exists(File("big/.incomplete")) ||
           !synth->Running();
  }));
  synth->Signal(SIGINT);
  const Finished finished = Finish(*synth);
  if (finished.code == 1) GTEST_SKIP() << finished.errors;  // A small disk.
  EXPECT_EQ(finished.code, 130) << finished.errors;
  EXPECT_FALSE(std::filesystem::exists(File("big")));
}

TEST_F(SynthTest, SaysWhatIsWrong) {
  EXPECT_EQ(
      Cli({"synth", "--preset", "huge", "--out", File("x"), "--json"}).code, 2);
  EXPECT_EQ(Cli({"synth", "--preset", "tiny"}).code, 2);
  Finished finished = Cli(
      {"synth", "--preset", "tiny", "--out", File("x"), "--router-zipf", "9"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.error_line(), HasSubstr("zipf 9"));
  EXPECT_FALSE(std::filesystem::exists(File("x")));

  // The folder of captured outputs, for one that is not empty.
  finished = Cli({"synth", "--preset", "tiny", "--out", File("capture")});
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.error_line(), HasSubstr("not empty"));

  finished = Cli({"generate", "--model", "synth:huge", "-p", "x", "--json"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.document()["error"]["message"].get<std::string>(),
              HasSubstr("want tiny or r1-slice"));
}

}  // namespace
}  // namespace ringfleet::integration
