// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "nlohmann/json.hpp"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MakeTensor;
using testing::RawSafetensors;
using testing::SafetensorsBytes;
using testing::TestTensor;
using testing::WriteFile;
using Json = nlohmann::json;

constexpr char kIndex[] = "model.safetensors.index.json";

std::vector<TestTensor> SomeTensors() {
  return {MakeTensor("a", Dtype::kF32, {2, 3}, {1, 2, 3, 4, 5, 6}),
          MakeTensor("b", Dtype::kBf16, {4}, {1, -2, 3, -4}),
          MakeTensor("c", Dtype::kF16, {2}, {0.5, -0.25}),
          MakeTensor("d", Dtype::kF8E4M3, {1, 4}, {1, 2, -448, 0}),
          MakeTensor("e", Dtype::kBf16, {0, 7}, {})};
}

// The status of opening a folder whose only file is `bytes`.
absl::Status OpenBytes(const std::string& bytes) {
  const testing::TempDir dir;
  WriteFile(dir.File("model.safetensors"), bytes);
  return OpenCheckpoint(dir.path()).status();
}

// DATA_LOSS from a file with this header and 24 bytes of data.
std::string HeaderProblem(const std::string& header) {
  const absl::Status status =
      OpenBytes(RawSafetensors(header, std::string(24, 'x')));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << header;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
  return std::string(status.message());
}

std::string EntryProblem(const std::string& entry) {
  return HeaderProblem(absl::StrCat("{\"t\": ", entry, "}"));
}

TEST(CheckpointTest, ReadsTensorsOfASingleFile) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 1);
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->Names(), ElementsAre("a", "b", "c", "d", "e"));
  const auto a = (*checkpoint)->Find("a");
  ASSERT_TRUE(a.ok());
  EXPECT_EQ((*a)->dtype, Dtype::kF32);
  EXPECT_THAT((*a)->shape, ElementsAre(2, 3));
  EXPECT_EQ((*checkpoint)->FileName(**a), "model.safetensors");
  float values[3] = {};
  ASSERT_TRUE((*checkpoint)->Read(**a, 8, 12, values).ok());
  EXPECT_THAT(values, ElementsAre(3, 4, 5));
  EXPECT_EQ((*checkpoint)->bytes_read(), 12u);
  const auto d = (*checkpoint)->Find("d");
  uint8_t codes[4] = {};
  ASSERT_TRUE((*checkpoint)->Read(**d, 0, 4, codes).ok());
  EXPECT_THAT(codes, ElementsAre(0x38, 0x40, 0xFE, 0x00));
  const auto e = (*checkpoint)->Find("e");
  ASSERT_TRUE(e.ok());
  EXPECT_TRUE((*checkpoint)->Read(**e, 0, 0, nullptr).ok());
}

TEST(CheckpointTest, ReadsTensorsOfIndexedFiles) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 3);
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const TestTensor& tensor : SomeTensors()) {
    const auto info = (*checkpoint)->Find(tensor.name);
    ASSERT_TRUE(info.ok()) << info.status();
    std::string data((*info)->bytes, '\0');
    ASSERT_TRUE((*checkpoint)->Read(**info, 0, data.size(), data.data()).ok());
    EXPECT_EQ(data, tensor.data) << tensor.name;
  }
}

