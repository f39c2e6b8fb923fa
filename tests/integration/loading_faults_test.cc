// SPDX-License-Identifier: Apache-2.0
// What can go wrong between a checkpoint and a running fleet: workers that are
// killed, disks that are full, files that may not be read, that have changed,
// or that hold one other bit. The next start recovers, or says why it cannot.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;

// Workers that keep packed shards die and come back.
class LoadKillFleetTest : public HandFleet {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartFleet(2, {"--cache-dir", File("cache")}));
    right_ = GreedyIds();
    AwaitSoundShards();
  }

  json GreedyIds() {
    const Finished finished =
        Cli({"generate", "--cluster", cluster(), "-p", "def main(", "-n", "12",
             "--temp", "0", "--json"});
    EXPECT_EQ(finished.code, 0) << finished.errors;
    return finished.code == 0 ? finished.document()["ids"] : json();
  }

  std::vector<std::string> FilesEndingWith(const std::string& end) const {
    std::vector<std::string> paths;
    for (const auto& entry :
         std::filesystem::directory_iterator(File("cache"))) {
      if (entry.path().extension() == end) {
        paths.push_back(entry.path().string());
      }
    }
    return paths;
  }

  // Workers write them while they serve. `convert` checks every byte.
  void AwaitSoundShards() {
    const auto files = [this] {
      return std::distance(std::filesystem::directory_iterator(File("cache")),
                           std::filesystem::directory_iterator());
    };
    EXPECT_TRUE(WaitUntil(20, [&] {
      return FilesEndingWith(".packed").size() == 2 && files() == 2;
    })) << "a shard is missing, or a part of one is left";
    const json checked =
        Cli({"convert", "--model", Model(), "--local", "2", "--cache-dir",
             File("cache"), "--no-manifest", "--json"})
            .document();
    EXPECT_EQ(checked["kept"], 2) << checked;
  }

  // Takes a rank's shard away, or puts another file in its place with one other
  // bit, or cut off. (The worker has ended: nobody has the first file mapped.)
  void Spoil(int rank, uint64_t how, size_t at) {
    const std::string part = "-rank" + std::to_string(rank) + "-";
    for (const std::string& path : FilesEndingWith(".packed")) {
      if (how > 2 || path.find(part) == std::string::npos) continue;
      std::string bytes = testing::ReadFile(path);
      std::filesystem::remove(path);
      if (how == 0) continue;
      if (how == 1) bytes[at] ^= 1;
      if (how == 2) bytes.resize(at);
      testing::WriteFile(path, bytes);
    }
  }

  // Ends a worker, does something to the folder, and ends its successor at a
  // random moment of its start, its load or its writing. The one after that
  // serves.
  void KillOnce(std::mt19937_64& random) {
    const int rank = static_cast<int>(random() % 2);
    const uint64_t folder = random() % 4;
    const auto delay = std::chrono::milliseconds(
        static_cast<int>((random() % 500) * testing::kSlowdown));
    SCOPED_TRACE(::testing::Message()
                 << "worker " << rank << " after " << delay.count()
                 << " ms, folder " << folder);
    End(rank);
    Spoil(rank, folder, random() % 100'000);
    StartWorker(rank);
    std::this_thread::sleep_for(delay);
    End(rank);
    StartWorker(rank);
    ASSERT_TRUE(WaitUntil(20, [&] { return ServesWith(rank); }))
        << coordinator_->errors() << workers_[rank]->errors();
    EXPECT_EQ(GreedyIds(), right_);
    AwaitSoundShards();
  }

 private:
  void End(int rank) {
    workers_[rank]->Signal(SIGKILL);
    workers_[rank]->Wait(5);
  }
  // Whether the fleet is ready with the worker that was started last.
  bool ServesWith(int rank) {
    const json status = Status();
    if (status.value("state", "") != "ready") return false;
    for (const json& worker : status["workers"]) {
      if (worker["rank"] == rank) return worker["pid"] == workers_[rank]->pid();
    }
    return false;
  }

  json right_;
};

TEST_F(LoadKillFleetTest, TheFleetComesBackWithTheSameWeights) {
  std::mt19937_64 random(31);
  for (int i = 0; i < (kSanitized ? 1 : 4) && !HasFailure(); ++i) {
    KillOnce(random);
  }
}

TEST_F(LoadKillFleetTest, SoakTheFleetComesBackWithTheSameWeights) {
  const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(
                       60.0 * std::atof(minutes == nullptr ? "1" : minutes));
  std::mt19937_64 random(std::random_device{}());
  int rounds = 0;
  for (; std::chrono::steady_clock::now() < end && !HasFailure(); ++rounds) {
    KillOnce(random);
  }
  RecordProperty("rounds", rounds);
}

