// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/file_table.h"
#include "coordinator/store/schema.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/restrictions.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

using testing::TempDir;

FileRecord UploadOf(const std::string& id) {
  FileRecord file;
  file.id = id;
  file.purpose = "batch";
  file.name = "in.jsonl";
  return file;
}

// An operation that waits, as for a disk that does not answer.
class SlowOperation {
 public:
  absl::Status Run() {
    MutexLock lock(&mu_);
    running_ = true;
    changed_.NotifyAll();
    while (!over_) changed_.Wait(&mu_);
    return absl::OkStatus();
  }
  void AwaitBegin() {
    MutexLock lock(&mu_);
    while (!running_) changed_.Wait(&mu_);
  }
  void End() {
    MutexLock lock(&mu_);
    over_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

// Lists what the functions of operations were told.
class Results {
 public:
  Store::Done Next(const std::string& name) {
    return [this, name](const absl::Status& status) {
      MutexLock lock(&mu_);
      results_.push_back(
          absl::StrCat(name, " ", absl::StatusCodeToString(status.code())));
      changed_.NotifyAll();
    };
  }
  std::vector<std::string> Await(size_t count) {
    MutexLock lock(&mu_);
    while (results_.size() < count) {
      if (!changed_.WaitUntil(&mu_, testing::Soon().when())) break;
    }
    return results_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> results_ ABSL_GUARDED_BY(mu_);
};

class StoreTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Store>> Open(
      absl::Duration patience = absl::Seconds(30)) {
    StoreOptions options;
    options.folder = dir_.path();
    options.description = "fleet test";
    options.patience = patience;
    options.longest_stall = longest_stall_;
    return Store::Open(std::move(options));
  }
  void Start() {
    auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  absl::Status Insert(const std::string& id) {
    return store_->WriteNow([file = UploadOf(id)](Database& database) {
      return InsertFile(database, file);
    });
  }
  // Inserts file-0 to file-99, a few to a page.
  absl::Status InsertHundred() {
    return store_->WriteNow([](Database& database) {
      absl::Status status;
      for (int i = 0; i < 100; ++i) {
        FileRecord file = UploadOf(absl::StrCat("file-", i));
        file.name = std::string(1000, 'x');
        status.Update(InsertFile(database, file));
      }
      return status;
    });
  }
  absl::Status Find(const std::string& id) {
    return store_->Read([&id](Database& database) {
      return FindFile(database, id, "").status();
    });
  }
  std::string path() const { return dir_.File("state.db"); }
  // Inserts a file for which the database has to grow, which it cannot while
  // the disk is `full_`.
  Store::Operation InsertLong(const std::string& id) {
    FileRecord file = UploadOf(id);
    file.name = std::string(100'000, 'x');
    return [this, file](Database& database) {
      const absl::Status limit = database.Run(
          absl::StrCat("PRAGMA max_page_count = ", full_ ? "1" : "100000"));
      return limit.ok() ? InsertFile(database, file) : limit;
    };
  }
  void AwaitTrouble() {
    const auto deadline = testing::Soon();
    while (store_->trouble().ok() && !deadline.Expired()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(absl::IsResourceExhausted(store_->trouble()));
  }

  TempDir dir_;
  absl::Duration longest_stall_ = StoreOptions().longest_stall;
  std::atomic<bool> full_{false};
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, WhatWasCommittedIsThereAfterARestart) {
  Start();
  ASSERT_TRUE(Insert("file-1").ok());
  store_.reset();
  Start();
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(Find("file-2")));
}

TEST_F(StoreTest, QueuedOperationsAreCommittedAtTheEnd) {
  Start();
  std::vector<absl::Status> results;
  for (const char* const id : {"file-1", "file-2"}) {
    store_->Write(
        [file = UploadOf(id)](Database& database) {
          return InsertFile(database, file);
        },
        [&results](const absl::Status& status) { results.push_back(status); });
  }
  store_.reset();
  EXPECT_EQ(results, std::vector<absl::Status>(2, absl::OkStatus()));
  Start();
  EXPECT_EQ(Find("file-2"), absl::OkStatus());
}

TEST_F(StoreTest, AnOperationThatFailsUndoesItsOwnChangesOnly) {
  Start();
  absl::Status good;
  store_->Write([file = UploadOf("file-1")](
                    Database& database) { return InsertFile(database, file); },
                [&good](const absl::Status& status) { good = status; });
  const absl::Status bad = store_->WriteNow([](Database& database) {
    const absl::Status inserted = InsertFile(database, UploadOf("file-2"));
    return inserted.ok() ? InsertFile(database, UploadOf("file-2")) : inserted;
  });
  EXPECT_TRUE(absl::IsAlreadyExists(bad)) << bad;
  EXPECT_EQ(good, absl::OkStatus());
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(Find("file-2")));
  EXPECT_EQ(store_->trouble(), absl::OkStatus());
}

TEST_F(StoreTest, AFullDiskPausesAndLosesNothing) {
  full_ = true;
  std::atomic<bool> kept{false};
  Start();
  store_->Write(InsertLong("file-1"),
                [&kept](const absl::Status& status) { kept = status.ok(); });
  const absl::Status refused = store_->WriteNow(InsertLong("file-2"));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(absl::IsResourceExhausted(store_->trouble()));
  EXPECT_FALSE(store_->is_lost());
  EXPECT_FALSE(kept);
  full_ = false;
  const auto deadline = testing::Soon();
  while (!kept && !deadline.Expired()) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(store_->trouble(), absl::OkStatus());
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(Find("file-2")));
  store_.reset();
}

// Whichever of the database's files finds no room.
TEST_F(StoreTest, AFullFileSystemIsCalledFull) {
  const uint64_t size = uint64_t{1} << 20;
  const uint64_t page = uint64_t{4} << 10;
  int failed = 0;
  const std::string why = testing::WithSmallDisk(dir_.path(), size, [&] {
    for (uint64_t left = 0; left < 100 * page; left += page) {
      const std::string filler = dir_.File("filler");
      std::ofstream(filler) << std::string(size, 'x');
      const uint64_t filled = std::filesystem::file_size(filler);
      std::filesystem::resize_file(filler, filled - std::min(left, filled));
      const absl::Status status = Open().status();
      if (status.ok()) return;
      ++failed;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << left << " " << status;
      for (const auto& file :
           std::filesystem::directory_iterator(dir_.path())) {
        std::filesystem::remove_all(file);
      }
    }
    ADD_FAILURE() << "there was never enough room";
  });
  if (!why.empty()) GTEST_SKIP() << why;
  EXPECT_GT(failed, 10);
}

// Operations that wait for the disk come before later ones.
TEST_F(StoreTest, OperationsKeepTheirOrderOverTrouble) {
  Results results;
  SlowOperation slow;
  full_ = true;
  Start();
  store_->Write(
      [&, insert = InsertLong("file-1")](Database& database) {
        const absl::Status waited = slow.Run();
        return waited.ok() ? insert(database) : waited;
      },
      results.Next("first"));
  slow.AwaitBegin();
  store_->Write([](Database&) { return absl::OkStatus(); },
                results.Next("second"));
  slow.End();
  AwaitTrouble();
  full_ = false;
  EXPECT_EQ(results.Await(2),
            (std::vector<std::string>{"first OK", "second OK"}));
  store_.reset();
}

TEST_F(StoreTest, TheEndDropsWhatCannotBeWritten) {
  Results results;
  full_ = true;
  Start();
  ASSERT_EQ(Insert("file-0"), absl::OkStatus());
  store_->Write(InsertLong("file-1"), results.Next("first"));
  AwaitTrouble();
  store_->Stop();
  EXPECT_EQ(results.Await(1), std::vector<std::string>{"first CANCELLED"});
  EXPECT_TRUE(absl::IsCancelled(Insert("file-2")));
  EXPECT_EQ(Find("file-0"), absl::OkStatus());
}

TEST_F(StoreTest, AStalledDiskIsNamedAndStopsNoReader) {
  Results results;
  SlowOperation slow;
  // Long enough for the second operation to be queued within it.
  longest_stall_ = absl::Seconds(1);
  Start();
  store_->Write([&slow](Database&) { return slow.Run(); },
                results.Next("slow"));
  slow.AwaitBegin();
  const absl::Status stalled = store_->WriteNow(
      [](Database& database) {
        return InsertFile(database, UploadOf("file-1"));
      },
      results.Next("late"));
  EXPECT_TRUE(absl::IsUnavailable(stalled)) << stalled;
  EXPECT_TRUE(absl::StrContains(stalled.message(), "does not answer"));
  // Later ones are not queued.
  store_->WriteSoon([](Database&) { return absl::OkStatus(); },
                    results.Next("refused"));
  EXPECT_EQ(results.Await(1), std::vector<std::string>{"refused UNAVAILABLE"});
  EXPECT_TRUE(absl::IsNotFound(Find("file-1")));
  EXPECT_EQ(store_->pending(), 2u);
  slow.End();
  EXPECT_EQ(results.Await(3), (std::vector<std::string>{"refused UNAVAILABLE",
                                                        "slow OK", "late OK"}));
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  store_.reset();
}

TEST_F(StoreTest, ALongQueueRefusesWhoeverWaits) {
  constexpr size_t kQueued = 4096;
  Results results, refused;
  SlowOperation slow;
  longest_stall_ = absl::Hours(1);
  Start();
  store_->Write([&slow](Database&) { return slow.Run(); },
                results.Next("slow"));
  slow.AwaitBegin();
  const auto nothing = [](Database&) { return absl::OkStatus(); };
  for (size_t i = 0; i < kQueued; ++i) {
    store_->WriteSoon(nothing, results.Next("queued"));
  }
  store_->WriteSoon(nothing, refused.Next("refused"));
  EXPECT_EQ(refused.Await(1),
            std::vector<std::string>{"refused RESOURCE_EXHAUSTED"});
  store_->Write(nothing, results.Next("last"));
  slow.End();
  const std::vector<std::string> told = results.Await(kQueued + 2);
  ASSERT_EQ(told.size(), kQueued + 2);
  EXPECT_EQ(told.back(), "last OK");
  store_.reset();
}

TEST_F(StoreTest, ADeletedDatabaseIsWrittenAnew) {
  Start();
  ASSERT_TRUE(Insert("file-1").ok());
  std::filesystem::remove_all(dir_.path());
  EXPECT_EQ(Insert("file-2"), absl::OkStatus());
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(path()).permissions() &
                (perms::group_all | perms::others_all),
            perms::none);
  store_.reset();
  Start();
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  EXPECT_EQ(Find("file-2"), absl::OkStatus());
}

// The log of the deleted file says nothing about the new one.
TEST_F(StoreTest, ADeletedDatabaseLeavesNoLog) {
  Start();
  ASSERT_EQ(InsertHundred(), absl::OkStatus());
  ASSERT_EQ(store_->WriteNow([](Database& database) {
    return database.Run("DELETE FROM files WHERE id LIKE 'file-1%'");
  }),
            absl::OkStatus());
  // The log that is left has a few pages, which the new file has elsewhere.
  store_.reset();
  Start();
  ASSERT_EQ(Insert("file-a"), absl::OkStatus());
  ASSERT_TRUE(std::filesystem::exists(path() + "-wal"));
  std::filesystem::remove(path());
  ASSERT_EQ(Insert("file-last"), absl::OkStatus());
  store_.reset();
  Start();
  EXPECT_EQ(Find("file-last"), absl::OkStatus());
  EXPECT_EQ(Find("file-a"), absl::OkStatus());
  for (int i = 0; i < 100; ++i) {
    const std::string id = absl::StrCat("file-", i);
    EXPECT_EQ(absl::IsNotFound(Find(id)), absl::StartsWith(id, "file-1")) << id;
  }
}

// A database that cannot be opened right after it was written anew is opened
// later.
TEST_F(StoreTest, ADatabaseThatIsWrittenAnewIsOpenedAgain) {
  Start();
  ASSERT_EQ(Insert("file-1"), absl::OkStatus());
  ASSERT_EQ(Find("file-1"), absl::OkStatus());
  for (const char* const suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(path() + suffix);
  }
  const std::string obstacle = path() + "-wal";
  std::filesystem::create_directory(obstacle);
  const absl::Status blocked = Insert("file-2");
  EXPECT_FALSE(blocked.ok());
  EXPECT_FALSE(store_->is_lost()) << blocked;
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  EXPECT_FALSE(Insert("file-2").ok());
  std::filesystem::remove(obstacle);
  EXPECT_EQ(Insert("file-3"), absl::OkStatus());
  store_.reset();
  Start();
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(Find("file-2")));
  EXPECT_EQ(Find("file-3"), absl::OkStatus());
}