// A text model that is a part of a larger one.
TEST(CheckpointTest, NamesLoseThePrefixOfALargerModel) {
  const auto tensor = [](const std::string& name) {
    return MakeTensor(name, Dtype::kF32, {1, 1}, {1});
  };
  for (const auto& [backbone, root] :
       {std::pair("language_model.model.", "language_model."),
        std::pair("model.language_model.", "")}) {
    const testing::TempDir dir;
    testing::WriteCheckpoint(
        dir.path(), "{}",
        {tensor(absl::StrCat(backbone, "embed_tokens.weight")),
         tensor(absl::StrCat(backbone, "layers.0.up.weight")),
         tensor(absl::StrCat(root, "lm_head.weight")),
         tensor("vision_tower.up.weight")},
        1);
    const auto checkpoint = OpenCheckpoint(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const std::vector<std::string> names = (*checkpoint)->Names();
    EXPECT_THAT(
        names,
        ElementsAre("lm_head.weight", "model.embed_tokens.weight",
                    "model.layers.0.up.weight", "vision_tower.up.weight"));
    for (const std::string& name : names) {
      EXPECT_TRUE((*checkpoint)->Find(name).ok()) << name;
    }
    EXPECT_EQ((*(*checkpoint)->Find("model.layers.0.up.weight"))->name,
              absl::StrCat(backbone, "layers.0.up.weight"));
    EXPECT_FALSE((*checkpoint)->Contains("model.norm.weight"));
  }
}

// It decides about the softmax of some models.
TEST(CheckpointTest, ParamsArePartOfTheFingerprint) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 1);
  std::vector<std::string> fingerprints;
  for (const char* params : {"", "{}", R"({"yarn": 1})"}) {
    if (*params != '\0') WriteFile(dir.File("params.json"), params);
    const auto checkpoint = OpenCheckpoint(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->params(), params);
    const auto fingerprint = (*checkpoint)->Fingerprint();
    ASSERT_TRUE(fingerprint.ok());
    EXPECT_THAT(fingerprints,
                ::testing::Not(::testing::Contains(*fingerprint)));
    fingerprints.push_back(*fingerprint);
  }
}

TEST(CheckpointTest, TakesASingleFileOfAnyName) {
  const testing::TempDir dir;
  WriteFile(dir.File("weights.safetensors"), SafetensorsBytes(SomeTensors()));
  EXPECT_TRUE(OpenCheckpoint(dir.path()).ok());
  WriteFile(dir.File("more.safetensors"), SafetensorsBytes({}));
  EXPECT_EQ(OpenCheckpoint(dir.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  WriteFile(dir.File("model.safetensors"), SafetensorsBytes({}));
  EXPECT_TRUE(OpenCheckpoint(dir.path()).ok());
}

TEST(CheckpointTest, ReportsAFolderWithoutCheckpoint) {
  const testing::TempDir dir;
  EXPECT_EQ(OpenCheckpoint(dir.path()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenCheckpoint(dir.File("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(CheckpointTest, FindTellsMissingFromUnsupported) {
  const testing::TempDir dir;
  std::vector<TestTensor> tensors = SomeTensors();
  tensors.push_back({"i", "U64", {2}, std::string(16, '\0')});
  tensors.push_back({"n", "F4_NEW", {2}, std::string(5, '\0')});
  testing::WriteCheckpoint(dir.path(), "{}", tensors, 2);
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->Find("x").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE((*checkpoint)->Contains("x"));
  for (const char* name : {"i", "n"}) {
    EXPECT_EQ((*checkpoint)->Find(name).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE((*checkpoint)->Contains(name));
  }
}

TEST(CheckpointTest, ReadsOutsideATensorAreRejected) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 1);
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const TensorInfo& b = **(*checkpoint)->Find("b");
  char data[16];
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, size_t>>{
           {0, 9}, {8, 1}, {9, 0}, {UINT64_MAX, 2}, {4, SIZE_MAX}}) {
    EXPECT_EQ((*checkpoint)->Read(b, offset, size, data).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ((*checkpoint)->bytes_read(), 0u);
}

TEST(CheckpointTest, NamesAMissingFile) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 3);
  std::filesystem::remove(dir.File("model-2-of-3.safetensors"));
  const absl::Status status = OpenCheckpoint(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("missing file model-2-of-3.safetensors"));
}

TEST(CheckpointTest, NamesATensorThatTheIndexPromises) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 2);
  Json index = Json::parse(testing::ReadFile(dir.File(kIndex)));
  index["weight_map"]["ghost"] = "model-1-of-2.safetensors";
  WriteFile(dir.File(kIndex), index.dump());
  absl::Status status = OpenCheckpoint(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ghost in model-1-of-2.safetensors"));
  // A tensor that exists, but in the other file.
  index["weight_map"].erase("ghost");
  index["weight_map"]["a"] = "model-2-of-2.safetensors";
  WriteFile(dir.File(kIndex), index.dump());
  status = OpenCheckpoint(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
}

TEST(CheckpointTest, LeavesAloneWhatTheIndexDoesNotName) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 2);
  Json index = Json::parse(testing::ReadFile(dir.File(kIndex)));
  index["weight_map"].erase("a");
  WriteFile(dir.File(kIndex), index.dump());
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_FALSE((*checkpoint)->Contains("a"));
  EXPECT_TRUE((*checkpoint)->Contains("b"));
}

TEST(CheckpointTest, RejectsBrokenIndexes) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 1);
  const auto code = [&](const std::string& index) {
    WriteFile(dir.File(kIndex), index);
    return OpenCheckpoint(dir.path()).status().code();
  };
  EXPECT_EQ(code(R"({"weight_map": {"a": "model.safetensors"}})"),
            absl::StatusCode::kOk);
  for (const char* index :
       {"", "{", "[]", "{}", R"({"weight_map": {}})", R"({"weight_map": []})",
        R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": "model.safetensors",
            "a": "model.safetensors"}})"}) {
    EXPECT_EQ(code(index), absl::StatusCode::kDataLoss) << index;
  }
  for (const char* index :
       {R"({"weight_map": {"a": "../model.safetensors"}})",
        R"({"weight_map": {"a": "/etc/passwd"}})",
        R"({"weight_map": {"a": ".."}})", R"({"weight_map": {"a": ""}})",
        R"({"weight_map": {"a": "model\u0000x"}})"}) {
    EXPECT_EQ(code(index), absl::StatusCode::kInvalidArgument) << index;
  }
}

