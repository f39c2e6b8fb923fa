// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator::cli {
namespace {

// Exit code 127, for a child that somebody else has waited for.
constexpr int kUnknownEnd = 127 << 8;

// A descriptor that is closed on every path.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status NoResource(absl::string_view program, absl::string_view call,
                        int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot start ", program, ": ", call, ": ", std::strerror(error)));
}

struct Pipe {
  OwnedFd read_end;
  OwnedFd write_end;
};

absl::StatusOr<Pipe> OpenPipe(absl::string_view program) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return NoResource(program, "pipe", errno);
  return Pipe{OwnedFd(ends[0]), OwnedFd(ends[1])};
}

// A file in memory that holds `text`, at its beginning. Unlike a pipe it takes
// any length before anybody reads.
absl::StatusOr<OwnedFd> OpenInput(const ChildOptions& options) {
  if (options.input.empty()) {
    return OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  OwnedFd file(memfd_create("input", MFD_CLOEXEC));
  const std::string& text = options.input;
  if (file.get() < 0 || write(file.get(), text.data(), text.size()) !=
                            static_cast<ssize_t>(text.size())) {
    return NoResource(options.command[0], "standard input", errno);
  }
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

absl::StatusOr<OwnedFd> OpenChildLog(const std::string& path) {
  OwnedFd file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (file.get() < 0) return cluster::FileError(path, errno);
  return file;
}

// Runs in the child: only async-signal-safe calls until exec. Writes the error
// to `failure` if the program cannot be executed.
[[noreturn]] void Execute(const ChildOptions& options, char* const* argv,
                          pid_t parent, int input, int output, int failure) {
  if (!options.keep_blocked_signals) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
  }
  // A shell cannot undo a signal that it starts with ignored.
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  signal(SIGCHLD, SIG_DFL);
  if (options.own_group) setpgid(0, 0);
  if (options.death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, options.death_signal);
    if (getppid() != parent) _exit(127);
  }
  if (options.inherited_fd >= 0) fcntl(options.inherited_fd, F_SETFD, 0);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written =
      write(failure, &error, sizeof(error));
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildOptions& options) {
  const std::string& program = options.command[0];
  std::vector<char*> argv;
  for (const std::string& argument : options.command) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  RF_ASSIGN_OR_RETURN(const OwnedFd input, OpenInput(options));
  OwnedFd output, child_output;
  if (options.log.empty()) {
    RF_ASSIGN_OR_RETURN(Pipe pipe, OpenPipe(program));
    output = std::move(pipe.read_end);
    child_output = std::move(pipe.write_end);
  } else {
    RF_ASSIGN_OR_RETURN(child_output, OpenChildLog(options.log));
  }
  // Closed by a successful exec.
  RF_ASSIGN_OR_RETURN(Pipe failure, OpenPipe(program));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return NoResource(program, "fork", errno);
  if (pid == 0) {
    Execute(options, argv.data(), parent, input.get(), child_output.get(),
            failure.write_end.get());
  }
  ChildProcess child(pid, output.Release());
  failure.write_end = OwnedFd();
  int error = 0;
  ssize_t got;
  while ((got = read(failure.read_end.get(), &error, sizeof(error))) < 0 &&
         errno == EINTR) {
  }
  if (got == sizeof(error)) {
    return absl::InternalError(
        absl::StrCat("cannot start ", program, ": ", std::strerror(error)));
  }
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      wait_status_(other.wait_status_),
      killed_(other.killed_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  wait_status_ = other.wait_status_;
  killed_ = other.killed_;
  return *this;
}

ChildProcess::~ChildProcess() {
  Kill();
  if (output_ >= 0) close(output_);
}

bool ChildProcess::Ended() {
  if (pid_ < 0) return true;
  const pid_t ended = waitpid(pid_, &wait_status_, WNOHANG);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return false;
  if (ended < 0) wait_status_ = kUnknownEnd;
  pid_ = -1;
  return true;
}

void ChildProcess::Signal(int signal) {
  if (pid_ >= 0) kill(pid_, signal);
}

void ChildProcess::Kill() {
  if (Ended()) return;
  kill(pid_, SIGKILL);
  pid_t ended;
  while ((ended = waitpid(pid_, &wait_status_, 0)) < 0 && errno == EINTR) {
  }
  if (ended < 0) wait_status_ = kUnknownEnd;
  pid_ = -1;
  killed_ = true;
}

}  // namespace ringfleet::coordinator::cli
