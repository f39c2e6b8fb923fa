// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/shard_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/restrictions.h"
#include "tests/testing/sanitized.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status IgnoreSaving(uint64_t, uint64_t) { return absl::OkStatus(); }

std::string PartsText(const std::vector<PackedPart>& parts) {
  std::string bytes;
  for (const PackedPart& part : parts) {
    absl::StrAppend(&bytes, part.name, " ", part.rows, " ", part.columns, " ",
                    absl::string_view(part.data, part.bytes));
  }
  return bytes;
}

class ShardCacheTest : public ::testing::Test {
 protected:
  ShardCacheTest() {
    request_.set_model_path(RINGFLEET_TEST_MODELS "/tiny-v3");
    request_.set_dtype(v1::DTYPE_INT8);
    request_.set_shard_cache(folder_.File("cache"));
    request_.set_await_shard_cache(true);
    request_.set_context(16);
    request_.set_slots(1);
    SetLayout(1, 0);
  }

  // Some tests leave a folder that only root can remove.
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::permissions(request_.shard_cache(),
                                 std::filesystem::perms::owner_all, ignored);
  }

  void SetLayout(int tensor, int rank) {
    v1::Mesh* mesh = request_.mutable_layout()->mutable_mesh();
    mesh->set_data(1);
    mesh->set_expert(1);
    mesh->set_tensor(tensor);
    request_.mutable_layout()->set_rank(rank);
  }

  std::unique_ptr<LoadedShard> Load() {
    auto loaded = LoadShardFor(request_, Settings(),
                               [](const auto&) { return absl::OkStatus(); });
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }

  static LoadSettings Settings() {
    return {.threads = 2,
            .available_memory_bytes = std::numeric_limits<uint64_t>::max()};
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    if (!std::filesystem::exists(request_.shard_cache())) return files;
    for (const auto& entry :
         std::filesystem::directory_iterator(request_.shard_cache())) {
      files.push_back(entry.path().string());
    }
    return files;
  }

  testing::TempDir folder_;
  v1::LoadRequest request_;
};

TEST_F(ShardCacheTest, AShardHasTheExpertsOfItsLayout) {
  v1::Mesh* mesh = request_.mutable_layout()->mutable_mesh();
  mesh->set_expert(2);
  const std::unique_ptr<LoadedShard> plain = Load();
  ASSERT_NE(plain, nullptr);
  EXPECT_FALSE(plain->from_cache);
  // A copy of the other coordinate's last expert.
  v1::ExpertLayer* layer =
      request_.mutable_layout()->mutable_experts()->add_layers();
  layer->set_layer(1);
  for (const int first : {0, 8}) {
    v1::ExpertCoordinate* coordinate = layer->add_coordinates();
    for (int e = first; e < first + 8; ++e) coordinate->add_experts(e);
    if (first == 0) coordinate->add_experts(15);
  }
  for (const bool mapped : {false, true}) {
    const std::unique_ptr<LoadedShard> copies = Load();
    ASSERT_NE(copies, nullptr);
    EXPECT_EQ(copies->from_cache, mapped);
    EXPECT_EQ(copies->weights.layers[1].moe.experts.size(), 9u);
    EXPECT_EQ(copies->weights.layers[2].moe.experts.size(), 8u);
    EXPECT_GT(copies->weights.bytes, plain->weights.bytes);
    EXPECT_EQ(copies->layout.IndexOf(1, 0, 15), 8);
  }
}

