// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/local_workers.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/launch/binaries.h"

namespace ringfleet::coordinator::cli {
namespace {

// Workers answer SIGTERM at the next step; after this they are killed.
constexpr std::chrono::seconds kStopGrace{3};
constexpr std::chrono::milliseconds kExitPoll{10};
constexpr int kLogLines = 5;

// Files that this process and its gRPC need beside a few for each worker.
constexpr size_t kOpenFiles = 64;

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("was killed by signal ", WTERMSIG(wait_status), " (",
                        strsignal(WTERMSIG(wait_status)), ")");
  }
  return absl::StrCat("ended with code ", WEXITSTATUS(wait_status));
}

std::deque<std::string> LastLines(const std::string& path, size_t count) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > count) lines.pop_front();
  }
  return lines;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalWorkers>> LocalWorkers::Create(int count) {
  cluster::RaiseOpenFileLimit();
  RF_RETURN_IF_ERROR(cluster::CheckOpenFiles(kOpenFiles + 4 * count));
  const char* base = std::getenv("TMPDIR");
  std::string folder = absl::StrCat(
      base == nullptr || *base == '\0' ? "/tmp" : base, "/ringfleet-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("local: temporary folder ", folder,
                                            ": ", std::strerror(errno)));
  }
  std::unique_ptr<LocalWorkers> workers(new LocalWorkers(count));
  workers->folder_ = folder;
  RF_RETURN_IF_ERROR(cluster::InitLog(absl::StrCat(folder, "/coordinator.log"),
                                      cluster::LogLevel::kInfo));
  return workers;
}

LocalWorkers::~LocalWorkers() {
  EndAll();
  if (alive_pipe_ >= 0) close(alive_pipe_);
  if (!keep_folder_) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

absl::Status LocalWorkers::Stop() {
  EndAll();
  const int failed = FailedWorker();
  if (failed < 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("local: worker ", failed, " ",
                   DescribeExit(children_[failed].wait_status),
                   " when the command was done, want 0"));
}

int LocalWorkers::FailedWorker() const {
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    if (children_[rank].failed()) return static_cast<int>(rank);
  }
  return -1;
}

std::string LocalWorkers::LogPath(int rank) const {
  return absl::StrCat(folder_, "/worker-", rank, ".log");
}

std::string LocalWorkers::PortPath(int rank) const {
  return absl::StrCat(folder_, "/worker-", rank, ".port");
}

absl::Status LocalWorkers::Spawn(const std::vector<std::string>& arguments) {
  int alive[2];
  if (pipe2(alive, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("local: pipe: ", std::strerror(errno)));
  }
  alive_pipe_ = alive[1];
  // The workers inherit the reading end only.
  const int inherited = alive[0];
  fcntl(inherited, F_SETFD, 0);
  const std::string binary = BinaryPath("ringfleet-worker");
  absl::Status status;
  for (int rank = 0; rank < count_ && status.ok(); ++rank) {
    const std::string log = LogPath(rank);
    std::vector<std::string> words = {
        binary,         "--rank",      absl::StrCat(rank),
        "--listen",     "127.0.0.1:0", "--port-file",
        PortPath(rank), "--parent-fd", absl::StrCat(inherited)};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                     O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    // A terminal's Ctrl-C goes to this process only, which stops the workers
    // in order.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    sigset_t defaults;  // This process ignores them.
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    pid_t pid;
    const int error = posix_spawn(&pid, binary.c_str(), &actions, &attributes,
                                  argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      status = absl::InternalError(absl::StrCat("local: cannot start ", binary,
                                                ": ", std::strerror(error)));
    } else {
      children_.push_back({.pid = pid});
    }
  }
  close(inherited);
  return status;
}

int LocalWorkers::ReapExited() {
  int first = -1;
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    Child& child = children_[rank];
    if (!child.exited &&
        waitpid(child.pid, &child.wait_status, WNOHANG) == child.pid) {
      child.exited = true;
    }
    if (child.exited && first < 0) first = static_cast<int>(rank);
  }
  return first;
}

absl::Status LocalWorkers::CheckRunning() {
  const int exited = ReapExited();
  if (exited < 0) return absl::OkStatus();
  const std::deque<std::string> last = LastLines(LogPath(exited), 1);
  return absl::UnavailableError(
      absl::StrCat("local: worker ", exited, " ",
                   DescribeExit(children_[exited].wait_status),
                   last.empty() ? "" : ": ", last.empty() ? "" : last.back()));
}

absl::StatusOr<std::vector<std::string>> LocalWorkers::WaitAddresses() {
  std::vector<std::string> addresses;
  while (addresses.size() < children_.size()) {
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    RF_RETURN_IF_ERROR(CheckRunning());
    std::ifstream file(PortPath(static_cast<int>(addresses.size())));
    int port = 0;
    if (file >> port) {
      addresses.push_back(absl::StrCat("127.0.0.1:", port));
    } else {
      std::this_thread::sleep_for(kExitPoll);
    }
  }
  return addresses;
}

void LocalWorkers::Explain(const absl::Status& status) {
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
      absl::IsOutOfRange(status) || absl::IsDataLoss(status) ||
      absl::IsCancelled(status) || absl::IsResourceExhausted(status) ||
      absl::IsAlreadyExists(status) || absl::IsPermissionDenied(status)) {
    return;
  }
  keep_folder_ = true;
  const int exited = ReapExited();
  int failing = FailedWorker() >= 0 ? FailedWorker() : exited;
  for (size_t rank = 0; failing < 0 && rank < children_.size(); ++rank) {
    if (absl::StrContains(status.message(),
                          absl::StrCat("worker ", rank, " "))) {
      failing = static_cast<int>(rank);
    }
  }
  std::fprintf(stderr, "worker logs are in %s\n", folder_.c_str());
  if (failing < 0) return;
  std::fprintf(stderr, "worker %d said last:\n", failing);
  for (const std::string& line : LastLines(LogPath(failing), kLogLines)) {
    std::fprintf(stderr, "  %s\n", line.c_str());
  }
}

void LocalWorkers::EndAll() {
  for (const Child& child : children_) {
    if (!child.exited) kill(child.pid, SIGTERM);
  }
  const auto deadline = std::chrono::steady_clock::now() + kStopGrace;
  const auto all_exited = [&] {
    ReapExited();
    return std::all_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.exited; });
  };
  while (!all_exited() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kExitPoll);
  }
  for (Child& child : children_) {
    if (child.exited) continue;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, &child.wait_status, 0);
    child.exited = true;
    child.killed = true;
  }
}

}  // namespace ringfleet::coordinator::cli
