// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {
namespace {

std::atomic<int> g_fd{STDERR_FILENO};
std::atomic<LogLevel> g_least{LogLevel::kInfo};
Mutex g_mu;

std::string& Name() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mu) {
  static std::string& name = *new std::string("ringfleet");
  return name;
}

}  // namespace

absl::Status InitLog(absl::string_view path, LogLevel least) {
  g_least = least;
  if (path.empty()) return absl::OkStatus();
  const std::string name(path);
  const int fd =
      open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("log file ", path, ": ", std::strerror(errno)));
  }
  if (g_fd == STDERR_FILENO) {
    g_fd = fd;
  } else {  // In place of the one before, to which somebody may be writing.
    dup3(fd, g_fd, O_CLOEXEC);
    close(fd);
  }
  return absl::OkStatus();
}

void SetLogName(absl::string_view name) {
  MutexLock lock(&g_mu);
  Name() = std::string(name);
}

bool LogEnabled(LogLevel level) { return level >= g_least.load(); }

void Log(LogLevel level, const char* file, int line, absl::string_view text) {
  const char* base = std::strrchr(file, '/');
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(),
                                            absl::UTCTimeZone());
  MutexLock lock(&g_mu);
  const std::string out = absl::StrCat(
      time, " ", absl::string_view("DIWE").substr(static_cast<int>(level), 1),
      " ", Name(), " ", base == nullptr ? file : base + 1, ":", line, "] ",
      text, "\n");
  // One write call a line, so that lines of several processes do not mix.
  [[maybe_unused]] const ssize_t written = write(g_fd, out.data(), out.size());
}

}  // namespace ringfleet::cluster