TEST_F(ShardCacheTest, TheSecondLoadMapsTheSameBytesAndReadsNoTensor) {
  for (const v1::Dtype dtype : {v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_INT8,
                                v1::DTYPE_INT4, v1::DTYPE_INT4_EXPERTS}) {
    request_.set_dtype(dtype);
    for (const auto& [world, rank] :
         std::vector<std::pair<int, int>>{{1, 0}, {3, 0}, {3, 2}}) {
      SetLayout(world, rank);
      const auto first = Load();
      ASSERT_NE(first, nullptr);
      EXPECT_FALSE(first->from_cache);
      EXPECT_GT(first->tensor_bytes_read, 0u);
      const auto second = Load();
      ASSERT_NE(second, nullptr);
      EXPECT_TRUE(second->from_cache);
      EXPECT_EQ(second->tensor_bytes_read, 0u);
      EXPECT_EQ(second->warning, "");
      EXPECT_EQ(second->weights.bytes, first->weights.bytes);
      ASSERT_EQ(second->weights.head.bytes(), first->weights.head.bytes());
      EXPECT_EQ(
          std::string(second->weights.head.data(),
                      second->weights.head.bytes()),
          std::string(first->weights.head.data(), first->weights.head.bytes()));
      EXPECT_EQ(second->weights.final_norm, first->weights.final_norm);
    }
  }
  EXPECT_THAT(Files(), SizeIs(15));
}

TEST_F(ShardCacheTest, PublishedInt4IsMappedAsItWasRead) {
  request_.set_model_path(RINGFLEET_TEST_MODELS "/tiny-kimi");
  request_.set_dtype(v1::DTYPE_NATIVE);
  SetLayout(2, 1);
  const auto first = Load();
  const auto second = Load();
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(second->from_cache);
  EXPECT_EQ(second->tensor_bytes_read, 0u);
  const MlpWeights& read = first->weights.layers[1].moe.experts[3];
  const MlpWeights& mapped = second->weights.layers[1].moe.experts[3];
  for (const auto& [a, b] :
       {std::pair(&read.gate, &mapped.gate), std::pair(&read.up, &mapped.up),
        std::pair(&read.down, &mapped.down)}) {
    EXPECT_EQ(b->form(), kernels::WeightForm::kInt4);
    ASSERT_EQ(a->bytes(), b->bytes());
    EXPECT_EQ(std::string(a->data(), a->bytes()),
              std::string(b->data(), b->bytes()));
  }
  EXPECT_EQ(second->weights.layers[0].dense.gate.form(),
            kernels::WeightForm::kInt8);
}

TEST_F(ShardCacheTest, EveryPartComesBack) {
  request_.set_await_shard_cache(false);
  const auto first = Load();
  ASSERT_NE(first, nullptr);
  ASSERT_TRUE(first->unsaved.has_value());
  kernels::ThreadPool pool(1);
  ASSERT_TRUE(first->unsaved->Write(first->parts, pool, IgnoreSaving).ok());
  const auto packed = first->unsaved->Open(pool, IgnoreSaving);
  ASSERT_TRUE(packed.ok()) << packed.status();
  ASSERT_EQ((*packed)->size(), first->parts.size());
  std::vector<PackedPart> parts = first->parts;
  std::vector<kernels::WeightMatrix> matrices;
  uint64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto matrix = (*packed)->Matrix(i, parts[i].name, parts[i].form,
                                    parts[i].rows, parts[i].columns);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    parts[i].data = matrix->data();
    bytes += matrix->bytes();
    matrices.push_back(*std::move(matrix));
  }
  EXPECT_EQ(PartsText(parts), PartsText(first->parts));
  EXPECT_EQ(bytes, first->weights.bytes);
}

TEST_F(ShardCacheTest, AFlippedByteIsNamedAndTheShardPackedAnew) {
  const auto first = Load();
  ASSERT_THAT(Files(), SizeIs(1));
  const std::string sound = testing::ReadFile(Files()[0]);
  std::string damaged = sound;
  damaged[damaged.size() / 2] ^= 4;
  testing::WriteFile(Files()[0], damaged);
  const auto second = Load();
  ASSERT_NE(second, nullptr);
  EXPECT_FALSE(second->from_cache);
  EXPECT_THAT(second->warning, HasSubstr(Files()[0]));
  EXPECT_THAT(second->warning,
              HasSubstr("differ from their hash; packed anew"));
  EXPECT_THAT(second->warning, HasSubstr("model."));
  EXPECT_EQ(testing::ReadFile(Files()[0]), sound);
  EXPECT_TRUE(Load()->from_cache);
}