TEST(CheckpointTest, RejectsTruncatedFiles) {
  const std::string bytes = SafetensorsBytes(SomeTensors());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(OpenBytes(bytes.substr(0, size)).code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
  EXPECT_TRUE(OpenBytes(bytes).ok());
}

TEST(CheckpointTest, RejectsAbsurdHeaderLengths) {
  for (const uint64_t length :
       {uint64_t{25}, uint64_t{100'000'001}, uint64_t{1} << 40, UINT64_MAX,
        UINT64_MAX - 7}) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    const absl::Status status = OpenBytes(bytes + std::string(24, ' '));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << length;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("header of ", length, " bytes")));
  }
}

TEST(CheckpointTest, RejectsBrokenHeaders) {
  for (const char* header : {"", "x", "{", "[]", "null", "{\"\xff\": 1}"}) {
    HeaderProblem(header);
  }
  EXPECT_THAT(HeaderProblem(std::string(100000, '[')), HasSubstr("deep"));
  EXPECT_THAT(
      HeaderProblem(
          R"({"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
              "t": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})"),
      HasSubstr("duplicate key \"t\""));
}

TEST(CheckpointTest, RejectsBrokenEntries) {
  for (const char* entry :
       {"1", "{}", R"({"dtype": "F32", "shape": [1]})",
        R"({"dtype": 1, "shape": [1], "data_offsets": [0, 4]})",
        R"({"dtype": "F32", "shape": 1, "data_offsets": [0, 4]})",
        R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})",
        R"({"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]})",
        R"({"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]})",
        R"({"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,1],
            "data_offsets": [0, 4]})",
        R"({"dtype": "F32", "shape": [1], "data_offsets": [0]})",
        R"({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]})",
        R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]})",
        R"({"dtype": "F32", "shape": [1], "data_offsets": [24, 28]})",
        R"({"dtype": "F32", "shape": [1],
            "data_offsets": [18446744073709551612, 18446744073709551615]})",
        R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]})",
        R"({"dtype": "I64", "shape": [1], "data_offsets": [0, 4]})",
        R"({"dtype": "BF16", "shape": [4294967296, 4294967296, 4294967296],
            "data_offsets": [0, 0]})",
        R"({"dtype": "F32", "shape": [4611686018427387904],
            "data_offsets": [0, 0]})"}) {
    EXPECT_THAT(EntryProblem(entry), HasSubstr("tensor t")) << entry;
  }
}

TEST(CheckpointTest, RejectsOverlappingTensors) {
  EXPECT_THAT(
      HeaderProblem(
          R"({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
              "u": {"dtype": "F32", "shape": [2], "data_offsets": [7, 15]}})"),
      HasSubstr("tensors t and u overlap"));
}

TEST(CheckpointTest, ToleratesPaddingMetadataAndEmptyTensors) {
  EXPECT_TRUE(OpenBytes(RawSafetensors(
                            R"({"__metadata__": {"format": "pt"},
                  "u": {"dtype": "U8", "shape": [], "data_offsets": [4, 5]},
                  "e": {"dtype": "F32", "shape": [0], "data_offsets": [2, 2]},
                  "t": {"dtype": "F32", "shape": [1],
                        "data_offsets": [0, 4]}}      )",
                            std::string(5, 'x')))
                  .ok());
}