class LoadingFaultsTest : public HandFleet {
 protected:
  // A command that sees an empty file system at File("cache"), then a list of
  // what it has left there.
  Finished OnSmallDisk(Arguments command, const std::string& size) {
    Arguments all = {"--mount",
                     "sh",
                     "-c",
                     "mount -t tmpfs -o size=" + size +
                         " tmpfs \"$0\" || exit 77\n\"$@\"\ncode=$?\n"
                         "ls -A \"$0\"\nexit $code\n",
                     File("cache"),
                     RINGFLEET_BINARY};
    all.insert(all.end(), command.begin(), command.end());
    std::filesystem::create_directories(File("cache"));
    return Run("/usr/bin/unshare", std::move(all));
  }
  bool MayMount() { return OnSmallDisk({"--version"}, "64k").code == 0; }

  // A command that may read what permissions say, as root too.
  Finished CliAsUser(Arguments arguments) {
    if (geteuid() != 0) return Cli(std::move(arguments));
    arguments.insert(
        arguments.begin(),
        {"--bounding-set=-dac_override,-dac_read_search", RINGFLEET_BINARY});
    return Run("/usr/bin/setpriv", std::move(arguments));
  }

  Arguments Generate(const std::string& model, Arguments more = {}) {
    Arguments arguments = {"generate", "--model",      model,      "--local",
                           "2",        "--prompt-ids", "0,318,77", "-n",
                           "4",        "--temp",       "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::string Error() {
    return Cli({"call", "127.0.0.1:" + std::to_string(port()),
                "ringfleet.v1.Coordinator/DescribeCluster", "{}"})
        .document()
        .value("error", "");
  }
};

TEST_F(LoadingFaultsTest, AFullDiskIsNoObstacleToACommand) {
  if (!MayMount()) GTEST_SKIP() << "no file system can be mounted here";
  const Finished finished =
      OnSmallDisk(Generate(Model(), {"--cache-dir", File("cache")}), "256k");
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.errors, AllOf(HasSubstr("the packed shard is not kept"),
                                     HasSubstr("No space left on device")));
}

TEST_F(LoadingFaultsTest, ConvertOnAFullDiskNamesTheFileAndLeavesNothing) {
  if (!MayMount()) GTEST_SKIP() << "no file system can be mounted here";
  const Arguments convert = {"convert", "--model",     Model(),      "--local",
                             "2",       "--cache-dir", File("cache")};
  const Finished full = OnSmallDisk(convert, "256k");
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.error_line(),
              AllOf(HasSubstr("rank"), HasSubstr(File("cache/")),
                    HasSubstr("room for"),  // Before anything was read.
                    HasSubstr("No space left on device")));
  EXPECT_EQ(full.output, "");
  const Finished large = OnSmallDisk(convert, "100m");
  EXPECT_EQ(large.code, 0) << large.errors;
  EXPECT_THAT(large.output, HasSubstr("manifest.json\n"));
}