TEST_F(ShardCacheTest, ATruncatedFileIsPackedAnew) {
  Load();
  const std::string sound = testing::ReadFile(Files()[0]);
  for (const size_t size : {size_t{0}, size_t{4096}, sound.size() - 1}) {
    std::filesystem::resize_file(Files()[0], size);
    const auto loaded = Load();
    EXPECT_FALSE(loaded->from_cache);
    EXPECT_THAT(loaded->warning, HasSubstr("packed anew"));
    EXPECT_EQ(testing::ReadFile(Files()[0]), sound);
  }
}

TEST_F(ShardCacheTest, ACheckpointThatWasWrittenToIsPackedAnew) {
  const std::string model = folder_.File("model");
  std::filesystem::copy(request_.model_path(), model);
  request_.set_model_path(model);
  Load();
  EXPECT_TRUE(Load()->from_cache);
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    if (entry.path().extension() != ".safetensors") continue;
    // The same size, and a page that the fingerprint may not cover.
    std::string bytes = testing::ReadFile(entry.path());
    bytes[bytes.size() - 5000] ^= 1;
    testing::WriteFile(entry.path(), bytes);
    std::filesystem::last_write_time(
        entry.path(), std::filesystem::file_time_type::clock::now() +
                          std::chrono::seconds(5));
    break;
  }
  EXPECT_FALSE(Load()->from_cache);
  EXPECT_TRUE(Load()->from_cache);
}

TEST_F(ShardCacheTest, AFolderThatCannotBeWrittenIsAWarning) {
  testing::WriteFile(folder_.File("file"), "");
  request_.set_shard_cache(folder_.File("file") + "/cache");
  const auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_THAT(loaded->warning, HasSubstr("the packed shard is not kept: "));
  EXPECT_THAT(loaded->warning, HasSubstr("Not a directory"));
  const absl::Status status = PackShard(
      request_, Settings(), [](const auto&) { return absl::OkStatus(); });
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("Not a directory"));
}

