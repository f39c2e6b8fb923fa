// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/fleet_fixture.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

namespace ringfleet::integration {
namespace {

constexpr char kMarker[] = "RINGFLEET_TEST_PROCESS";

// Daemons answer SIGTERM within their grace; the rest is the machine's.
constexpr double kStopSeconds = 8;

// Each world of a test runs on the cores that all tests share.
constexpr char kThreads[] = "1";

}  // namespace

json Finished::document() const {
  const json document =
      json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    ADD_FAILURE() << "stdout is not one JSON document: " << output
                  << "\nstderr: " << errors;
    return json::object();
  }
  return document;
}

std::string Finished::error_line() const {
  static constexpr char kPrefix[] = "ringfleet: ";
  if (errors.rfind(kPrefix, 0) != 0 ||
      std::count(errors.begin(), errors.end(), '\n') != 1) {
    ADD_FAILURE() << "stderr is not one error line: " << errors;
    return errors;
  }
  return errors.substr(sizeof(kPrefix) - 1, errors.size() - sizeof(kPrefix));
}

std::string Model(const std::string& name) {
  return std::string(RINGFLEET_TEST_MODELS) + "/" + name;
}

json Golden(const std::string& model) {
  return json::parse(testing::ReadFile(Model(model) + "/golden.json"));
}

std::string JoinIds(const json& ids) {
  std::string text;
  for (const json& id : ids) {
    if (!text.empty()) text += ',';
    text += std::to_string(id.get<int>());
  }
  return text;
}

FleetTest::FleetTest() : marker_(folder_.path()) {
  std::filesystem::create_directories(File("tmp"));
  std::filesystem::create_directories(File("capture"));
}

FleetTest::~FleetTest() {
  ExpectNoProcesses(kStopSeconds);
  for (const pid_t pid : Processes()) kill(pid, SIGKILL);
  for (const auto& entry : std::filesystem::directory_iterator(File("tmp"))) {
    ADD_FAILURE() << "left behind: " << entry.path();
  }
}

std::unique_ptr<Process> FleetTest::Start(const std::string& program,
                                          Arguments arguments,
                                          RunOptions options) {
  testing::ProcessOptions process;
  process.command = std::move(arguments);
  process.command.insert(process.command.begin(), program);
  process.environment = std::move(options.environment);
  process.environment[kMarker] = marker_;
  process.environment["TMPDIR"] = File("tmp");
  process.environment["XDG_STATE_HOME"] = File("state");
  process.folder = options.folder;
  process.open_files = options.open_files;
  process.threads = options.threads;
  process.input = options.input;
  process.capture = File("capture/" + std::to_string(next_capture_++));
  return std::make_unique<Process>(std::move(process));
}

Finished FleetTest::Finish(Process& process, double seconds) {
  Finished finished;
  const std::optional<int> code = process.Wait(seconds);
  if (!code.has_value()) {
    ADD_FAILURE() << "no end within " << seconds * testing::kSlowdown
                  << " s; stderr: " << process.errors();
    process.Signal(SIGKILL);
    process.Wait(5);
  }
  finished.code = code.value_or(-1);
  finished.output = process.output();
  finished.errors = process.errors();
  return finished;
}

Finished FleetTest::Run(const std::string& program, Arguments arguments,
                        RunOptions options) {
  const double seconds = options.seconds;
  const auto process = Start(program, std::move(arguments), std::move(options));
  return Finish(*process, seconds);
}

std::vector<pid_t> FleetTest::Processes() const {
  return testing::ProcessesWith(kMarker, marker_);
}

void FleetTest::ExpectNoProcesses(double seconds) {
  if (WaitUntil(seconds, [this] { return Processes().empty(); })) return;
  for (const pid_t pid : Processes()) {
    ADD_FAILURE() << "process " << pid << " is left: "
                  << ::testing::PrintToString(testing::CommandLine(pid));
  }
}

void FleetTest::RemoveKeptLogs() {
  for (const auto& entry : std::filesystem::directory_iterator(File("tmp"))) {
    std::filesystem::remove_all(entry.path());
  }
}

std::string FleetTest::CopyModel(const std::string& name,
                                 const std::string& to) {
  std::filesystem::create_directories(File(to));
  std::filesystem::copy(Model(name), File(to),
                        std::filesystem::copy_options::recursive |
                            std::filesystem::copy_options::overwrite_existing);
  return File(to);
}

void HandFleet::StartCoordinator(int world, Arguments more, RunOptions options,
                                 int port, const std::string& model) {
  const std::string port_file = File("coordinator.port");
  std::filesystem::remove(port_file);
  Arguments arguments = {"--model",     model,
                         "--world",     std::to_string(world),
                         "--listen",    "127.0.0.1:" + std::to_string(port),
                         "--port-file", port_file};
  arguments.insert(arguments.end(), more.begin(), more.end());
  // The coordinator's folder is not the cluster file's.
  const std::string served = std::filesystem::path(options.folder) / model;
  coordinator_ =
      Start(RINGFLEET_COORDINATOR_BINARY, arguments, std::move(options));
  ASSERT_TRUE(WaitUntil(10, [&] {
    return std::filesystem::exists(port_file) || !coordinator_->Running();
  })) << coordinator_->errors();
  ASSERT_TRUE(coordinator_->Running()) << coordinator_->errors();
  std::ifstream(port_file) >> port_;
  // The name of a coordinator that was started without a file.
  std::string yaml = "name: ringfleet\nmodel: " + served +
                     "\ncoordinator: {port: " + std::to_string(port_) +
                     "}\nworkers:\n";
  for (int rank = 0; rank < world; ++rank) yaml += "  - {port: 0}\n";
  testing::WriteFile(cluster(), yaml);
}

void HandFleet::StartWorker(int rank, RunOptions options,
                            WorkerProgram program) {
  Arguments arguments = {"--rank",        std::to_string(rank),
                         "--coordinator", "127.0.0.1:" + std::to_string(port_),
                         "--threads",     kThreads};
  arguments.insert(arguments.end(), program.addresses.begin(),
                   program.addresses.end());
  workers_[rank] =
      Start(program.path, std::move(arguments), std::move(options));
}

void HandFleet::StartFleet(int world, Arguments more) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(world, std::move(more)));
  for (int rank = 0; rank < world; ++rank) StartWorker(rank);
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
}

json HandFleet::Status(Arguments more) {
  Arguments arguments = {"status", "--cluster", cluster(), "-o", "json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Cli(arguments).document();
}

json HandFleet::WaitForState(const std::string& state, double seconds) {
  json last;
  WaitUntil(seconds, [&] {
    last = Status();
    return last.value("state", "") == state;
  });
  return last;
}

}  // namespace ringfleet::integration