TEST_F(LoadingFaultsTest, FilesThatMayNotBeReadAreNamed) {
  const std::string model = CopyModel();
  for (const char* name :
       {"model-00002-of-00002.safetensors", "model.safetensors.index.json",
        "config.json", "tokenizer.json"}) {
    const std::string path = model + "/" + name;
    std::filesystem::permissions(path, std::filesystem::perms::none);
    const Finished finished =
        CliAsUser({"generate", "--model", model, "--local", "2", "-p", "def ",
                   "-n", "1", "--json"});
    EXPECT_EQ(finished.code, 2) << name;
    EXPECT_THAT(finished.error_line(),
                AllOf(HasSubstr(path), HasSubstr("Permission denied")));
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  EXPECT_EQ(CliAsUser(Generate(model)).code, 0);
}

TEST_F(LoadingFaultsTest, AFolderThatMayNotBeWrittenIsNamed) {
  std::filesystem::create_directories(File("cache"));
  std::filesystem::permissions(
      File("cache"),
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const Finished packed =
      CliAsUser({"convert", "--model", Model(), "--cache-dir", File("cache"),
                 "--no-manifest", "--json"});
  EXPECT_EQ(packed.code, 2);
  EXPECT_THAT(packed.error_line(),
              AllOf(HasSubstr(File("cache/")), HasSubstr("Permission denied")));
  std::filesystem::permissions(File("cache"),
                               std::filesystem::perms::owner_all);
}

// Every byte of a checkpoint belongs to a tensor that is named when the byte
// changes, wherever it lies between the pages that a start samples.
TEST_F(LoadingFaultsTest, AFlippedByteOfACheckpointIsFoundAndNamed) {
  const std::string model = CopyModel();
  ASSERT_EQ(
      Cli({"convert", "--model", model, "--cache-dir", File("cache")}).code, 0);
  std::mt19937_64 random(37);
  for (int i = 0; i < (kSanitized ? 2 : 5); ++i) {
    const std::string path = model + "/model-0000" +
                             std::to_string(1 + random() % 2) +
                             "-of-00002.safetensors";
    const std::string bytes = testing::ReadFile(path);
    uint64_t length;
    std::memcpy(&length, bytes.data(), sizeof(length));
    const json header = json::parse(bytes.substr(8, length));
    const size_t at = random() % (bytes.size() - 8 - length);  // Of the data.
    std::string owner;
    for (const auto& [name, tensor] : header.items()) {
      if (name == "__metadata__") continue;
      const json& offsets = tensor["data_offsets"];
      if (offsets[0] <= at && at < offsets[1]) owner = name;
    }
    ASSERT_NE(owner, "");
    testing::FlipByte(path, 8 + length + at);
    const Finished differs = Cli({"convert", "--model", model, "--check",
                                  File("cache/manifest.json"), "--json"});
    EXPECT_EQ(differs.code, 4);
    EXPECT_THAT(differs.error_line(), HasSubstr(owner + ": "))
        << "byte " << at << " of " << path;
    testing::FlipByte(path, 8 + length + at);
  }
  EXPECT_EQ(
      Cli({"convert", "--model", model, "--check", File("cache/manifest.json")})
          .code,
      0);
}

// A running fleet has what it has read. When it has to read again, it does not
// mix one checkpoint with another, nor serve what it was not started with.
TEST_F(LoadingFaultsTest, ACheckpointThatChangesUnderAFleetIsNamed) {
  const std::string model = CopyModel();
  const std::string file = model + "/model-00001-of-00002.safetensors";
  const std::string sound = testing::ReadFile(file);
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, {}, {}, 0, model));
  StartWorker(0);
  // At one address: a fleet that has failed takes it back at once, another one
  // when its lease has ended.
  const std::string address =
      "127.0.0.1:" + std::to_string(testing::FreePort());
  const auto start = [&] {
    workers_[1] =
        Start(RINGFLEET_WORKER_BINARY,
              {"--rank", "1", "--listen", address, "--coordinator",
               "127.0.0.1:" + std::to_string(this->port()), "--threads", "1"});
  };
  start();
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  const auto generate = [this] {
    return Cli({"generate", "--cluster", cluster(), "--prompt-ids", "0,318,77",
                "-n", "8", "--temp", "0", "--json"});
  };
  const json right = generate().document()["ids"];
  const auto restart = [&] {
    workers_[1]->Signal(SIGKILL);
    workers_[1]->Wait(5);
    start();
  };

  // Another bit in the last page of a file, then half of that file.
  for (const bool truncates : {false, true}) {
    SCOPED_TRACE(truncates);
    if (truncates) {
      std::filesystem::resize_file(file, sound.size() / 2);
    } else {
      testing::FlipByte(file, sound.size() - 1);
    }
    EXPECT_EQ(generate().document()["ids"], right);
    restart();
    const std::string want = truncates ? "data_offsets" : "has changed since";
    EXPECT_TRUE(WaitUntil(20, [&] {
      return Error().find(want) != std::string::npos;
    })) << Error();
    const Finished refused = generate();
    EXPECT_EQ(refused.code, 4);
    EXPECT_THAT(refused.error_line(),
                AllOf(HasSubstr("worker"), HasSubstr(want),
                      HasSubstr(truncates ? file : model)));
    testing::WriteFile(file, sound);
    restart();
    ASSERT_TRUE(WaitUntil(20, [&] {
      return Status().value("state", "") == "ready";
    })) << coordinator_->errors();
    EXPECT_EQ(generate().document()["ids"], right);
  }
}