// A process that ended while it wrote a deleted database anew left a copy.
TEST_F(StoreTest, ACopyIsUsedIfThereIsNoDatabase) {
  const std::string copy = path() + ".restored";
  Start();
  ASSERT_EQ(Insert("file-1"), absl::OkStatus());
  store_.reset();
  std::filesystem::rename(path(), copy);
  Start();
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  store_.reset();
  testing::WriteFile(copy, "half a copy");
  Start();
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
}

TEST_F(StoreTest, AStoreIsForItsUserAlone) {
  Start();
  using std::filesystem::perms;
  for (const std::string& made : {path(), store_->FilePath("")}) {
    EXPECT_EQ(std::filesystem::status(made).permissions() &
                  (perms::group_all | perms::others_all),
              perms::none)
        << made;
  }
}

TEST_F(StoreTest, DamageThatIsFoundLaterLosesTheStore) {
  Start();
  ASSERT_EQ(InsertHundred(), absl::OkStatus());
  store_.reset();
  Start();
  std::string bytes = testing::ReadFile(path());
  for (size_t i = 4096; i < bytes.size(); i += 8) bytes[i] ^= 0x55;
  testing::WriteFile(path(), bytes);  // The file stays the same.
  const absl::Status damaged = store_->WriteNow([](Database& database) {
    const absl::Status forgotten = database.Run("PRAGMA shrink_memory");
    return forgotten.ok() ? InsertFile(database, UploadOf("file-x"))
                          : forgotten;
  });
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_TRUE(absl::StrContains(damaged.message(), path())) << damaged;
  EXPECT_TRUE(store_->is_lost());
  EXPECT_TRUE(absl::IsDataLoss(store_->trouble()));
}

