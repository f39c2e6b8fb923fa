// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/checkpoint_files_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <vector>

#include "cluster/checkpoint/checkpoint_files.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/file_servers.h"

namespace ringfleet::cluster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FolderServer;
using ::testing::HasSubstr;

constexpr char kIndexFile[] = "model.safetensors.index.json";

class CheckpointFilesServiceTest : public ::testing::Test {
 protected:
  CheckpointFilesServiceTest()
      : model_(folder_.File("model")), server_(model_) {
    std::filesystem::create_directories(model_);
    testing::WriteRandomModel(model_, testing::TinyV3Spec(),
                              kernels::Dtype::kBf16, /*seed=*/1);
    testing::WriteFile(folder_.File("secret"), "root:x:0:0");
    testing::WriteFile(model_ + "/notes.txt", "mine");
    testing::WriteFile(model_ + "/other.safetensors", "not of the index");
    // A client that does not read takes 64 KiB of a stream and no more.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = v1::CheckpointFiles::NewStub(grpc::CreateCustomChannel(
        server_.address(), grpc::InsecureChannelCredentials(), arguments));
  }

  grpc::Status List(v1::ListFilesResponse* response,
                    const std::string& model = "") {
    grpc::ClientContext context;
    v1::ListFilesRequest request;
    request.set_model(model.empty() ? model_ : model);
    return stub_->List(&context, request, response);
  }

  // Lists first: of whatever is served now.
  grpc::Status Read(v1::ReadFileRequest request, std::string* bytes = nullptr) {
    if (request.fingerprint().empty()) {
      v1::ListFilesResponse list;
      List(&list);
      request.set_fingerprint(list.fingerprint());
    }
    grpc::ClientContext context;
    const auto reader = stub_->Read(&context, request);
    v1::FileChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_LE(chunk.data().size(), kServedChunkBytes);
      if (bytes != nullptr) *bytes += chunk.data();
    }
    return reader->Finish();
  }

  static v1::ReadFileRequest Ranges(const std::string& file, uint64_t offset,
                                    uint64_t size, uint64_t stride = 0,
                                    uint64_t count = 1, uint64_t from = 0) {
    v1::ReadFileRequest request;
    request.set_file(file);
    request.set_offset(offset);
    request.set_size(size);
    request.set_stride(stride);
    request.set_count(count);
    request.set_from(from);
    return request;
  }

  testing::TempDir folder_;
  const std::string model_;
  FolderServer server_;
  std::unique_ptr<v1::CheckpointFiles::Stub> stub_;
};

TEST_F(CheckpointFilesServiceTest, ListsWhatMakesTheCheckpoint) {
  v1::ListFilesResponse list;
  ASSERT_TRUE(List(&list).ok());
  std::vector<std::string> names;
  for (const v1::ServedFile& file : list.files()) {
    names.push_back(file.name());
    EXPECT_EQ(file.bytes(),
              std::filesystem::file_size(model_ + "/" + file.name()));
    EXPECT_GT(file.modified_ns(), 0);
  }
  EXPECT_THAT(
      names,
      ElementsAre("config.json", kIndexFile, "model-1-of-3.safetensors",
                  "model-2-of-3.safetensors", "model-3-of-3.safetensors"));
  EXPECT_EQ(list.fingerprint(), *(*OpenCheckpoint(model_))->Fingerprint());
}

TEST_F(CheckpointFilesServiceTest, ReadsRangesFromAnyByteOn) {
  const std::string name = "model-2-of-3.safetensors";
  const std::string whole = testing::ReadFile(model_ + "/" + name);
  std::string got;
  ASSERT_TRUE(Read(Ranges(name, 0, whole.size()), &got).ok());
  EXPECT_EQ(got, whole);
  const std::string rows =
      whole.substr(11, 100) + whole.substr(311, 100) + whole.substr(611, 100);
  for (const int from : {0, 1, 99, 100, 101, 250, 299, 300}) {
    got.clear();
    ASSERT_TRUE(Read(Ranges(name, 11, 100, 300, 3, from), &got).ok());
    EXPECT_EQ(got, rows.substr(from)) << from;
  }
}