// Bytes that no tensor has mean that the header is another file's.
TEST(CheckpointTest, RejectsBytesOfNoTensor) {
  const auto problem = [](int begin, int bytes) {
    const absl::Status status = OpenBytes(RawSafetensors(
        absl::StrCat(
            R"({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "u": {"dtype": "F32", "shape": [1], "data_offsets": [)",
            begin, ", ", begin + 4, "]}}"),
        std::string(bytes, 'x')));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    return std::string(status.message());
  };
  EXPECT_THAT(problem(4, 108),
              HasSubstr("100 bytes behind the last tensor, want none"));
  EXPECT_THAT(problem(6, 10),
              HasSubstr("2 bytes before u at data offset 4 belong to no "
                        "tensor, want none"));
  EXPECT_EQ(OpenBytes(RawSafetensors("{}", "x")).code(),
            absl::StatusCode::kDataLoss);
}

TEST(CheckpointTest, NoticesAFileThatShrankAfterOpening) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 1);
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const TensorInfo& d = **(*checkpoint)->Find("d");
  const TensorInfo& a = **(*checkpoint)->Find("a");
  char data[24];
  ASSERT_TRUE((*checkpoint)->Read(d, 0, 4, data).ok());  // The file is open.
  std::filesystem::resize_file(dir.File("model.safetensors"), d.offset + 1);
  EXPECT_EQ((*checkpoint)->Read(d, 0, 4, data).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ((*checkpoint)->Read(a, 0, 24, data).code(),
            absl::StatusCode::kDataLoss);
}

TEST(CheckpointTest, NoticesAFileThatWasReplacedAfterOpening) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 1);
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  std::string bytes = SafetensorsBytes(SomeTensors());
  bytes.back() ^= 1;
  WriteFile(dir.File("other"), bytes);
  std::filesystem::rename(dir.File("other"), dir.File("model.safetensors"));
  char data[4];
  const absl::Status status =
      (*checkpoint)->Read(**(*checkpoint)->Find("d"), 0, 4, data);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("changed after"));
}

TEST(CheckpointTest, NoticesAFileThatWasRewrittenInPlace) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 1);
  // An old file, so that the new time differs whatever the clock's step.
  const std::string path = dir.File("model.safetensors");
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) - std::chrono::hours(1));
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  char data[4];
  const TensorInfo& d = **(*checkpoint)->Find("d");
  ASSERT_TRUE((*checkpoint)->Read(d, 0, 4, data).ok());
  WriteFile(path, SafetensorsBytes(SomeTensors()));
  EXPECT_EQ((*checkpoint)->Read(d, 0, 4, data).code(),
            absl::StatusCode::kDataLoss);
}

