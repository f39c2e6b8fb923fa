// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/synthesize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/synthetic/synthetic_checkpoint.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/reference_model.h"
#include "worker/loading/output_folder.h"

namespace ringfleet::worker {
namespace {

using ringfleet::testing::ReadFile;
using ringfleet::testing::TempDir;
using ringfleet::testing::WriteFile;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Status IgnoreProgress(const v1::SynthesizeProgress&) {
  return absl::OkStatus();
}

v1::SynthesizeRequest Request(const std::string& folder,
                              const std::string& model = "synth:tiny",
                              uint32_t threads = 2) {
  v1::SynthesizeRequest request;
  request.set_model(model);
  request.set_folder(folder);
  request.set_threads(threads);
  return request;
}

std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

std::map<std::string, std::string> ContentsOf(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const std::string& name : FilesIn(folder)) {
    contents[name] = ReadFile(folder + "/" + name);
  }
  return contents;
}

TEST(SynthesizeTest, WritesTheSameBytesWithAnyNumberOfThreads) {
  const TempDir dir;
  const std::string model = "synth:tiny,seed=4,zipf=1";
  std::string hash;
  for (const uint32_t threads : {1, 2, 7}) {
    const std::string folder = dir.File(std::to_string(threads));
    v1::SynthesizeProgress last;
    const absl::Status status =
        Synthesize(Request(folder, model, threads), 1,
                   [&](const v1::SynthesizeProgress& progress) {
                     last = progress;
                     return absl::OkStatus();
                   });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(last.done());
    EXPECT_EQ(last.bytes_done(), last.bytes_total());
    EXPECT_EQ(last.index_hash().size(), 32u);
    if (hash.empty()) hash = last.index_hash();
    EXPECT_EQ(last.index_hash(), hash);
    EXPECT_EQ(ContentsOf(folder), ContentsOf(dir.File("1"))) << threads;
  }
  const auto source = cluster::SyntheticCheckpoint::Open(model);
  ASSERT_TRUE(source.ok()) << source.status();
  for (size_t i = 0; i < (*source)->contents().files.size(); ++i) {
    const auto& file = (*source)->contents().files[i];
    std::string bytes(file.size, '\0');
    ASSERT_TRUE((*source)
                    ->Read(static_cast<int>(i), 0, bytes.size(), bytes.data())
                    .ok());
    EXPECT_TRUE(bytes == ReadFile(dir.File("1/" + file.name))) << file.name;
  }
  const auto folder = cluster::OpenCheckpoint(dir.File("7"));
  const auto memory = cluster::OpenCheckpoint(model);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(*(*folder)->Fingerprint(), *(*memory)->Fingerprint());
}

TEST(SynthesizeTest, RefusesAFolderWithOtherFiles) {
  const TempDir dir;
  WriteFile(dir.File("precious.txt"), "x");
  const absl::Status status =
      Synthesize(Request(dir.path()), 1, IgnoreProgress);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir.path()));
  EXPECT_THAT(FilesIn(dir.path()), ::testing::ElementsAre("precious.txt"));

  v1::SynthesizeRequest forced = Request(dir.path());
  forced.set_overwrite(true);
  ASSERT_TRUE(Synthesize(forced, 1, IgnoreProgress).ok());
  EXPECT_EQ(ReadFile(dir.File("precious.txt")), "x");
  EXPECT_TRUE(cluster::OpenCheckpoint(dir.path()).ok());
}

TEST(SynthesizeTest, RefusesACompleteCheckpoint) {
  const TempDir dir;
  ASSERT_TRUE(Synthesize(Request(dir.path()), 1, IgnoreProgress).ok());
  const auto before = ContentsOf(dir.path());
  EXPECT_EQ(
      Synthesize(Request(dir.path(), "synth:tiny,seed=1"), 1, IgnoreProgress)
          .code(),
      absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ContentsOf(dir.path()), before);
}

TEST(SynthesizeTest, GoesOnWhereAnInterruptedRunStopped) {
  const TempDir dir;
  // What a process that was killed leaves: a marker, whole and partial files.
  WriteFile(dir.File(".incomplete"), "");
  const auto source = cluster::SyntheticCheckpoint::Open("synth:tiny");
  const auto& files = (*source)->contents().files;
  WriteFile(dir.File(files[0].name), "old");
  WriteFile(dir.File(files[1].name + ".partial"), "old");
  ASSERT_TRUE(Synthesize(Request(dir.path()), 1, IgnoreProgress).ok());
  EXPECT_TRUE(cluster::OpenCheckpoint(dir.path()).ok());
  for (const std::string& name : FilesIn(dir.path())) {
    EXPECT_NE(name, ".incomplete");
    EXPECT_FALSE(name.ends_with(".partial")) << name;
  }
}

