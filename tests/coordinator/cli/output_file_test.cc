// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/restrictions.h"

namespace ringfleet::coordinator::cli {
namespace {

namespace fs = std::filesystem;

using ::ringfleet::testing::ReadFile;
using ::ringfleet::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

mode_t ModeOf(const std::string& path) {
  struct stat state = {};
  EXPECT_EQ(stat(path.c_str(), &state), 0);
  return state.st_mode & 0777;
}

TEST(OutputFileTest, IsWholeOrAsItWas) {
  const TempDir folder;
  const std::string path = folder.File("out");
  const std::string beside = folder.File("out.part");
  testing::WriteFile(path, "before");
  testing::WriteFile(beside, "someone else's");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  {
    auto given_up = OutputFile::Open(path);
    ASSERT_TRUE(given_up.ok()) << given_up.status();
    (*given_up)->Write("unfinished");
  }
  EXPECT_EQ(ReadFile(path), "before");
  auto file = OutputFile::Open(path);
  auto other = OutputFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(other.ok()) << other.status();
  const std::string text(100'000, 'x');
  (*file)->Write("a");
  (*other)->Write("another");
  (*file)->Write(text);
  EXPECT_EQ(ReadFile(path), "before");
  ASSERT_TRUE((*file)->Finish().ok());
  EXPECT_EQ(ReadFile(path), "a" + text);
  ASSERT_TRUE((*other)->Finish().ok());
  EXPECT_EQ(ReadFile(path), "another");
  EXPECT_EQ(ModeOf(path), 0640u);
  EXPECT_EQ(ReadFile(beside), "someone else's");
  EXPECT_EQ(NamesIn(folder.path()), (std::set<std::string>{"out", "out.part"}));
}

TEST(OutputFileTest, ANewFileHasTheModeOfOthers) {
  const TempDir folder;
  const mode_t mask = umask(027);
  const absl::Status written = WriteOutputFile(folder.File("new"), "text");
  umask(mask);
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_EQ(ReadFile(folder.File("new")), "text");
  EXPECT_EQ(ModeOf(folder.File("new")), 0640u);
}

TEST(OutputFileTest, FollowsLinks) {
  const TempDir folder;
  fs::create_directory(folder.File("far"));
  testing::WriteFile(folder.File("far/old"), "before");
  fs::create_symlink("far/middle", folder.File("link"));
  fs::create_symlink(folder.File("far/old"), folder.File("far/middle"));
  fs::create_symlink("far/new", folder.File("dangling"));
  for (const char* name : {"link", "dangling"}) {
    const std::string path = folder.File(name);
    ASSERT_TRUE(OutputFile::Check(path).ok());
    const absl::Status written = WriteOutputFile(path, name);
    ASSERT_TRUE(written.ok()) << written;
    EXPECT_TRUE(fs::is_symlink(path));
  }
  EXPECT_EQ(ReadFile(folder.File("far/old")), "link");
  EXPECT_EQ(ReadFile(folder.File("far/new")), "dangling");
  EXPECT_EQ(NamesIn(folder.File("far")),
            (std::set<std::string>{"middle", "new", "old"}));
  fs::create_symlink("round", folder.File("round"));
  EXPECT_THAT(
      std::string(OutputFile::Check(folder.File("round")).message()),
      HasSubstr("round: cannot be written: Too many levels of symbolic links"));
}

TEST(OutputFileTest, WhatIsNoRegularFileIsWrittenTo) {
  const TempDir folder;
  const std::string pipe = folder.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_TRUE(OutputFile::Check(pipe).ok()) << "though nobody reads";
  std::string read;
  std::thread reader([&] { read = ReadFile(pipe); });
  const absl::Status written = WriteOutputFile(pipe, "through a pipe");
  reader.join();
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_EQ(read, "through a pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(NamesIn(folder.path()), std::set<std::string>{"pipe"});

  fs::create_symlink("/dev/null", folder.File("null"));
  ASSERT_TRUE(WriteOutputFile(folder.File("null"), "nowhere").ok());
  EXPECT_TRUE(fs::is_character_file(folder.File("null")));
  ASSERT_TRUE(OutputFile::Check("/dev/full").ok());
  auto full = OutputFile::Open("/dev/full");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_TRUE((*full)->status().ok());
  (*full)->Write(std::string(100'000, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted((*full)->status()));
  EXPECT_EQ(WriteOutputFile("/dev/full", "text"),
            absl::ResourceExhaustedError(
                "/dev/full: cannot be written: No space left on device"));
}

TEST(OutputFileTest, ACheckLeavesNothing) {
  const TempDir folder;
  EXPECT_TRUE(OutputFile::Check(folder.File("new")).ok());
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(OutputFileTest, APlaceThatCannotBeWrittenIsNamed) {
  const TempDir folder;
  const auto expect = [&](const std::string& path, const std::string& why) {
    const absl::Status status = OutputFile::Check(path);
    EXPECT_EQ(status,
              absl::InvalidArgumentError(absl::StrCat(path, ": ", why)));
    EXPECT_EQ(OutputFile::Open(path).status(), status);
  };
  expect(folder.path(), "a folder, want a file");
  expect(folder.File("none/out"),
         "cannot be written: No such file or directory");
  testing::WriteFile(folder.File("file"), "before");
  expect(folder.File("file/out"), "cannot be written: Not a directory");
  fs::create_directory(folder.File("closed"));
  ASSERT_EQ(chmod(folder.File("file").c_str(), 0400), 0);
  ASSERT_EQ(chmod(folder.File("closed").c_str(), 0500), 0);
  const testing::BoundByPermissions bound;
  expect(folder.File("closed/out"), "cannot be written: Permission denied");
  expect(folder.File("file"), "cannot be written: Permission denied");
}

TEST(OutputFileTest, AFullDiskLeavesWhatWasThere) {
  const TempDir folder;
  const std::string why = testing::WithSmallDisk(folder.path(), 65536, [&] {
    const std::string path = folder.File("out");
    testing::WriteFile(path, "before");
    const absl::Status status =
        WriteOutputFile(path, std::string(1'000'000, 'x'));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()),
                StartsWith(path + ": cannot be written: No space left"));
    EXPECT_EQ(ReadFile(path), "before");
    EXPECT_EQ(NamesIn(folder.path()), std::set<std::string>{"out"});
  });
  if (!why.empty()) GTEST_SKIP() << why;
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