TEST(CheckpointTest, DoesNotBlockOnAFileThatIsNone) {
  const testing::TempDir dir;
  ASSERT_EQ(mkfifo(dir.File("model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(OpenCheckpoint(dir.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// More files than stay open, read from several threads: readers are closed
// under each other's feet and every byte is still right.
TEST(CheckpointTest, ManyFilesAreReadFromManyThreads) {
  constexpr int kFiles = 70;
  const testing::TempDir dir;
  std::vector<TestTensor> tensors;
  for (int i = 0; i < kFiles; ++i) {
    tensors.push_back(MakeTensor(absl::StrCat("t", i), Dtype::kF32, {1},
                                 {static_cast<float>(i)}));
  }
  testing::WriteCheckpoint(dir.path(), "{}", tensors, kFiles);
  const auto checkpoint = OpenCheckpoint(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int k = 0; k < 4 * kFiles; ++k) {
        const int i = (k * (2 * t + 1) + t) % kFiles;
        float value = -1;
        const auto info = (*checkpoint)->Find(absl::StrCat("t", i));
        if (!info.ok() || !(*checkpoint)->Read(**info, 0, 4, &value).ok() ||
            value != i) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ((*checkpoint)->bytes_read(), uint64_t{4 * 4 * kFiles * 4});
}

std::string FingerprintOf(const std::string& dir) {
  const auto checkpoint = OpenCheckpoint(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto fingerprint = (*checkpoint)->Fingerprint();
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return fingerprint.value_or("");
}

TEST(FingerprintTest, IsTheSameForACopyInAnotherFolder) {
  const testing::TempDir first, second;
  for (const auto* dir : {&first, &second}) {
    testing::WriteCheckpoint(dir->path(), "{}", SomeTensors(), 2);
  }
  EXPECT_EQ(FingerprintOf(first.path()), FingerprintOf(second.path()));
  EXPECT_EQ(FingerprintOf(first.path()).size(), 32u);
}

TEST(FingerprintTest, ChangesWithConfigIndexHeaderAndData) {
  const testing::TempDir dir;
  testing::WriteCheckpoint(dir.path(), "{}", SomeTensors(), 2);
  std::vector<std::string> seen = {FingerprintOf(dir.path())};
  const auto expect_new = [&] {
    seen.push_back(FingerprintOf(dir.path()));
    for (size_t i = 0; i + 1 < seen.size(); ++i) {
      EXPECT_NE(seen[i], seen.back()) << i << " " << seen.size();
    }
  };
  WriteFile(dir.File("config.json"), "{ }");
  expect_new();
  WriteFile(dir.File(kIndex), testing::ReadFile(dir.File(kIndex)) + " ");
  expect_new();
  const std::string path = dir.File("model-1-of-2.safetensors");
  std::string bytes = testing::ReadFile(path);
  bytes.back() ^= 1;
  WriteFile(path, bytes);
  expect_new();
  bytes[bytes.find("\"pt\"") + 1] = 'q';
  WriteFile(path, bytes);
  expect_new();
  // A header that is a space longer.
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof(length));
  WriteFile(path, RawSafetensors(bytes.substr(8, length) + " ",
                                 bytes.substr(8 + length)));
  expect_new();
}

TEST(FingerprintTest, SamplesLargeFilesFromEndToEnd) {
  const testing::TempDir dir;
  std::vector<float> values(1 << 20);  // 4 MiB: 64 of 1024 pages are read.
  WriteFile(
      dir.File("model.safetensors"),
      SafetensorsBytes({MakeTensor("t", Dtype::kF32, {1 << 20}, values)}));
  const std::string before = FingerprintOf(dir.path());
  values.back() = 1;
  WriteFile(
      dir.File("model.safetensors"),
      SafetensorsBytes({MakeTensor("t", Dtype::kF32, {1 << 20}, values)}));
  EXPECT_NE(FingerprintOf(dir.path()), before);
}

// One value in the middle of a large file, far from a sampled page.
TEST(FingerprintTest, CoversEveryByteOfNormsBiasesAndRouters) {
  constexpr int64_t kValues = 3 << 18;  // 3 MiB, read in pieces.
  const struct {
    const char* name;
    std::vector<int64_t> shape;
    bool covered;
  } tensors[] = {
      {"model.norm.weight", {kValues}, true},
      {"model.layers.3.mlp.gate.e_score_correction_bias", {kValues}, true},
      {"model.layers.3.mlp.gate.weight", {3, kValues / 3}, true},
      {"model.layers.3.mlp.gate_proj.weight", {3, kValues / 3}, false}};
  for (const auto& tensor : tensors) {
    SCOPED_TRACE(tensor.name);
    const testing::TempDir dir;
    std::vector<float> values(kValues);
    const auto write = [&] {
      WriteFile(dir.File("model.safetensors"),
                SafetensorsBytes({MakeTensor(tensor.name, Dtype::kF32,
                                             tensor.shape, values)}));
    };
    write();
    const std::string before = FingerprintOf(dir.path());
    values[kValues / 2 - 700] = 1;
    write();
    EXPECT_EQ(FingerprintOf(dir.path()) != before, tensor.covered);
  }
}

TEST(CheckpointTest, OpensTheBundledModels) {
  for (const std::string name : {"tiny-v3", "tiny-v2", "tiny-v2-lite"}) {
    const auto checkpoint =
        OpenCheckpoint(std::string(RINGFLEET_TEST_MODELS) + "/" + name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_TRUE((*checkpoint)->Contains("model.embed_tokens.weight"));
    EXPECT_TRUE((*checkpoint)->Fingerprint().ok());
  }
}

}  // namespace
}  // namespace ringfleet::cluster
