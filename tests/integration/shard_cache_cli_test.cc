// SPDX-License-Identifier: Apache-2.0
// Packed weights on disk, as a user meets them.
#include <algorithm>
#include <filesystem>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::AllOf;
using ::testing::SizeIs;

class ShardCacheCliTest : public HandFleet {
 protected:
  Finished Generate(const std::string& dtype, Arguments more = {},
                    const std::string& model = Model()) {
    Arguments arguments = {"generate", "--model",      model,      "--local",
                           "2",        "--prompt-ids", "0,318,77", "-n",
                           "12",       "--temp",       "0",        "--dtype",
                           dtype,      "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(std::move(arguments));
  }
  Arguments Cached() const { return {"--cache-dir", File("cache")}; }

  std::vector<std::string> Shards() const {
    std::vector<std::string> paths;
    if (!std::filesystem::exists(File("cache"))) return paths;
    for (const auto& entry :
         std::filesystem::directory_iterator(File("cache"))) {
      if (entry.path().extension() == ".packed") {
        paths.push_back(entry.path().string());
      }
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
};

TEST_F(ShardCacheCliTest, PackedWeightsGiveTheSameBits) {
  for (const std::string dtype :
       {"f32", "bf16", "int8", "int4", "int4-experts"}) {
    const json plain = Generate(dtype).document();
    for (int start = 0; start < 2; ++start) {
      const Finished finished = Generate(dtype, Cached());
      ASSERT_EQ(finished.code, 0) << finished.errors;
      EXPECT_EQ(finished.errors, "");
      EXPECT_EQ(finished.document()["ids"], plain["ids"]) << dtype;
      EXPECT_EQ(finished.document()["logprobs"], plain["logprobs"]) << dtype;
    }
  }
  EXPECT_THAT(Shards(), SizeIs(10));
}

TEST_F(ShardCacheCliTest, ADamagedShardIsNamedAndReplaced) {
  const json want = Generate("int8", Cached()).document();
  ASSERT_THAT(Shards(), SizeIs(2));
  testing::FlipByte(Shards()[1], std::filesystem::file_size(Shards()[1]) / 3);
  const Finished damaged = Generate("int8", Cached());
  EXPECT_EQ(damaged.code, 0);
  EXPECT_EQ(damaged.document()["logprobs"], want["logprobs"]);
  EXPECT_THAT(damaged.errors,
              AllOf(HasSubstr("warning: worker 1"), HasSubstr(Shards()[1]),
                    HasSubstr("model.layers."), HasSubstr("packed anew")));
  EXPECT_EQ(Generate("int8", Cached()).errors, "");
}

TEST_F(ShardCacheCliTest, AFolderThatIsNoneIsAWarning) {
  testing::WriteFile(File("cache"), "");
  const Finished finished = Generate("int8", Cached());
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.errors, HasSubstr("the packed shard is not kept"));
}

// Two commands that pack the same shards at once, and one that is killed.
TEST_F(ShardCacheCliTest, CommandsAtOnceAndKilledOnesLeaveSoundShards) {
  const json want = Generate("int8").document();
  const Arguments command = {
      "convert", "--model",     Model(),       "--local",
      "2",       "--cache-dir", File("cache"), "--no-manifest"};
  const auto killed = StartCli(command);
  WaitUntil(10, [&] {
    return std::filesystem::exists(File("cache")) || !killed->Running();
  });
  killed->Signal(SIGKILL);
  const auto first = StartCli(command);
  const auto second = StartCli(command);
  EXPECT_EQ(Finish(*first).code, 0);
  EXPECT_EQ(Finish(*second).code, 0);
  Finish(*killed);
  ExpectNoProcesses(10);
  RemoveKeptLogs();
  EXPECT_THAT(Shards(), SizeIs(2));
  const Finished finished = Generate("int8", Cached());
  EXPECT_EQ(finished.errors, "");
  EXPECT_EQ(finished.document()["logprobs"], want["logprobs"]);
}

TEST_F(ShardCacheCliTest, ConvertPacksAheadAndChecksTheCheckpoint) {
  CopyModel();
  const std::string model = File("model");
  const Finished packed = Cli({"convert", "--model", model, "--world", "2",
                               "--cache-dir", File("cache"), "--json"});
  ASSERT_EQ(packed.code, 0) << packed.errors;
  EXPECT_EQ(packed.document()["packed"], 2);
  EXPECT_EQ(packed.document()["kept"], 0);
  EXPECT_EQ(packed.document()["manifest"], File("cache/manifest.json"));
  EXPECT_THAT(Shards(), SizeIs(2));
  const Finished again =
      Cli({"convert", "--model", model, "--local", "2", "--cache-dir",
           File("cache"), "--json", "--no-manifest"});
  EXPECT_EQ(again.document()["kept"], 2);
  EXPECT_EQ(again.document()["manifest"], "");

  const Arguments check = {"convert", "--model", model, "--check",
                           File("cache/manifest.json")};
  EXPECT_EQ(Cli(check).code, 0);
  const json manifest =
      json::parse(testing::ReadFile(File("cache/manifest.json")));
  EXPECT_TRUE(manifest["tensors"].contains("model.norm.weight"));
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    if (entry.path().extension() != ".safetensors") continue;
    testing::FlipByte(entry.path().string(), entry.file_size() - 1);
    break;
  }
  const Finished differs = Cli(check);
  EXPECT_EQ(differs.code, 4);
  EXPECT_THAT(differs.errors, AllOf(HasSubstr("XXH3-64"), HasSubstr("model.")));
}

TEST_F(ShardCacheCliTest, ConvertNeedsAFolderThatCanBeWritten) {
  EXPECT_EQ(Cli({"convert", "--model", Model(), "--world", "2"}).code, 2);
  testing::WriteFile(File("file"), "");
  for (const std::string& folder : {File("file"), File("file/cache")}) {
    const Finished finished =
        Cli({"convert", "--model", Model(), "--cache-dir", folder, "--json"});
    EXPECT_EQ(finished.code, 2);
    EXPECT_THAT(finished.error_line(), HasSubstr(folder + ": Not a directory"));
    EXPECT_EQ(finished.document()["error"]["message"], finished.error_line());
  }
}

TEST_F(ShardCacheCliTest, WorkersWithDifferentTensorsSayWhichOne) {
  CopyModel("tiny-v3", "a/model");
  CopyModel("tiny-v3", "b/model");
  for (const auto& entry :
       std::filesystem::directory_iterator(File("b/model"))) {
    // The last page of a file is one of those that the fingerprint covers.
    if (entry.path().extension() != ".safetensors") continue;
    testing::FlipByte(entry.path().string(), entry.file_size() - 1);
    break;
  }
  const RunOptions in_a = {.folder = File("a")};
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, {}, in_a, 0, "model"));
  StartWorker(0, in_a);
  StartWorker(1, {.folder = File("b")});
  EXPECT_EQ(WaitForState("failed")["state"], "failed");
  const Finished finished =
      Cli({"generate", "--cluster", cluster(), "-p", "x", "-n", "1", "--json"});
  EXPECT_EQ(finished.code, 4);
  EXPECT_THAT(finished.error_line(),
              AllOf(HasSubstr("another checkpoint"), HasSubstr("worker 1"),
                    HasSubstr("model."), HasSubstr("other bytes near byte")));
}

}  // namespace
}  // namespace ringfleet::integration
