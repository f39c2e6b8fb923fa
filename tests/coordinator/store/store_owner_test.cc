// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/store_owner.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/file_table.h"
#include "coordinator/store/schema.h"
#include "coordinator/store/store.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(100);
constexpr absl::Duration kLong = absl::Minutes(1);

// The owner of a folder as other processes see it: it has the lock on the file
// `owner`, whose number rises while it runs. It is stopped at first.
class PlayedOwner {
 public:
  explicit PlayedOwner(const std::string& folder)
      : file_(open((folder + "/owner").c_str(), O_RDWR | O_CREAT, 0600)) {
    EXPECT_EQ(flock(file_, LOCK_EX | LOCK_NB), 0);
    Write(0);
  }
  ~PlayedOwner() {
    {
      MutexLock lock(&mu_);
      ended_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
    close(file_);
  }
  void Continue() {
    thread_ = std::thread([this] {
      MutexLock lock(&mu_);
      for (int number = 1; !ended_; ++number) {
        Write(number);
        changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() +
                                     std::chrono::milliseconds(1));
      }
    });
  }

 private:
  void Write(int number) {
    const std::string text =
        absl::StrCat("id\nfleet first\n", 1'000'000 + number, "\n");
    EXPECT_EQ(pwrite(file_, text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
  }

  const int file_;
  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

class StoreOwnerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<StoreOwner>> Take(
      absl::Duration patience, const std::string& name = "fleet next") {
    return StoreOwner::Take(dir_.path(), name, patience);
  }
  absl::StatusOr<std::unique_ptr<Store>> OpenStore(absl::Duration patience) {
    return Store::Open({.folder = dir_.path(),
                        .description = "fleet next",
                        .patience = patience});
  }
  // Expects that the first owner runs and is named.
  static void ExpectInUse(const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "in use by fleet first"))
        << status;
  }
  bool HasReplaced() const {
    return std::filesystem::exists(dir_.File("owner.replaced"));
  }

  testing::TempDir dir_;
};

TEST_F(StoreOwnerTest, AStoppedOwnerIsReplacedForGoodByAnId) {
  PlayedOwner first(dir_.path());
  auto second = Take(kShort);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(HasReplaced());
  (*second)->OnIdLeft();
  EXPECT_FALSE(HasReplaced());
  second->reset();
  first.Continue();
  EXPECT_TRUE(Take(kLong).ok());
}

TEST_F(StoreOwnerTest, AnOwnerGoesOnWhoseSuccessorsLeaveNoId) {
  auto first = std::make_unique<PlayedOwner>(dir_.path());
  for (int i = 0; i < 2; ++i) {
    const auto successor = Take(kShort);
    ASSERT_TRUE(successor.ok()) << successor.status();
  }
  first->Continue();
  ExpectInUse(Take(kLong).status());
  ExpectInUse(Take(kLong).status());
  first.reset();
  EXPECT_TRUE(Take(kLong).ok());
}

// The second one ended between its id and what follows it.
TEST_F(StoreOwnerTest, AnOwnerThatFindsAnotherIdKeepsNobodyOut) {
  const auto first = OpenStore(kLong);
  ASSERT_TRUE(first.ok()) << first.status();
  std::filesystem::rename(dir_.File("owner"), dir_.File("owner.replaced"));
  {
    auto second =
        Database::Open(dir_.File("state.db"), Database::Access::kReadWrite);
    ASSERT_TRUE(second.ok()) << second.status();
    ASSERT_EQ((*second)->Run("UPDATE owner SET id = 'another'"),
              absl::OkStatus());
  }
  const absl::Status status =
      (*first)->WriteNow([](Database&) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  const auto third = OpenStore(kLong);
  EXPECT_TRUE(third.ok()) << third.status();
  EXPECT_FALSE(HasReplaced());
}

// The second one is stopped, too, before it leaves its id.
TEST_F(StoreOwnerTest, AReplacedSuccessorLeavesNoId) {
  auto first = std::make_unique<PlayedOwner>(dir_.path());
  std::filesystem::rename(dir_.File("owner"), dir_.File("owner.replaced"));
  auto second = std::make_unique<PlayedOwner>(dir_.path());
  {
    const auto third = Take(kShort);
    ASSERT_TRUE(third.ok()) << third.status();
  }
  second.reset();
  first->Continue();
  ExpectInUse(Take(kLong).status());
  first.reset();
  const auto last = Take(kLong);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ((*last)->CheckNotReplaced(), absl::OkStatus());
  std::filesystem::remove(dir_.File("owner"));
  EXPECT_TRUE(absl::IsFailedPrecondition((*last)->CheckNotReplaced()));
  PlayedOwner other(dir_.path());
  EXPECT_TRUE(absl::IsFailedPrecondition((*last)->CheckNotReplaced()));
}

TEST_F(StoreOwnerTest, AStoreThatCannotBeOpenedChangesNoOwner) {
  auto opened = OpenStore(kLong);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const std::unique_ptr<Store> store = *std::move(opened);
  const auto set_version = [&store](int version) {
    return store->WriteNow([version](Database& database) {
      return database.Run(absl::StrCat("PRAGMA user_version = ", version));
    });
  };
  ASSERT_EQ(set_version(kSchemaVersion + 1), absl::OkStatus());
  // The store's process has stopped.
  std::filesystem::remove(dir_.File("owner"));
  PlayedOwner first(dir_.path());
  const absl::Status newer = OpenStore(kShort).status();
  EXPECT_TRUE(absl::StrContains(newer.message(), "newer ringfleet")) << newer;
  EXPECT_TRUE(HasReplaced());
  first.Continue();
  ExpectInUse(OpenStore(kLong).status());
  EXPECT_EQ(set_version(kSchemaVersion), absl::OkStatus());
}

TEST_F(StoreOwnerTest, AnOpenStoreHasReplacedTheOwnerBefore) {
  PlayedOwner first(dir_.path());
  const auto store = OpenStore(kShort);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE(HasReplaced());
}

// A process that was stopped between its lock and its database finds another
// one there.
TEST_F(StoreOwnerTest, AStoreWhoseOwnerWasReplacedIsNotOpened) {
  ASSERT_TRUE(OpenStore(kLong).ok());
  const auto deadline = testing::Soon();
  absl::Status status;
  do {
    std::filesystem::remove(dir_.File("owner"));
    auto other =
        Database::Open(dir_.File("state.db"), Database::Access::kReadWrite);
    ASSERT_TRUE(other.ok()) << other.status();
    ASSERT_EQ((*other)->Run("BEGIN IMMEDIATE"), absl::OkStatus());
    std::thread opener([&] { status = OpenStore(kLong).status(); });
    std::error_code error;
    while (
        (std::filesystem::file_size(dir_.File("owner"), error) == 0 || error) &&
        !deadline.Expired()) {
      std::this_thread::yield();
    }
    std::filesystem::remove(dir_.File("owner"));
    (*other)->Run("ROLLBACK").IgnoreError();
    opener.join();
    // SQLite waits for two seconds only.
  } while (absl::IsUnavailable(status) && !deadline.Expired());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "has taken the store over"))
      << status;
}

}  // namespace
}  // namespace ringfleet::coordinator