TEST_F(StoreTest, AnotherFileInItsPlaceIsLeftAlone) {
  Start();
  testing::WriteFile(dir_.File("other"), "someone's");
  std::filesystem::rename(dir_.File("other"), path());
  const absl::Status status = Insert("file-1");
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(store_->is_lost());
  EXPECT_EQ(testing::ReadFile(path()), "someone's");
  // Whoever was told of the loss did not try again.
  std::filesystem::rename(path(), dir_.File("other"));
  EXPECT_TRUE(absl::IsDataLoss(Insert("file-1")));
  EXPECT_TRUE(store_->is_lost());
}

TEST_F(StoreTest, DamagedAndForeignFilesAreNamed) {
  testing::WriteFile(path(), std::string(5000, 'x'));
  const absl::Status foreign = Open().status();
  EXPECT_TRUE(absl::IsDataLoss(foreign)) << foreign;
  EXPECT_TRUE(absl::StrContains(foreign.message(), path())) << foreign;
  std::filesystem::remove(path());
  Start();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(Insert(absl::StrCat("file-", i)).ok());
  }
  store_.reset();
  // Pages behind the schema's.
  const auto size = std::filesystem::file_size(path());
  ASSERT_GT(size, 40'000);
  std::string bytes = testing::ReadFile(path());
  for (size_t i = 4096; i < bytes.size(); i += 8) bytes[i] ^= 0x55;
  testing::WriteFile(path(), bytes);
  const absl::Status damaged = Open().status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_TRUE(absl::StrContains(damaged.message(), ".recover")) << damaged;
  EXPECT_FALSE(absl::StrContains(damaged.message(), "\n")) << damaged;
}