// A fleet on two hosts, as far as `ssh` and its mounts tell: what stands for
// ssh runs a command where the host's own folder lies at File("cache"), and for
// beta no model at File("model").
class ConvertOnHostsTest : public LoadingFaultsTest {
 protected:
  void SetUp() override {
    if (!MayMount()) GTEST_SKIP() << "no file system can be mounted here";
    CopyModel();
    for (const char* host : {"alpha", "beta"}) {
      std::filesystem::create_directories(File(host));
    }
    std::filesystem::create_directories(File("nothing"));
    std::filesystem::create_directories(File("path"));
    testing::WriteFile(
        File("path/ssh"),
        "#!/bin/bash\nwhile [[ $1 == -* ]]; do\n  [[ $1 == -T ]] || shift\n"
        "  shift\ndone\nexport HOST_FOLDER=" +
            File("") +
            "/$1 HOST=$1 COMMAND=$2\nexec unshare --mount bash -c '" +
            "mount --bind \"$HOST_FOLDER\" " + File("cache") +
            " && { [[ $HOST != beta ]] || mount --bind " + File("nothing") +
            " " + File("model") + "; } && exec bash -c \"$COMMAND\"'\n");
    std::filesystem::permissions(File("path/ssh"),
                                 std::filesystem::perms::owner_all);
    for (int& port : ports_) port = testing::FreePort();
    WriteCluster(ports_[1]);
  }
  void TearDown() override {
    if (!IsSkipped()) CliOverSsh({"down", "--cluster", cluster()});
  }

  void WriteCluster(int beta_port) {
    testing::WriteFile(
        cluster(),
        "name: hosts\nmodel: " + File("model") +
            "\ncache_dir: " + File("cache") +
            "\ncoordinator: {port: " + std::to_string(ports_[2]) +
            "}\nworkers:\n  - {host: alpha, "
            "address: 127.0.0.1, threads: 1, port: " +
            std::to_string(ports_[0]) +
            "}\n  - {host: beta, address: 127.0.0.1, threads: 1, port: " +
            std::to_string(beta_port) + "}\n");
  }
  Finished CliOverSsh(Arguments arguments) {
    return Cli(std::move(arguments),
               {.environment = {{"PATH", File("path:") + std::getenv("PATH")}},
                .seconds = 60});
  }
  std::vector<std::string> ShardsOn(const std::string& host) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(File(host))) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  int ports_[3] = {};
};

TEST_F(ConvertOnHostsTest, EachHostPacksItsRankAndFetchesWhatItLacks) {
  const Arguments convert = {"convert", "--cluster", cluster(), "--json"};
  const Finished first = CliOverSsh(convert);
  ASSERT_EQ(first.code, 0) << first.errors;
  EXPECT_EQ(first.document()["packed"], 2);
  EXPECT_THAT(ShardsOn("alpha"),
              ElementsAre(HasSubstr("-1x1x2-rank0-int8.packed")));
  EXPECT_THAT(ShardsOn("beta"),
              ElementsAre(HasSubstr("-1x1x2-rank1-int8.packed")));
  EXPECT_TRUE(std::filesystem::exists(File("cache/manifest.json")));
  ExpectNoProcesses(0);
  const Finished again = CliOverSsh(convert);
  ASSERT_EQ(again.code, 0) << again.errors;
  EXPECT_EQ(again.document()["kept"], 2);
  EXPECT_EQ(CliOverSsh({"convert", "--cluster", cluster(), "--check",
                        File("cache/manifest.json")})
                .code,
            0);
  ExpectNoProcesses(0);
}

TEST_F(ConvertOnHostsTest, SaysWhyItCannot) {
  // A host whose folder cannot be made.
  testing::WriteFile(File("alpha/file"), "");
  const Finished failed =
      CliOverSsh({"convert", "--cluster", cluster(), "--cache-dir",
                  File("cache/file/shards"), "--json"});
  EXPECT_EQ(failed.code, 2);
  EXPECT_THAT(failed.document()["error"]["message"].get<std::string>(),
              AllOf(HasSubstr("rank 0 on alpha: "),
                    HasSubstr(File("cache/file/shards")),
                    HasSubstr("Not a directory")));
  ExpectNoProcesses(0);

  WriteCluster(/*beta_port=*/0);
  const Finished unknown =
      CliOverSsh({"convert", "--cluster", cluster(), "--json"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.error_line(), HasSubstr("worker 1 has port 0"));

  // Something that the command has not started.
  WriteCluster(ports_[1]);
  const auto other = Start(RINGFLEET_WORKER_BINARY,
                           {"--coordinator", "none", "--listen",
                            "127.0.0.1:" + std::to_string(ports_[1])});
  Finished runs;
  ASSERT_TRUE(WaitUntil(10, [&] {
    return other->errors().find("listening") != std::string::npos;
  })) << other->errors();
  runs = CliOverSsh({"convert", "--cluster", cluster(), "--json"});
  EXPECT_EQ(runs.code, 3);
  EXPECT_THAT(runs.error_line(), AllOf(HasSubstr("worker 1 (127.0.0.1:"),
                                       HasSubstr("runs, want it down")));
  EXPECT_TRUE(other->Running());
}

}  // namespace
}  // namespace ringfleet::integration
