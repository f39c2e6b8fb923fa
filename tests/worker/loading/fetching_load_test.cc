// SPDX-License-Identifier: Apache-2.0
// Loads of a rank whose host has none or only some of a checkpoint's files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/rpc/cancellable_calls.h"
#include "tests/testing/bundled_model.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/file_servers.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {
namespace {

using ::testing::AllOf;
using testing::BundledModel;
using ::testing::HasSubstr;
using testing::OtherHost;

constexpr char kIndex[] = "model.safetensors.index.json";

LoadSettings Settings() {
  return {.threads = 2,
          .available_memory_bytes = std::numeric_limits<uint64_t>::max()};
}

v1::LoadRequest Request(const std::string& model, int world, int rank) {
  v1::LoadRequest request;
  request.set_model_path(model);
  request.set_dtype(v1::DTYPE_NATIVE);
  request.set_context(64);
  request.set_slots(1);
  request.mutable_layout()->set_rank(rank);
  v1::Mesh* mesh = request.mutable_layout()->mutable_mesh();
  mesh->set_data(1);
  mesh->set_expert(1);
  mesh->set_tensor(world);
  return request;
}

// The same for a load whose parts can be looked at: those of a packed shard
// that is not written.
v1::LoadRequest Kept(v1::LoadRequest request) {
  request.set_shard_cache("/nonexistent");
  return request;
}

absl::StatusOr<std::unique_ptr<LoadedShard>> Load(
    v1::LoadRequest request, LoadSettings settings = Settings()) {
  return LoadShardFor(request, settings,
                      [](const auto&) { return absl::OkStatus(); });
}

void ExpectSameWeights(const LoadedShard& got, const LoadedShard& want) {
  EXPECT_EQ(got.fingerprint, want.fingerprint);
  EXPECT_EQ(got.weights.bytes, want.weights.bytes);
  EXPECT_EQ(got.weights.final_norm, want.weights.final_norm);
  ASSERT_EQ(got.parts.size(), want.parts.size());
  ASSERT_GT(got.parts.size(), 0u);
  for (size_t i = 0; i < got.parts.size(); ++i) {
    EXPECT_EQ(got.parts[i].name, want.parts[i].name);
    ASSERT_EQ(got.parts[i].bytes, want.parts[i].bytes);
    EXPECT_TRUE(std::equal(got.parts[i].data,
                           got.parts[i].data + got.parts[i].bytes,
                           want.parts[i].data))
        << got.parts[i].name;
  }
}

class FetchingLoadTest : public ::testing::Test {
 protected:
  // Of `model`, which this host has at most in part, with sources.
  v1::LoadRequest Fetching(const std::string& model, int world, int rank,
                           std::vector<const OtherHost*> hosts) {
    v1::LoadRequest request = Request(model, world, rank);
    for (size_t i = 0; i < hosts.size(); ++i) {
      v1::FileSource* source = request.add_sources();
      source->set_name(absl::StrCat("worker ", 10 + i));
      source->set_address(hosts[i]->address());
    }
    return request;
  }

  // A copy of a model, without some of its files.
  std::string CopyWithout(const std::string& name,
                          const std::vector<std::string>& missing) {
    const std::string copy = folder_.File(name);
    std::filesystem::copy(BundledModel(name), copy);
    for (const std::string& file : missing) {
      EXPECT_TRUE(std::filesystem::remove(copy + "/" + file)) << file;
    }
    return copy;
  }

  static uint64_t Size(const std::string& model, const std::string& file) {
    return std::filesystem::file_size(BundledModel(model) + "/" + file);
  }

  testing::TempDir folder_;
};

TEST_F(FetchingLoadTest, FetchedWeightsAreTheFoldersBitForBit) {
  for (const std::string model :
       {"tiny-v2", "tiny-v2-lite", "tiny-v3", "tiny-kimi"}) {
    const OtherHost host(BundledModel(model));
    for (int world = 1; world <= 3; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        SCOPED_TRACE(absl::StrCat(model, " rank ", rank, " of ", world));
        const auto want = Load(Kept(Request(BundledModel(model), world, rank)));
        const auto got =
            Load(Kept(Fetching(folder_.File("none"), world, rank, {&host})));
        ASSERT_TRUE(want.ok()) << want.status();
        ASSERT_TRUE(got.ok()) << got.status();
        ExpectSameWeights(**got, **want);
        // Its ranges and what describes the checkpoint, each once; of the
        // folder itself nothing.
        EXPECT_EQ((*got)->tensor_bytes_fetched, (*want)->tensor_bytes_read);
        uint64_t texts = Size(model, "config.json");
        if (std::filesystem::exists(BundledModel(model) + "/" + kIndex)) {
          texts += Size(model, kIndex);
        }
        EXPECT_EQ((*got)->other_bytes_fetched,
                  (*want)->other_bytes_read + texts);
        EXPECT_EQ((*got)->tensor_bytes_read, 0u);
        EXPECT_EQ((*got)->other_bytes_read, 0u);
        EXPECT_EQ((*want)->tensor_bytes_fetched, 0u);
        EXPECT_EQ((*want)->other_bytes_fetched, 0u);
        EXPECT_EQ(
            (*got)->warning,
            folder_.File("none") + ": no such folder; fetched from worker 10");
      }
    }
  }
}

