// SPDX-License-Identifier: Apache-2.0
// Processes that are killed while they load a shard or write it to its folder:
// the next load gets the same weights, from a folder that holds one sound file
// again, whatever was in there before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/sanitized.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::worker {
namespace {

using std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LoadKillTest : public ::testing::Test {
 protected:
  LoadKillTest() {
    request_.set_model_path(RINGFLEET_TEST_MODELS "/tiny-v3");
    request_.set_dtype(v1::DTYPE_INT8);
    request_.set_shard_cache(folder_.File("cache"));
    request_.set_await_shard_cache(true);
    request_.set_context(16);
    request_.set_slots(1);
    v1::Mesh* mesh = request_.mutable_layout()->mutable_mesh();
    mesh->set_data(1);
    mesh->set_expert(1);
    mesh->set_tensor(2);
    request_.mutable_layout()->set_rank(1);
  }

  void SetUp() override {
    const auto first = Load();
    ASSERT_NE(first, nullptr);
    ASSERT_EQ(Names().size(), 1u);
    path_ = folder_.File("cache/" + Names()[0]);
    sound_ = testing::ReadFile(path_);
    const auto begun = steady_clock::now();
    std::filesystem::remove(path_);
    const pid_t child = StartChild();
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    duration_ = steady_clock::now() - begun;
  }

  std::unique_ptr<LoadedShard> Load() const {
    auto loaded = LoadShardFor(
        request_,
        {.threads = 2,
         .available_memory_bytes = std::numeric_limits<uint64_t>::max()},
        [](const auto&) { return absl::OkStatus(); });
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(request_.shard_cache())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  // A process that does nothing but the load.
  pid_t StartChild() const {
    const pid_t child = fork();
    if (child == 0) _exit(Load() == nullptr ? 1 : 0);
    return child;
  }

  bool Writes() const {
    for (const std::string& name : Names()) {
      if (absl::StrContains(name, ".partial.")) return true;
    }
    return false;
  }

  // What the folder holds when the process begins.
  enum class Before { kNothing, kASoundShard, kADamagedShard };

  // Kills a load at a random moment: of all of it, or of its write.
  void KillOnce(std::mt19937_64& random) {
    const auto before = static_cast<Before>(random() % 3);
    const bool in_the_write = random() % 2 == 0;
    std::filesystem::remove(path_);
    if (before != Before::kNothing) {
      std::string bytes = sound_;
      if (before == Before::kADamagedShard) bytes[bytes.size() / 3] ^= 16;
      testing::WriteFile(path_, bytes);
    }
    const auto delay = std::chrono::duration_cast<std::chrono::microseconds>(
        duration_ * (static_cast<double>(random() % 1000) / 1000) *
        (in_the_write ? 0.3 : 1.0));
    SCOPED_TRACE(::testing::Message()
                 << "before: " << static_cast<int>(before) << ", killed "
                 << delay.count() << " us after "
                 << (in_the_write ? "the write's begin" : "the start"));
    const pid_t child = StartChild();
    ASSERT_GT(child, 0);
    int status = 0;
    bool ended = false;
    // What is there and sound is not written again.
    while (in_the_write && before != Before::kASoundShard && !Writes() &&
           !(ended = waitpid(child, &status, WNOHANG) == child)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (!ended) {
      std::this_thread::sleep_for(delay);
      kill(child, SIGKILL);
      ASSERT_EQ(waitpid(child, &status, 0), child);
    }
    if (WIFSIGNALED(status)) {
      ++(Writes() ? killed_writing_ : killed_beside_);
    } else {
      EXPECT_EQ(WEXITSTATUS(status), 0);
    }

    const bool has_shard = std::filesystem::exists(path_);
    const bool is_sound = has_shard && testing::ReadFile(path_) == sound_;
    const auto next = Load();
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(next->from_cache, is_sound);
    if (!has_shard || is_sound) {
      EXPECT_EQ(next->warning, "");
    } else {  // The damage of before; a kill makes none.
      EXPECT_EQ(before, Before::kADamagedShard);
      EXPECT_THAT(next->warning, HasSubstr("differ from their hash"));
    }
    // What is mapped, or was packed anew, is what was there in the beginning;
    // a shard that is only read leaves what a killed writer has left.
    EXPECT_EQ(testing::ReadFile(path_), sound_);
    if (!next->from_cache) {
      EXPECT_THAT(Names(),
                  ElementsAre(std::filesystem::path(path_).filename()));
    }
  }

  testing::TempDir folder_;
  v1::LoadRequest request_;
  std::string path_;                        // Of the shard,
  std::string sound_;                       // and its bytes.
  std::chrono::duration<double> duration_;  // Of a process that packs it.
  int killed_writing_ = 0;
  int killed_beside_ = 0;
};

TEST_F(LoadKillTest, TheNextLoadRecovers) {
  std::mt19937_64 random(29);
  for (int i = 0; i < (testing::kSanitized ? 6 : 24) && !HasFailure(); ++i) {
    KillOnce(random);
  }
  EXPECT_GT(killed_writing_ + killed_beside_, 0);
}

TEST_F(LoadKillTest, SoakTheNextLoadRecovers) {
  const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
  const auto end = steady_clock::now() +
                   std::chrono::duration<double>(
                       60.0 * std::atof(minutes == nullptr ? "1" : minutes));
  std::mt19937_64 random(std::random_device{}());
  while (steady_clock::now() < end && !HasFailure()) KillOnce(random);
  RecordProperty("killed_writing", killed_writing_);
  RecordProperty("killed_beside", killed_beside_);
  std::printf("killed %d loads while they wrote and %d at other moments\n",
              killed_writing_, killed_beside_);
}

}  // namespace
}  // namespace ringfleet::worker
