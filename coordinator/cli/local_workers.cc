// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/local_workers.h"

#include <fcntl.h>
#include <signal.h>
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
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/log.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "cluster/process/thread_limit.h"
#include "coordinator/cli/binaries.h"
#include "coordinator/cli/interrupt.h"

namespace ringfleet::coordinator::cli {
namespace {

// Workers answer SIGTERM at the next step; after this they are killed.
constexpr std::chrono::seconds kStopGrace{3};
constexpr std::chrono::milliseconds kExitPoll{10};
constexpr int kLogLines = 5;
// Time between two looks for workers that have ended while the fleet serves.
constexpr std::chrono::milliseconds kKeeperPoll{50};

// Files that this process and its gRPC need beside a few for each worker.
constexpr size_t kOpenFiles = 64;

// Room for the logs of a command.
constexpr size_t kLogBytes = 64 << 10;

std::deque<std::string> LastLines(const std::string& path, size_t count) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > count) lines.pop_front();
  }
  return lines;
}

// Returns the system's reason why a folder has no room for logs, or "". A limit
// of files' sizes (ulimit -f) is none: it cuts logs short.
std::string FolderProblem(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/probe");
  const std::string bytes(kLogBytes, 'x');
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  int error = fd < 0 ? errno : 0;
  for (size_t done = 0; error == 0 && done < bytes.size();) {
    const ssize_t written = write(fd, bytes.data() + done, bytes.size() - done);
    if (written > 0) {
      done += written;
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (fd >= 0) close(fd);
  unlink(path.c_str());
  return error == 0 || error == EFBIG
             ? ""
             : absl::StrCat(folder, ": ", std::strerror(error));
}

}  // namespace

int LocalWorkers::ThreadsOfEach(int count) {
  return std::max(1, cluster::AvailableCpus() / count);
}

absl::StatusOr<std::unique_ptr<LocalWorkers>> LocalWorkers::Create(
    int count, int threads) {
  if (threads == 0) threads = ThreadsOfEach(count);
  // A child's first thread counts too.
  RF_RETURN_IF_ERROR(
      cluster::CheckThreads(cluster::CoordinatorThreads(count),
                            count * (1 + cluster::WorkerThreads(threads))));
  cluster::RaiseOpenFileLimit();
  RF_RETURN_IF_ERROR(cluster::CheckOpenFiles(kOpenFiles + 4 * count));
  const char* base = std::getenv("TMPDIR");
  std::string folder = absl::StrCat(
      base == nullptr || *base == '\0' ? "/tmp" : base, "/ringfleet-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("local: temporary folder ", folder,
                                            ": ", std::strerror(errno)));
  }
  std::unique_ptr<LocalWorkers> workers(new LocalWorkers(count, threads));
  workers->folder_ = folder;
  if (const std::string problem = FolderProblem(folder); !problem.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("local: ", problem));
  }
  RF_RETURN_IF_ERROR(cluster::InitLog(absl::StrCat(folder, "/coordinator.log"),
                                      cluster::LogLevel::kInfo));
  return workers;
}

LocalWorkers::~LocalWorkers() {
  EndAll();
  for (const int end : alive_pipe_) {
    if (end >= 0) close(end);
  }
  if (!keep_folder_) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

absl::Status LocalWorkers::Stop() {
  EndAll();
  MutexLock lock(&mu_);
  const int failed = FirstFailed();
  if (failed < 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "local: ", DescribeEnd(failed), " when the command was done, want 0"));
}

std::string LocalWorkers::LogPath(int rank) const {
  return absl::StrCat(folder_, "/worker-", rank, ".log");
}

std::string LocalWorkers::PortPath(int rank) const {
  return absl::StrCat(folder_, "/worker-", rank, ".port");
}

absl::StatusOr<ChildProcess> LocalWorkers::StartProcess(int rank) const {
  std::vector<std::string> words = {BinaryPath("ringfleet-worker"),
                                    "--rank",
                                    absl::StrCat(rank),
                                    "--listen",
                                    "127.0.0.1:0",
                                    "--port-file",
                                    PortPath(rank),
                                    "--parent-fd",
                                    absl::StrCat(alive_pipe_[0]),
                                    "--threads",
                                    absl::StrCat(threads_)};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  // A terminal's Ctrl-C goes to this process only, which stops the workers in
  // order.
  absl::StatusOr<ChildProcess> child =
      ChildProcess::Start({.command = std::move(words),
                           .log = LogPath(rank),
                           .own_group = true,
                           .inherited_fd = alive_pipe_[0],
                           .keep_blocked_signals = true});
  if (!child.ok()) return Annotate(child.status(), "local");
  return child;
}

absl::Status LocalWorkers::Spawn(const std::vector<std::string>& arguments) {
  if (pipe2(alive_pipe_, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("local: pipe: ", std::strerror(errno)));
  }
  arguments_ = arguments;
  MutexLock lock(&mu_);
  for (int rank = 0; rank < count_; ++rank) {
    RF_ASSIGN_OR_RETURN(ChildProcess process, StartProcess(rank));
    workers_.push_back({.process = std::move(process)});
  }
  return absl::OkStatus();
}