TEST(SynthesizeTest, AnInterruptedFolderWithMoreInItIsRefused) {
  const TempDir dir;
  WriteFile(dir.File(".incomplete"), "");
  WriteFile(dir.File("notes.txt"), "x");
  EXPECT_EQ(Synthesize(Request(dir.path()), 1, IgnoreProgress).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(FilesIn(dir.path()), Contains("notes.txt"));
}

// A reader never finds config.json or the index before all is there, nor a
// tensor file that is not whole.
TEST(SynthesizeTest, FilesAppearWhole) {
  const TempDir dir;
  const auto source = cluster::SyntheticCheckpoint::Open("synth:tiny");
  std::map<std::string, uint64_t> sizes;
  for (const auto& file : (*source)->contents().files) {
    sizes[file.name] = file.size;
  }
  int reports = 0;
  const absl::Status status = Synthesize(
      Request(dir.path()), 1, [&](const v1::SynthesizeProgress& progress) {
        ++reports;
        if (progress.done()) return absl::OkStatus();
        const std::set<std::string> names = FilesIn(dir.path());
        EXPECT_THAT(names, Contains(".incomplete"));
        EXPECT_FALSE(names.contains("config.json"));
        EXPECT_FALSE(names.contains("model.safetensors.index.json"));
        for (const auto& [name, size] : sizes) {
          if (!names.contains(name)) continue;
          EXPECT_EQ(std::filesystem::file_size(dir.File(name)), size);
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GE(reports, 2);
}

TEST(SynthesizeTest, AFailureLeavesNothingBehind) {
  const TempDir dir;
  const std::string folder = dir.File("new");
  const absl::Status cause = absl::CancelledError("enough");
  EXPECT_EQ(Synthesize(Request(folder), 1,
                       [&](const v1::SynthesizeProgress&) { return cause; }),
            cause);
  EXPECT_FALSE(std::filesystem::exists(folder));
  // A folder that was there stays.
  EXPECT_EQ(Synthesize(Request(dir.path()), 1,
                       [&](const v1::SynthesizeProgress&) { return cause; }),
            cause);
  EXPECT_THAT(FilesIn(dir.path()), IsEmpty());
}

TEST(SynthesizeTest, NamesTheFileThatDoesNotFit) {
  const TempDir dir;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // An error instead.
  const rlimit small = {100'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status =
      Synthesize(Request(dir.File("new")), 1, IgnoreProgress);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(dir.File("new/model-00001-of-0000")));
  EXPECT_FALSE(std::filesystem::exists(dir.File("new")));
}

TEST(SynthesizeTest, RejectsPathsThatAreNoFolders) {
  const TempDir dir;
  WriteFile(dir.File("file"), "x");
  for (const std::string& path : {dir.File("file"), dir.File("file/below")}) {
    const absl::Status status = Synthesize(Request(path), 1, IgnoreProgress);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  }
  EXPECT_EQ(Synthesize(Request(""), 1, IgnoreProgress).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Synthesize(Request(dir.File("x"), "synth:huge"), 1, IgnoreProgress)
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(dir.File("x")));
  EXPECT_EQ(ReadFile(dir.File("file")), "x");
}

TEST(SynthesizeTest, TwoDoNotWriteIntoOneFolder) {
  const TempDir dir;
  const auto first = OutputFolder::Open(dir.path(), {"a"}, false);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(OutputFolder::Open(dir.path(), {"a"}, false).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE((*first)->WriteText("a", "1").ok());
  ASSERT_TRUE((*first)->Finish().ok());
  EXPECT_EQ(ReadFile(dir.File("a")), "1");
}

TEST(SynthesizeTest, AsksForSpaceBeforeItWrites) {
  const TempDir dir;
  const auto folder = OutputFolder::Open(dir.path(), {"a"}, false);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE((*folder)->CheckSpace(1).ok());
  const absl::Status status = (*folder)->CheckSpace(uint64_t{1} << 62);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("B needed"));
}

// An independent forward pass: activations neither vanish nor explode, logits
// tell tokens apart, every expert is used about as often as any other.
TEST(SyntheticModelTest, ActivationsAreHealthy) {
  ringfleet::testing::ReferenceModel model("synth:tiny");
  const size_t vocab = model.spec().vocab_size;
  std::vector<uint32_t> ids;
  // Each id twice, in two orders: 300 tokens that repeat no bigram.
  for (uint32_t i = 0; i < 300; ++i) {
    ids.push_back(i * (i < vocab / 2 ? 7 : 11) % vocab);
  }
  const ringfleet::testing::ReferenceOutput out = model.Evaluate(ids);
  for (size_t layer = 0; layer < out.hidden.size(); ++layer) {
    double squares = 0;
    for (const auto& row : out.hidden[layer]) {
      for (const double value : row) squares += value * value;
    }
    const double rms =
        std::sqrt(squares / ids.size() / model.spec().hidden_size);
    EXPECT_GT(rms, 0.7) << "layer " << layer;
    EXPECT_LT(rms, 3.0) << "layer " << layer;
  }
  double sum = 0;
  double squares = 0;
  for (const auto& row : out.logits) {
    for (const double value : row) {
      sum += value;
      squares += value * value;
    }
  }
  const double count = static_cast<double>(ids.size() * vocab);
  EXPECT_NEAR(sum / count, 0, 0.2);
  EXPECT_NEAR(std::sqrt(squares / count), 2, 0.5);
  for (size_t layer = 1; layer < out.expert_counts.size(); ++layer) {
    // 4 of 16 experts for each of 300 tokens.
    for (const uint64_t tokens : out.expert_counts[layer]) {
      EXPECT_GT(tokens, 75 / 2) << "layer " << layer;
      EXPECT_LT(tokens, 75 * 2) << "layer " << layer;
    }
  }
}

}  // namespace
}  // namespace ringfleet::worker