TEST_F(ShardCacheTest, AFolderWithoutPermissionIsAWarning) {
  std::filesystem::create_directories(request_.shard_cache());
  std::filesystem::permissions(
      request_.shard_cache(),
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const testing::BoundByPermissions bound;
  const auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_THAT(loaded->warning, HasSubstr("the packed shard is not kept: "));
  EXPECT_THAT(loaded->warning, HasSubstr(request_.shard_cache()));
  EXPECT_THAT(loaded->warning, HasSubstr("Permission denied"));
  EXPECT_THAT(Files(), IsEmpty());
}

// Another user's, say. It can be neither read nor replaced.
TEST_F(ShardCacheTest, AShardWithoutPermissionIsPackedAnewInMemory) {
  Load();
  ASSERT_THAT(Files(), SizeIs(1));
  const std::string sound = testing::ReadFile(Files()[0]);
  std::filesystem::permissions(Files()[0], std::filesystem::perms::none);
  std::filesystem::permissions(
      request_.shard_cache(),
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  {
    const testing::BoundByPermissions bound;
    const auto loaded = Load();
    ASSERT_NE(loaded, nullptr);
    EXPECT_FALSE(loaded->from_cache);
    EXPECT_THAT(loaded->warning, HasSubstr("Permission denied"));
    const absl::Status packed = PackShard(
        request_, Settings(), [](const auto&) { return absl::OkStatus(); });
    EXPECT_EQ(packed.code(), absl::StatusCode::kPermissionDenied) << packed;
  }
  EXPECT_EQ(testing::ReadFile(Files()[0]), sound);
}

// One that may be read but not written to, as on a mount for readers only.
TEST_F(ShardCacheTest, AFolderThatMayOnlyBeReadIsUsed) {
  Load();
  std::filesystem::permissions(
      request_.shard_cache(),
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const testing::BoundByPermissions bound;
  const auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  EXPECT_TRUE(loaded->from_cache);
  EXPECT_EQ(loaded->warning, "");
}

TEST_F(ShardCacheTest, AFileSizeLimitIsAWarningAndLeavesNothing) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 1 << 16, .rlim_max = before.rlim_max};
  const auto old = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto loaded = Load();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, old);
  ASSERT_NE(loaded, nullptr);
  EXPECT_THAT(loaded->warning, HasSubstr("File too large"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(ShardCacheTest, AFullDiskIsAWarningAndLeavesNothing) {
  std::filesystem::create_directories(request_.shard_cache());
  const std::string why =
      testing::WithSmallDisk(request_.shard_cache(), 64 << 10, [this] {
        const auto loaded = Load();
        ASSERT_NE(loaded, nullptr);
        EXPECT_THAT(loaded->warning, HasSubstr("No space left on device"));
        EXPECT_THAT(Files(), IsEmpty());
        // What has no other purpose reads nothing.
        uint64_t done = 0;
        const absl::Status packed =
            PackShard(request_, Settings(), [&](const auto& progress) {
              done = std::max<uint64_t>(done, progress.bytes_done());
              return absl::OkStatus();
            });
        EXPECT_EQ(packed.code(), absl::StatusCode::kResourceExhausted);
        EXPECT_THAT(packed.message(), HasSubstr("room for"));
        EXPECT_EQ(done, 0u);
        EXPECT_THAT(Files(), IsEmpty());
      });
  if (!why.empty()) GTEST_SKIP() << why;
}

TEST_F(ShardCacheTest, WhatAKilledWriterLeftTakesNoRoom) {
  const auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  const std::string name = Files()[0];
  const uint64_t bytes = loaded->weights.bytes * 5 / 4;
  const std::string why =
      testing::WithSmallDisk(request_.shard_cache(), bytes, [&] {
        testing::WriteFile(name + ".partial.1.0",
                           std::string(loaded->weights.bytes, 'x'));
        const absl::Status packed = PackShard(
            request_, Settings(), [](const auto&) { return absl::OkStatus(); });
        EXPECT_TRUE(packed.ok()) << packed;
        EXPECT_THAT(Files(), ElementsAre(name));
      });
  if (!why.empty()) GTEST_SKIP() << why;
}

// Space for one shard, but not for two: what is there stays in use.
TEST_F(ShardCacheTest, ADiskThatFillsLeavesTheShardsThatAreThere) {
  const auto loaded = Load();
  ASSERT_NE(loaded, nullptr);
  const uint64_t bytes = loaded->weights.bytes * 5 / 4;
  const std::string why =
      testing::WithSmallDisk(request_.shard_cache(), bytes, [this] {
        EXPECT_EQ(Load()->warning, "");
        ASSERT_THAT(Files(), SizeIs(1));
        const std::string sound = testing::ReadFile(Files()[0]);
        request_.set_dtype(v1::DTYPE_BF16);
        EXPECT_THAT(Load()->warning, HasSubstr("No space left on device"));
        ASSERT_THAT(Files(), SizeIs(1));
        EXPECT_EQ(testing::ReadFile(Files()[0]), sound);
        request_.set_dtype(v1::DTYPE_INT8);
        EXPECT_TRUE(Load()->from_cache);
      });
  if (!why.empty()) GTEST_SKIP() << why;
}

TEST_F(ShardCacheTest, WritersOfOneShardDoNotDisturbEachOther) {
  request_.set_await_shard_cache(false);
  const auto shard = Load();
  ASSERT_NE(shard, nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&shard] {
      kernels::ThreadPool pool(1);
      for (int round = 0; round < 5; ++round) {
        EXPECT_TRUE(
            shard->unsaved->Write(shard->parts, pool, IgnoreSaving).ok());
        EXPECT_TRUE(shard->unsaved->Open(pool, IgnoreSaving).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Files(), SizeIs(1));
}

// Whoever clears away what dead writers left sees the file of a live one before
// it is locked, too.
TEST_F(ShardCacheTest, AWriterOutlivesWhoeverClearsAway) {
  request_.set_await_shard_cache(false);
  const auto shard = Load();
  ASSERT_NE(shard, nullptr);
  std::filesystem::create_directories(request_.shard_cache());
  std::atomic<bool> stop = false;
  int removed = 0;
  std::thread remover([&] {
    while (!stop) {
      for (const std::string& path : Files()) {
        if (!absl::StrContains(path, ".partial.")) continue;
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
          removed += unlink(path.c_str()) == 0 ? 1 : 0;
        }
        close(fd);
      }
    }
  });
  kernels::ThreadPool pool(1);
  const std::vector<PackedPart> parts = {shard->parts[0]};
  // Less than one in a hundred writes meets that moment.
  const int rounds = testing::kSanitized ? 100 : 1000;
  for (int round = 0; round < rounds; ++round) {
    const absl::Status written =
        shard->unsaved->Write(parts, pool, IgnoreSaving);
    EXPECT_TRUE(written.ok()) << written << " in round " << round;
  }
  stop = true;
  remover.join();
  EXPECT_THAT(Files(), SizeIs(1)) << removed << " removed";
}

// A process that is killed at each moment at which a write tells of progress:
// what it leaves is never taken for a shard, and goes with the next write.
TEST_F(ShardCacheTest, AKillDuringAWriteIsRecoveredFrom) {
  request_.set_await_shard_cache(false);
  const auto shard = Load();
  ASSERT_NE(shard, nullptr);
  int steps = 0;
  kernels::ThreadPool pool(1);
  ASSERT_TRUE(shard->unsaved
                  ->Write(shard->parts, pool,
                          [&steps](uint64_t, uint64_t) {
                            ++steps;
                            return absl::OkStatus();
                          })
                  .ok());
  ASSERT_GT(steps, 10);
  const std::string sound = testing::ReadFile(shard->unsaved->path());
  for (const bool replaces : {false, true}) {
    for (int step = 0; step < steps; step += steps / 8) {
      if (!replaces) std::filesystem::remove(shard->unsaved->path());
      const pid_t child = fork();
      if (child == 0) {
        kernels::ThreadPool own(1);
        int left = step;
        static_cast<void>(shard->unsaved->Write(shard->parts, own,
                                                [&left](uint64_t, uint64_t) {
                                                  if (left-- == 0)
                                                    raise(SIGKILL);
                                                  return absl::OkStatus();
                                                }));
        _exit(1);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status)) << "step " << step;
      EXPECT_THAT(Files(), SizeIs(replaces ? 2 : 1)) << "step " << step;
      const auto opened = shard->unsaved->Open(pool, IgnoreSaving);
      EXPECT_EQ(opened.status().code(),
                replaces ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
      ASSERT_TRUE(shard->unsaved->Write(shard->parts, pool, IgnoreSaving).ok());
      EXPECT_THAT(Files(), SizeIs(1));
      EXPECT_EQ(testing::ReadFile(shard->unsaved->path()), sound);
    }
  }
}

TEST_F(ShardCacheTest, AStoppedWriteLeavesNothing) {
  request_.set_await_shard_cache(false);
  const auto shard = Load();
  kernels::ThreadPool pool(1);
  int left = 5;
  const absl::Status status =
      shard->unsaved->Write(shard->parts, pool, [&left](uint64_t, uint64_t) {
        return left-- > 0 ? absl::OkStatus() : absl::CancelledError("enough");
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(ShardCacheTest, AStopWhileSavingEndsTheLoad) {
  int after = -1;  // Messages since everything was loaded.
  const auto loaded = LoadShardFor(
      request_, Settings(), [&after](const v1::LoadProgress& progress) {
        if (progress.bytes_total() > 0 &&
            2 * progress.bytes_done() >= progress.bytes_total()) {
          ++after;
        }
        return after > 0 ? absl::CancelledError("enough") : absl::OkStatus();
      });
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(ShardCacheTest, PackingLeavesASoundShardAlone) {
  std::vector<bool> from_cache;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        PackShard(request_, Settings(), [&](const v1::LoadProgress& progress) {
          if (progress.done()) {
            from_cache.push_back(progress.from_shard_cache());
          }
          return absl::OkStatus();
        }).ok());
  }
  EXPECT_EQ(from_cache, (std::vector<bool>{false, true}));
  request_.clear_shard_cache();
  EXPECT_EQ(PackShard(request_, Settings(),
                      [](const auto&) { return absl::OkStatus(); })
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ringfleet::worker
