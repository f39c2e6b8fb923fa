// SPDX-License-Identifier: Apache-2.0
// Fleets whose hosts do not all have the model's files. A host is a working
// folder here, and the model a path below it.
#include <filesystem>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;

// As in memory_test.cc, and what a source or a rank that fetches holds of
// streams under way.
constexpr uint64_t kBesideShardAndCache = (24 + 16) << 20;

class FetchingFleetTest : public HandFleet {
 protected:
  FetchingFleetTest() {
    CopyModel("tiny-v3", "has/model");
    std::filesystem::create_directories(File("lacks"));
    // Of a coordinator that has all but the weights.
    CopyModel("tiny-v3", "texts/model");
    for (const auto& entry :
         std::filesystem::directory_iterator(File("texts/model"))) {
      if (entry.path().extension() == ".safetensors") {
        std::filesystem::remove(entry.path());
      }
    }
  }

  void StartCoordinatorIn(const std::string& folder, Arguments more = {}) {
    more.insert(more.end(), {"--dtype", "f32", "--wire", "f32"});
    ASSERT_NO_FATAL_FAILURE(StartCoordinator(
        2, std::move(more), {.folder = File(folder)}, 0, "model"));
  }
  void StartWorkerIn(int rank, const std::string& folder) {
    StartWorker(rank, {.folder = File(folder)});
  }
  // Ends a worker without a word, and waits until the fleet knows.
  void Kill(int rank) {
    workers_[rank]->Signal(SIGKILL);
    workers_[rank]->Wait(5);
  }

  // What DescribeCluster says, and what it says of a worker.
  json Cluster() {
    return Cli({"call", "127.0.0.1:" + std::to_string(port()),
                "ringfleet.v1.Coordinator/DescribeCluster", "{}"})
        .document();
  }
  json Worker(int rank) {
    const json cluster = Cluster();
    for (const json& worker : cluster.value("workers", json::array())) {
      if (worker.value("rank", 0) == rank) return worker;
    }
    return json::object();
  }
  // A 64-bit field, which JSON has as text; left out where it is 0.
  static uint64_t Number(const json& worker, const std::string& field) {
    if (!worker.contains(field)) return 0;
    return std::stoull(worker[field].get<std::string>());
  }

  // One of the golden texts, greedily.
  void ExpectGolden() {
    const json golden = Golden("tiny-v3")["cases"][0];
    const Finished finished =
        Cli({"generate", "--cluster", cluster(), "--prompt-ids",
             JoinIds(golden["prompt_ids"]), "--temp", "0", "--ignore-eos", "-n",
             std::to_string(golden["greedy_ids"].size()), "--json"});
    ASSERT_EQ(finished.code, 0) << finished.errors;
    EXPECT_EQ(finished.document()["ids"], golden["greedy_ids"]);
  }

  void ExpectBoundedMemory() {
    if (kSanitized) return;  // A sanitizer's shadow is no measure.
    const json status = Status();
    for (const json& worker : status["workers"]) {
      EXPECT_LE(testing::StatusBytes(worker["pid"].get<int>(), "RssAnon"),
                worker["resident_bytes"].get<uint64_t>() +
                    worker["cache_bytes"].get<uint64_t>() +
                    kBesideShardAndCache)
          << "rank " << worker["rank"];
    }
  }
};

TEST_F(FetchingFleetTest, AWorkerWithoutFilesReadsThemFromAnother) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinatorIn("texts"));
  StartWorkerIn(0, "has");
  StartWorkerIn(1, "lacks");
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  ExpectGolden();
  ExpectBoundedMemory();
  const json source = Worker(0);
  EXPECT_EQ(Number(source, "bytesFetched"), 0u);
  EXPECT_GT(Number(source, "tensorBytesRead"), 0u);
  const json fetching = Worker(1);
  EXPECT_EQ(fetching["fetchesFrom"], "worker 0");
  EXPECT_EQ(fetching["loadWarning"],
            "model: no such folder; fetched from worker 0");
  EXPECT_EQ(Number(fetching, "tensorBytesRead"), 0u);
  const uint64_t fetched = Number(fetching, "tensorBytesFetched");
  EXPECT_GT(Number(fetching, "bytesFetched"), fetched);

  // The same rank where the files are: it reads as many bytes of tensors, and
  // what was fetched beside them is what describes two files.
  Kill(1);
  StartWorkerIn(1, "has");
  ASSERT_TRUE(WaitUntil(20, [&] {
    return Number(Worker(1), "tensorBytesRead") == fetched;
  })) << Worker(1);
  EXPECT_EQ(Number(Worker(1), "bytesFetched"), 0u);
}