TEST_F(StoreTest, ANewerSchemaIsRefused) {
  Start();
  const std::string newer =
      absl::StrCat("PRAGMA user_version = ", kSchemaVersion + 1);
  ASSERT_TRUE(store_
                  ->WriteNow([&newer](Database& database) {
                    return database.Run(newer);
                  })
                  .ok());
  store_.reset();
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "newer ringfleet")) << status;
}

TEST_F(StoreTest, ADatabaseOfAnotherProgramIsRefused) {
  auto other = Database::Open(path(), Database::Access::kReadWrite);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_EQ((*other)->Run("CREATE TABLE songs (name TEXT)"), absl::OkStatus());
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "another program")) << status;
}

// Whoever only reads tells of damage, too.
TEST_F(StoreTest, DamageThatAReaderFindsLosesTheStore) {
  Start();
  ASSERT_EQ(InsertHundred(), absl::OkStatus());
  store_.reset();
  std::string bytes = testing::ReadFile(path());
  Start();
  for (size_t i = 3 * 4096; i < bytes.size(); i += 8) bytes[i] ^= 0x55;
  testing::WriteFile(path(), bytes);  // The file stays the same.
  absl::Status found;
  for (int i = 0; i < 100 && !absl::IsDataLoss(found); ++i) {
    found = Find(absl::StrCat("file-", i));
  }
  EXPECT_TRUE(absl::IsDataLoss(found)) << found;
  EXPECT_TRUE(store_->is_lost());
  EXPECT_TRUE(absl::IsDataLoss(store_->trouble())) << store_->trouble();
  EXPECT_TRUE(absl::IsDataLoss(Insert("file-x")));
}

