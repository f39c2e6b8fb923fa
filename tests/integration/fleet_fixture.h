// SPDX-License-Identifier: Apache-2.0
// What the integration tests share: the programs as an outside caller sees
// them, in a folder of their own, with a check that nothing stays behind.
#ifndef RINGFLEET_TESTS_INTEGRATION_FLEET_FIXTURE_H_
#define RINGFLEET_TESTS_INTEGRATION_FLEET_FIXTURE_H_

#include <atomic>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/process.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::integration {

using Arguments = std::vector<std::string>;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::kSanitized;
using testing::Process;
using testing::WaitUntil;

struct Finished {
  int code = -1;  // -1: it did not end in time and was killed.
  std::string output;
  std::string errors;

  // The one document on stdout; fails the test on anything else.
  json document() const;
  // The text of "ringfleet: TEXT" on stderr, which must be its only line.
  std::string error_line() const;
};

struct RunOptions {
  std::map<std::string, std::string> environment;
  std::string folder;
  int open_files = 0;
  int threads = 0;      // As in testing::ProcessOptions.
  double seconds = 30;  // Of a release build.
  bool input = false;   // As in testing::ProcessOptions.
};

std::string Model(const std::string& name = "tiny-v3");
json Golden(const std::string& model);
std::string JoinIds(const json& ids);

// All processes of a test carry a marker in their environment and use its
// folder for temporary files and state.
class FleetTest : public ::testing::Test {
 protected:
  FleetTest();
  // Ends what the test started; fails it if anything outlives that, or if a
  // temporary folder is left.
  ~FleetTest() override;

  std::string File(const std::string& name) const { return folder_.File(name); }

  std::unique_ptr<Process> Start(const std::string& program,
                                 Arguments arguments, RunOptions options = {});
  Finished Run(const std::string& program, Arguments arguments,
               RunOptions options = {});
  Finished Cli(Arguments arguments, RunOptions options = {}) {
    return Run(RINGFLEET_BINARY, std::move(arguments), std::move(options));
  }
  std::unique_ptr<Process> StartCli(Arguments arguments,
                                    RunOptions options = {}) {
    return Start(RINGFLEET_BINARY, std::move(arguments), std::move(options));
  }
  // Waits for a process that was started with Start.
  Finished Finish(Process& process, double seconds = 30);

  // Living processes of this test, without the test itself.
  std::vector<pid_t> Processes() const;
  void ExpectNoProcesses(double seconds);
  // Failed local fleets keep their logs for the user.
  void RemoveKeptLogs();

  // A copy of a bundled model, to be damaged.
  std::string CopyModel(const std::string& name = "tiny-v3",
                        const std::string& to = "model");

 private:
  testing::TempDir folder_;
  const std::string marker_;
  std::atomic<int> next_capture_ = 0;  // Some tests have users on threads.
};

// A worker as a test wants it.
struct WorkerProgram {
  std::string path = RINGFLEET_WORKER_BINARY;
  Arguments addresses = {"--listen", "127.0.0.1:0"};
};

// A coordinator and workers, each started by hand.
class HandFleet : public FleetTest {
 protected:
  // Starts a coordinator on `port` (0: a free one) and writes a cluster file
  // that names it.
  void StartCoordinator(int world, Arguments more = {}, RunOptions options = {},
                        int port = 0, const std::string& model = Model());
  void StartWorker(int rank, RunOptions options = {},
                   WorkerProgram program = {});
  void StartFleet(int world, Arguments more = {});
  // Waits until `status` shows the state; returns what it showed last.
  json WaitForState(const std::string& state, double seconds = 20);
  json Status(Arguments more = {});

  std::string cluster() const { return File("fleet.yaml"); }
  int port() const { return port_; }

  std::unique_ptr<Process> coordinator_;
  std::map<int, std::unique_ptr<Process>> workers_;

 private:
  int port_ = 0;
};

}  // namespace ringfleet::integration

#endif  // RINGFLEET_TESTS_INTEGRATION_FLEET_FIXTURE_H_
