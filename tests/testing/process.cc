// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/process.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <thread>

#include "kernels/check.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::testing {
namespace {

// Users that have no processes.
constexpr uid_t kFirstUser = 61'000;
constexpr pid_t kUsers = 4000;

// A process may end while its file in /proc is read, and streams then throw
// from iterators; what was read until then is as good as nothing.
std::string ReadAll(const std::string& path) {
  std::string text;
  std::ifstream file(path, std::ios::binary);
  char part[4096];
  while (file.read(part, sizeof(part)) || file.gcount() > 0) {
    text.append(part, static_cast<size_t>(file.gcount()));
  }
  return text;
}

std::vector<std::string> SplitAtZeros(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, '\0');) {
    parts.push_back(part);
  }
  return parts;
}

// State and parent, fields 3 and 4 of /proc/PID/stat.
std::pair<char, pid_t> StateAndParent(pid_t pid) {
  const std::string stat = ReadAll("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {'X', 0};
  std::istringstream rest(stat.substr(name_end + 1));
  char state = 'X';
  pid_t parent = 0;
  rest >> state >> parent;
  return {state, parent};
}

std::vector<pid_t> LivingProcesses() {
  std::vector<pid_t> pids;
  DIR* const folder = opendir("/proc");
  RF_CHECK(folder != nullptr);
  while (const dirent* entry = readdir(folder)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const char state = StateAndParent(pid).first;
    if (state != 'Z' && state != 'X') pids.push_back(pid);
  }
  closedir(folder);
  return pids;
}

// Returns the number of entries of a folder of /proc/PID; 0 if there is none.
int EntriesOf(pid_t pid, const std::string& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(
      "/proc/" + std::to_string(pid) + "/" + folder, error);
  return error ? 0
               : static_cast<int>(std::distance(begin(entries), end(entries)));
}

}  // namespace

Process::Process(ProcessOptions options) : options_(std::move(options)) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (options_.environment.count(text.substr(0, text.find('='))) == 0) {
      environment.push_back(text);
    }
  }
  for (const auto& [name, value] : options_.environment) {
    environment.push_back(name + "=" + value);
  }
  std::vector<std::string> command = options_.command;
  std::vector<char*> argv, envp;
  for (std::string& part : command) argv.push_back(part.data());
  for (std::string& part : environment) envp.push_back(part.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  std::string out = "/dev/null", err = "/dev/null";
  if (!options_.capture.empty()) {
    out = options_.capture + ".out";
    err = options_.capture + ".err";
    // What an earlier process wrote there is not this one's.
    unlink(out.c_str());
    unlink(err.c_str());
  }
  int input[2] = {-1, -1};
  if (options_.input) RF_CHECK(pipe2(input, O_CLOEXEC) == 0);
  pid_ = fork();
  RF_CHECK(pid_ >= 0);
  if (pid_ > 0) {
    if (options_.input) close(input[0]);
    input_ = input[1];
    return;
  }
  // The caller may have threads: only what is safe in a signal's handler.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  dup2(options_.input ? input[0] : open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(open(out.c_str(), kFlags, 0600), STDOUT_FILENO);
  dup2(open(err.c_str(), kFlags, 0600), STDERR_FILENO);
  for (int fd = 3; fd < 64; ++fd) close(fd);
  if (!options_.folder.empty() && chdir(options_.folder.c_str()) != 0) {
    _exit(126);
  }
  if (options_.open_files > 0) {
    const rlimit limit = {static_cast<rlim_t>(options_.open_files),
                          static_cast<rlim_t>(options_.open_files)};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (options_.threads > 0) {
    const rlimit limit = {static_cast<rlim_t>(options_.threads),
                          static_cast<rlim_t>(options_.threads)};
    setrlimit(RLIMIT_NPROC, &limit);
    const uid_t user = kFirstUser + getpid() % kUsers;
    if (setresuid(user, user, user) != 0) _exit(126);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // A change of the user ends it.
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

Process::~Process() {
  if (input_ >= 0) close(input_);
  if (code_.has_value()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::Signal(int signal) const {
  if (!code_.has_value()) kill(pid_, signal);
}

bool Process::Running() {
  int status = 0;
  if (!code_.has_value() && waitpid(pid_, &status, WNOHANG) == pid_) {
    code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return !code_.has_value();
}

std::optional<int> Process::Wait(double seconds) {
  WaitUntil(seconds, [this] { return !Running(); });
  return code_;
}

void Process::Write(const std::string& text) const {
  RF_CHECK(input_ >= 0);
  // A process that has gone must not take the test along.
  const auto old = signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const ssize_t written =
      write(input_, text.data(), text.size());
  signal(SIGPIPE, old);
}

std::string Process::output() const {
  return ReadAll(options_.capture + ".out");
}

std::string Process::errors() const {
  return ReadAll(options_.capture + ".err");
}

bool WaitUntil(double seconds, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration<double>(seconds * kSlowdown);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<pid_t> ProcessesWith(const std::string& name,
                                 const std::string& value) {
  const std::string wanted = name + "=" + value;
  std::vector<pid_t> found;
  for (const pid_t pid : LivingProcesses()) {
    const auto environment =
        SplitAtZeros(ReadAll("/proc/" + std::to_string(pid) + "/environ"));
    if (std::find(environment.begin(), environment.end(), wanted) !=
        environment.end()) {
      found.push_back(pid);
    }
  }
  return found;
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  for (const pid_t child : LivingProcesses()) {
    if (StateAndParent(child).second == pid) children.push_back(child);
  }
  return children;
}

std::vector<std::string> CommandLine(pid_t pid) {
  return SplitAtZeros(ReadAll("/proc/" + std::to_string(pid) + "/cmdline"));
}

uint64_t StatusBytes(pid_t pid, const std::string& field) {
  std::istringstream status(
      ReadAll("/proc/" + std::to_string(pid) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) {
      return std::strtoull(line.c_str() + field.size() + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

int ThreadCount(pid_t pid) { return EntriesOf(pid, "task"); }

int DescriptorCount(pid_t pid) { return EntriesOf(pid, "fd"); }

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  RF_CHECK(fd >= 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  RF_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  RF_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace ringfleet::testing