TEST_F(FetchingFleetTest, TheCoordinatorsHostServesWorkersWithoutFiles) {
  ASSERT_NO_FATAL_FAILURE(
      StartCoordinatorIn("has", {"--cache-dir", File("cache")}));
  StartWorkerIn(0, "lacks");
  StartWorkerIn(1, "lacks");
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  ExpectGolden();
  EXPECT_EQ(Worker(0)["fetchesFrom"], "the coordinator");
  EXPECT_GT(Number(Worker(1), "tensorBytesFetched"), 0u);

  // Packed while they served; the next start fetches what describes the
  // checkpoint, and no tensor.
  const auto packed = [&] {
    int count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(File("cache"))) {
      if (entry.path().extension() == ".packed") ++count;
    }
    return count;
  };
  ASSERT_TRUE(WaitUntil(20, [&] { return packed() == 2; }));
  Kill(1);
  StartWorkerIn(1, "lacks");
  ASSERT_TRUE(WaitUntil(20, [&] {
    const json worker = Worker(1);
    return worker.value("fromShardCache", false) &&
           worker.value("state", "") == "MEMBER_STATE_READY";
  })) << Worker(1);
  EXPECT_EQ(Number(Worker(1), "tensorBytesFetched"), 0u);
  EXPECT_GT(Number(Worker(1), "bytesFetched"), 0u);
  ASSERT_EQ(WaitForState("ready")["state"], "ready");
  ExpectGolden();
}

TEST_F(FetchingFleetTest, ModelFilesThatNobodyHasAreNamed) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinatorIn("texts"));
  StartWorkerIn(0, "lacks");
  StartWorkerIn(1, "lacks");
  ASSERT_EQ(WaitForState("failed")["state"], "failed");
  const Finished finished =
      Cli({"generate", "--cluster", cluster(), "-p", "x", "-n", "1", "--json"});
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.error_line(),
              AllOf(HasSubstr("worker"), HasSubstr("model/config.json"),
                    HasSubstr("no such file")));
}

// The way to the source is so slow that the fetch takes seconds.
TEST_F(FetchingFleetTest, ASourceThatDiesEndsTheLoadAtOnce) {
  const std::string port = std::to_string(testing::FreePort());
  const auto relay = Start(RINGFLEET_DELAY_RELAY_BINARY,
                           {"--listen", "127.0.0.1:0", "--to",
                            "127.0.0.1:" + port, "--delay-us", "25000"});
  constexpr char kListening[] = "listening ";
  ASSERT_TRUE(WaitUntil(
      10, [&] { return relay->output().find('\n') != std::string::npos; }));
  std::string address = relay->output().substr(sizeof(kListening) - 1);
  address.resize(address.find('\n'));

  ASSERT_NO_FATAL_FAILURE(StartCoordinatorIn("texts"));
  const auto source =
      Start(RINGFLEET_WORKER_BINARY,
            {"--rank", "0", "--listen", "127.0.0.1:" + port, "--advertise",
             address, "--coordinator",
             "127.0.0.1:" + std::to_string(this->port()), "--threads", "1"},
            {.folder = File("has")});
  StartWorkerIn(1, "lacks");
  // It is told of its source before it asks that what there is.
  ASSERT_TRUE(WaitUntil(20, [&] {
    const json worker = Worker(1);
    return worker.value("fetchesFrom", "") == "worker 0" &&
           Number(worker, "bytesFetched") > 0;
  })) << coordinator_->errors();
  ASSERT_EQ(Status()["state"], "loading");
  source->Signal(SIGKILL);
  ASSERT_EQ(WaitForState("failed", 10)["state"], "failed");
  // The coordinator has a call to the source only while that loads itself.
  EXPECT_THAT(
      Cluster().value("error", ""),
      AllOf(HasSubstr("worker 0"), AnyOf(HasSubstr("lost while loading"),
                                         HasSubstr("no source is left"))));
  StartWorkerIn(0, "has");
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  ExpectGolden();
}

}  // namespace
}  // namespace ringfleet::integration