TEST_F(StoreTest, ARunningOwnerIsNamed) {
  Start();
  const absl::Status second = Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_TRUE(absl::StrContains(second.message(),
                                absl::StrCat("fleet test, process ", getpid())))
      << second;
  EXPECT_EQ(Insert("file-1"), absl::OkStatus());
}

// A process that was stopped while another took over writes nothing more.
TEST_F(StoreTest, AStoppedOwnerIsReplacedAndFenced) {
  Start();
  ASSERT_TRUE(Insert("file-1").ok());
  std::unique_ptr<Store> stopped = std::move(store_);
  // The lock of another process that does not run, in the place of the first
  // owner's, which cannot be stopped without this test.
  const std::string owner = dir_.File("owner");
  std::filesystem::remove(owner);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(owner.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0 || flock(file, LOCK_EX | LOCK_NB) != 0 ||
        write(ready[1], "x", 1) != 1) {
      _exit(1);
    }
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  auto second = Open(absl::Milliseconds(200));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(second.ok()) << second.status();
  store_ = *std::move(second);
  EXPECT_EQ(Find("file-1"), absl::OkStatus());
  const absl::Status fenced = stopped->WriteNow([](Database& database) {
    return InsertFile(database, UploadOf("file-2"));
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(fenced)) << fenced;
  EXPECT_TRUE(stopped->is_lost());
  EXPECT_TRUE(absl::IsNotFound(Find("file-2")));
  EXPECT_EQ(Insert("file-3"), absl::OkStatus());
}

TEST(NetworkFileSystemTest, TheKernelsTypesAreKnown) {
  for (const auto& [type, name] : std::vector<std::pair<int64_t, std::string>>{
           {NFS_SUPER_MAGIC, "NFS"},
           {SMB_SUPER_MAGIC, "SMB"},
           {SMB2_SUPER_MAGIC, "SMB"},
           {CIFS_SUPER_MAGIC, "CIFS"},
           {V9FS_MAGIC, "9P"},
           {CEPH_SUPER_MAGIC, "Ceph"},
           {AFS_SUPER_MAGIC, "AFS"},
           {OCFS2_SUPER_MAGIC, "OCFS2"},
           {FUSE_SUPER_MAGIC, "FUSE"}}) {
    const char* const found = NetworkFileSystemOf(static_cast<uint32_t>(type));
    EXPECT_EQ(found == nullptr ? "" : std::string(found), name);
  }
  for (const int64_t local : {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, TMPFS_MAGIC,
                              int{OVERLAYFS_SUPER_MAGIC}}) {
    EXPECT_EQ(NetworkFileSystemOf(static_cast<uint32_t>(local)), nullptr);
  }
}

TEST(CheckLocalFolderTest, NamesTheFolder) {
  TempDir dir;
  EXPECT_EQ(CheckLocalFolder(dir.path()), absl::OkStatus());
  const absl::Status missing = CheckLocalFolder(dir.File("none"));
  EXPECT_TRUE(absl::StrContains(missing.message(), dir.File("none")))
      << missing;
}

}  // namespace
}  // namespace ringfleet::coordinator