int LocalWorkers::FirstEnded() {
  const auto ended =
      std::find_if(workers_.begin(), workers_.end(), [](Worker& worker) {
        return !worker.restart.has_value() && worker.process.Ended();
      });
  return ended == workers_.end() ? -1
                                 : static_cast<int>(ended - workers_.begin());
}

int LocalWorkers::FirstFailed() {
  const auto failed =
      std::find_if(workers_.begin(), workers_.end(), [](Worker& worker) {
        return !worker.restart.has_value() && worker.process.Ended() &&
               !worker.process.killed() && worker.process.wait_status() != 0;
      });
  return failed == workers_.end() ? -1
                                  : static_cast<int>(failed - workers_.begin());
}

std::string LocalWorkers::DescribeEnd(int rank) const {
  const int wait_status = workers_[rank].process.wait_status();
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("worker ", rank, " was killed by signal ",
                        WTERMSIG(wait_status), " (",
                        strsignal(WTERMSIG(wait_status)), ")");
  }
  return absl::StrCat("worker ", rank, " ended with code ",
                      WEXITSTATUS(wait_status));
}

std::string LocalWorkers::LastWords(int rank) const {
  const std::deque<std::string> last = LastLines(LogPath(rank), 1);
  const std::string words = last.empty() ? FolderProblem(folder_) : last.back();
  return words.empty() ? "" : absl::StrCat(": ", words);
}

absl::Status LocalWorkers::CheckRunning() {
  MutexLock lock(&mu_);
  const int ended = FirstEnded();
  if (ended < 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("local: ", DescribeEnd(ended), LastWords(ended)));
}

void LocalWorkers::KeepRunning(
    std::function<void(const absl::Status&)> give_up) {
  keeper_ =
      std::thread([this, give_up = std::move(give_up)] { Keep(give_up); });
}

void LocalWorkers::Keep(
    const std::function<void(const absl::Status&)>& give_up) {
  bool given_up = false;
  while (true) {
    absl::Status status;
    {
      MutexLock lock(&mu_);
      // Workers that this thread has started are killed when it ends.
      if (stopped_) return;
      if (!stopping_ && !given_up) status = Restart();
      if (status.ok()) {
        changed_.WaitUntil(&mu_,
                           std::chrono::steady_clock::now() + kKeeperPoll);
      }
    }
    if (!status.ok()) {
      given_up = true;
      give_up(status);
    }
  }
}

absl::Status LocalWorkers::Restart() {
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    Worker& worker = workers_[rank];
    if (!worker.restart.has_value()) {
      if (!worker.process.Ended()) continue;
      RF_RETURN_IF_ERROR(PlanRestart(rank, DescribeEnd(rank)));
    }
    if (cluster::Deadline::Clock::now() < *worker.restart) continue;
    absl::StatusOr<ChildProcess> process = StartProcess(rank);
    if (process.ok()) {
      worker.process = *std::move(process);
      worker.restart.reset();
    } else {
      RF_RETURN_IF_ERROR(PlanRestart(
          rank, absl::StrCat("worker ", rank, ": ",
                             std::string(process.status().message()))));
    }
  }
  return absl::OkStatus();
}

absl::Status LocalWorkers::PlanRestart(int rank, const std::string& end) {
  Worker& worker = workers_[rank];
  const RestartPace::TimePoint now = cluster::Deadline::Clock::now();
  const std::optional<absl::Duration> pause = worker.pace.NoteDeath(now);
  if (!pause.has_value()) {
    worker.restart.reset();
    return absl::UnavailableError(absl::StrCat(
        "local: ", end, ", end ", RestartPace::kMaxDeaths, " within ",
        absl::FormatDuration(RestartPace::kWindow), LastWords(rank)));
  }
  worker.restart = now + absl::ToChronoNanoseconds(*pause);
  RF_LOG(kWarning, end, "; it starts again in ", absl::FormatDuration(*pause));
  std::fprintf(stderr, "%s, starting it again\n", end.c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> LocalWorkers::WaitAddresses() {
  std::vector<std::string> addresses;
  while (addresses.size() < static_cast<size_t>(count_)) {
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
  int failing = -1;
  {
    MutexLock lock(&mu_);
    failing = FirstFailed();
    if (failing < 0) failing = FirstEnded();
  }
  for (int rank = 0; failing < 0 && rank < count_; ++rank) {
    if (absl::StrContains(status.message(),
                          absl::StrCat("worker ", rank, " "))) {
      failing = rank;
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
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (Worker& worker : workers_) worker.process.Signal(SIGTERM);
  }
  const auto deadline = std::chrono::steady_clock::now() + kStopGrace;
  const auto all_ended = [this] {
    MutexLock lock(&mu_);
    return std::all_of(workers_.begin(), workers_.end(),
                       [](Worker& worker) { return worker.process.Ended(); });
  };
  while (!all_ended() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kExitPoll);
  }
  {
    MutexLock lock(&mu_);
    for (Worker& worker : workers_) worker.process.Kill();
    stopped_ = true;
  }
  changed_.NotifyAll();
  if (keeper_.joinable()) keeper_.join();
}

}  // namespace ringfleet::coordinator::cli