TEST_F(CheckpointFilesServiceTest, NoOtherFileCanBeRead) {
  for (const std::string name :
       {"", ".", "..", "../secret", "/etc/passwd", "notes.txt",
        "other.safetensors", "./config.json", "../model/config.json",
        "config.json/../../secret", "config.json/", "CONFIG.JSON",
        "tokenizer.json"}) {
    const grpc::Status status = Read(Ranges(name, 0, 4));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND)
        << name << ": " << status.error_message();
  }
  EXPECT_EQ(Read(Ranges(std::string("config.json\0x", 13), 0, 4)).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(CheckpointFilesServiceTest, NoOtherFolderCanBeRead) {
  std::filesystem::copy(model_, folder_.File("copy"));
  v1::ListFilesResponse list;
  for (const std::string& model :
       {folder_.File("copy"), model_ + "/../copy", model_ + "/", folder_.path(),
        std::string("/")}) {
    EXPECT_EQ(List(&list, model).error_code(),
              grpc::StatusCode::FAILED_PRECONDITION)
        << model;
  }
  server_.service().Serve("");
  EXPECT_EQ(List(&list).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// What was listed before is not read once another folder is served.
TEST_F(CheckpointFilesServiceTest, AListIsOfTheFolderThatIsServed) {
  v1::ListFilesResponse list;
  ASSERT_TRUE(List(&list).ok());
  v1::ReadFileRequest request = Ranges("config.json", 0, 4);
  request.set_fingerprint("0123456789abcdef");
  EXPECT_EQ(Read(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request.set_fingerprint(list.fingerprint());
  EXPECT_TRUE(Read(request).ok());
  std::filesystem::copy(model_, folder_.File("copy"));
  server_.service().Serve(folder_.File("copy"));
  EXPECT_EQ(Read(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(CheckpointFilesServiceTest, LinksAreFollowedAsInTheHubsCache) {
  const std::string snapshot = folder_.File("snapshots/1");
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(folder_.File("blobs"));
  int blob = 0;
  for (const auto& entry : std::filesystem::directory_iterator(model_)) {
    const std::string name = std::to_string(blob++);
    std::filesystem::copy(entry.path(), folder_.File("blobs/" + name));
    std::filesystem::create_symlink(
        "../../blobs/" + name,
        snapshot + "/" + entry.path().filename().string());
  }
  v1::ListFilesResponse direct, linked;
  ASSERT_TRUE(List(&direct).ok());
  server_.service().Serve(snapshot);
  ASSERT_TRUE(List(&linked, snapshot).ok());
  EXPECT_EQ(linked.fingerprint(), direct.fingerprint());
  v1::ReadFileRequest request = Ranges("config.json", 0, 20);
  request.set_fingerprint(linked.fingerprint());
  std::string got;
  ASSERT_TRUE(Read(request, &got).ok());
  EXPECT_EQ(got, testing::ReadFile(model_ + "/config.json").substr(0, 20));
}

// A name of the checkpoint that leads to something else: nothing is served.
TEST_F(CheckpointFilesServiceTest, ALinkToWhatIsNoPartOfACheckpointIsRefused) {
  for (const std::string name :
       {"config.json", kIndexFile, "model-1-of-3.safetensors"}) {
    const std::string path = model_ + "/" + name;
    const std::string content = testing::ReadFile(path);
    std::filesystem::remove(path);
    std::filesystem::create_symlink(folder_.File("secret"), path);
    v1::ListFilesResponse list;
    EXPECT_FALSE(List(&list).ok()) << name;
    std::filesystem::remove(path);
    testing::WriteFile(path, content);
    EXPECT_TRUE(List(&list).ok()) << name;
  }
}

TEST_F(CheckpointFilesServiceTest, ALinkThatIsTurnedAfterTheListIsNotFollowed) {
  v1::ListFilesResponse list;
  ASSERT_TRUE(List(&list).ok());
  std::filesystem::remove(model_ + "/config.json");
  std::filesystem::create_symlink(folder_.File("secret"),
                                  model_ + "/config.json");
  v1::ReadFileRequest request = Ranges("config.json", 0, 4);
  request.set_fingerprint(list.fingerprint());
  const grpc::Status status = Read(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(),
              AllOf(HasSubstr("config.json"), HasSubstr("changed")));
}

TEST_F(CheckpointFilesServiceTest, AFileThatGotShorterIsNamed) {
  v1::ListFilesResponse list;
  ASSERT_TRUE(List(&list).ok());
  const std::string name = "model-3-of-3.safetensors";
  const uint64_t size = std::filesystem::file_size(model_ + "/" + name);
  std::filesystem::resize_file(model_ + "/" + name, size - 1);
  v1::ReadFileRequest request = Ranges(name, 0, 100);
  request.set_fingerprint(list.fingerprint());
  const grpc::Status status = Read(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(), HasSubstr(name));
  EXPECT_EQ(List(&list).error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST_F(CheckpointFilesServiceTest, OnlyBytesOfTheFileCanBeAskedFor) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const std::string name = "config.json";
  const uint64_t size = std::filesystem::file_size(model_ + "/" + name);
  for (const v1::ReadFileRequest& request :
       {Ranges(name, 0, 0), Ranges(name, 0, size + 1), Ranges(name, size, 1),
        Ranges(name, kMost, 2), Ranges(name, 0, 4, 4, 0),
        Ranges(name, 0, 1, size, 2), Ranges(name, 1, 4, kMost, 2),
        Ranges(name, 0, 4, kMost / 2 + 1, 3), Ranges(name, 0, kMost, 0, 2),
        Ranges(name, 0, 1, 0, kMaxServedBytes + 1),
        Ranges(name, 0, 4, 0, 1, 5)}) {
    const grpc::Status status = Read(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << request.ShortDebugString() << ": " << status.error_message();
  }
}

// Each call that is not read from stays until its caller goes.
TEST_F(CheckpointFilesServiceTest, CallsAtATimeAreBounded) {
  v1::ListFilesResponse list;
  ASSERT_TRUE(List(&list).ok());
  v1::ReadFileRequest request =
      Ranges("model-1-of-3.safetensors", 0, 4096, 0, kMaxServedBytes / 4096);
  request.set_fingerprint(list.fingerprint());
  struct Held {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::FileChunk>> reader;
  };
  std::vector<std::unique_ptr<Held>> held;
  for (int i = 0; i < CheckpointFilesService::kMaxCalls; ++i) {
    held.push_back(std::make_unique<Held>());
    held.back()->reader = stub_->Read(&held.back()->context, request);
    v1::FileChunk chunk;
    ASSERT_TRUE(held.back()->reader->Read(&chunk)) << i;
  }
  EXPECT_EQ(Read(request).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (auto& call : held) call->context.TryCancel();
  for (auto& call : held) call->reader->Finish();
}

TEST(CheckpointFilesTest, WhatIsMissingIsNamed) {
  testing::TempDir folder;
  const std::string model = folder.File("model");
  const auto missing = [&] {
    const absl::Status status = ListCheckpointFiles(model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(missing(), model + ": no such folder");
  std::filesystem::create_directories(model);
  EXPECT_THAT(missing(), HasSubstr("no *.safetensors file"));
  testing::WriteRandomModel(model, testing::TinyV3Spec(), kernels::Dtype::kBf16,
                            /*seed=*/1);
  EXPECT_TRUE(ListCheckpointFiles(model).ok());
  std::filesystem::remove(model + "/model-2-of-3.safetensors");
  EXPECT_THAT(missing(), HasSubstr("/model-2-of-3.safetensors"));
  std::filesystem::remove(model + "/config.json");
  EXPECT_THAT(missing(), HasSubstr("/config.json"));
  testing::WriteFile(model + "/" + kIndexFile, "{");
  EXPECT_EQ(ListCheckpointFiles(model).status().code(),
            absl::StatusCode::kDataLoss);
  // Without an index: of several files, and of one of several.
  std::filesystem::remove(model + "/" + kIndexFile);
  EXPECT_THAT(missing(), HasSubstr(kIndexFile));
  std::filesystem::remove(model + "/model-1-of-3.safetensors");
  EXPECT_THAT(missing(), HasSubstr(kIndexFile));
}

}  // namespace
}  // namespace ringfleet::cluster