TEST_F(FetchingLoadTest, OnlyWhatIsMissingIsFetched) {
  const OtherHost host(BundledModel("tiny-v3"));
  const auto want = Load(Kept(Request(BundledModel("tiny-v3"), 2, 1)));
  ASSERT_TRUE(want.ok()) << want.status();
  for (const std::vector<std::string>& missing :
       std::vector<std::vector<std::string>>{
           {"model-00002-of-00002.safetensors"},
           {"model-00001-of-00002.safetensors", "config.json"},
           {kIndex, "model-00001-of-00002.safetensors"}}) {
    const std::string part = CopyWithout("tiny-v3", missing);
    const auto got = Load(Kept(Fetching(part, 2, 1, {&host})));
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSameWeights(**got, **want);
    EXPECT_GT((*got)->tensor_bytes_fetched, 0u);
    EXPECT_GT((*got)->tensor_bytes_read, 0u);
    EXPECT_EQ((*got)->tensor_bytes_fetched + (*got)->tensor_bytes_read,
              (*want)->tensor_bytes_read);
    std::filesystem::remove_all(part);
  }
}

TEST_F(FetchingLoadTest, FilesOfAnotherCheckpointAreNotMixedIn) {
  const OtherHost host(BundledModel("tiny-v3"));
  std::string part =
      CopyWithout("tiny-v3", {"model-00002-of-00002.safetensors"});
  const std::string first = part + "/model-00001-of-00002.safetensors";
  std::string bytes = testing::ReadFile(first);
  bytes.back() ^= 1;  // In the last page, which the fingerprint covers.
  testing::WriteFile(first, bytes);
  const auto other = Load(Fetching(part, 1, 0, {&host}));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(other.status().message()),
              AllOf(HasSubstr(part), HasSubstr("worker 10"),
                    HasSubstr("not of one checkpoint")));
  std::filesystem::resize_file(first, bytes.size() - 1);
  const auto shorter = Load(Fetching(part, 1, 0, {&host}));
  EXPECT_EQ(shorter.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(shorter.status().message()), HasSubstr(first));
}

TEST_F(FetchingLoadTest, AFolderThatIsCompleteNeedsNoSource) {
  v1::LoadRequest request = Request(BundledModel("tiny-v3"), 1, 0);
  request.add_sources()->set_address("127.0.0.1:1");
  const auto loaded = Load(request);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->warning, "");
}

TEST_F(FetchingLoadTest, ASourceWithoutAnAddressIsTheCoordinator) {
  const OtherHost host(BundledModel("tiny-v3"));
  v1::LoadRequest request = Request(folder_.File("none"), 1, 0);
  request.add_sources()->set_name("the coordinator");
  LoadSettings settings = Settings();
  settings.coordinator = host.address();
  const auto loaded = Load(request, settings);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->warning, HasSubstr("the coordinator"));
}

TEST_F(FetchingLoadTest, TheSecondLoadFetchesNoTensor) {
  const OtherHost host(BundledModel("tiny-v3"));
  v1::LoadRequest request = Fetching(folder_.File("none"), 2, 0, {&host});
  request.set_shard_cache(folder_.File("cache"));
  request.set_await_shard_cache(true);
  const auto first = Load(request);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE((*first)->from_cache);
  const auto second = Load(request);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE((*second)->from_cache);
  EXPECT_EQ((*second)->tensor_bytes_fetched, 0u);
  EXPECT_EQ((*second)->other_bytes_fetched, (*first)->other_bytes_fetched);
  EXPECT_EQ((*second)->weights.final_norm, (*first)->weights.final_norm);
}

TEST_F(FetchingLoadTest, WhenOneSourceGoesTheOtherOneServes) {
  OtherHost goes(BundledModel("tiny-v3"));
  const OtherHost stays(BundledModel("tiny-v3"));
  v1::LoadRequest request =
      Kept(Fetching(folder_.File("none"), 1, 0, {&goes, &stays}));
  bool stopped = false;
  const auto got =
      LoadShardFor(request, Settings(), [&](const v1::LoadProgress& progress) {
        if (progress.bytes_fetched() > 0 && !stopped) goes.Stop();
        stopped |= progress.bytes_fetched() > 0;
        return absl::OkStatus();
      });
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(stopped);
  const auto want = Load(Kept(Request(BundledModel("tiny-v3"), 1, 0)));
  ASSERT_TRUE(want.ok()) << want.status();
  ExpectSameWeights(**got, **want);
}

TEST_F(FetchingLoadTest, WithoutASourceTheLoadEndsAndSaysWhy) {
  OtherHost goes(BundledModel("tiny-v3"));
  v1::LoadRequest request = Fetching(folder_.File("none"), 1, 0, {&goes});
  const auto got =
      LoadShardFor(request, Settings(), [&](const v1::LoadProgress& progress) {
        if (progress.bytes_fetched() > 0) goes.Stop();
        return absl::OkStatus();
      });
  EXPECT_EQ(got.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(got.status().message()),
              AllOf(HasSubstr("no source is left"), HasSubstr(".safetensors"),
                    HasSubstr("worker 10 at " + goes.address())));
}

TEST_F(FetchingLoadTest, CancellingEndsTheLoad) {
  const OtherHost host(BundledModel("tiny-v3"));
  cluster::CancellableCalls calls;
  LoadSettings settings = Settings();
  settings.fetching = &calls;
  const auto got = LoadShardFor(Fetching(folder_.File("none"), 1, 0, {&host}),
                                settings, [&](const v1::LoadProgress&) {
                                  calls.Cancel();
                                  return absl::OkStatus();
                                });
  EXPECT_TRUE(absl::IsCancelled(got.status())) << got.status();
}

}  // namespace
}  // namespace ringfleet::worker
