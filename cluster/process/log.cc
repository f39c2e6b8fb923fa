// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/log.h"

#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {
namespace {

std::atomic<int> g_fd{STDERR_FILENO};
std::atomic<LogLevel> g_least{LogLevel::kInfo};
Mutex g_mu;
bool g_grows ABSL_GUARDED_BY(g_mu) = false;  // It is a regular file.
size_t g_bytes ABSL_GUARDED_BY(g_mu) = 0;    // In the file.

constexpr size_t kMaxLogBytes = size_t{64} << 20;
constexpr int64_t kLibraryIntervalMs = 10'000;

std::string& LogPath() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mu) {
  static std::string& path = *new std::string();  // Empty: stderr.
  return path;
}

std::string& Name() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mu) {
  static std::string& name = *new std::string("ringfleet");
  return name;
}

// Opens the file of LogPath().
absl::Status OpenLogFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mu) {
  const int fd =
      open(LogPath().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("log file ", LogPath(), ": ", std::strerror(errno)));
  }
  struct stat file = {};
  g_grows = fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
  g_bytes = static_cast<size_t>(file.st_size);
  if (g_fd == STDERR_FILENO) {
    g_fd = fd;
  } else {  // In place of the one before, to which somebody may be writing.
    dup3(fd, g_fd, O_CLOEXEC);
    close(fd);
  }
  return absl::OkStatus();
}

// Begins another file once this one is full.
void Rotate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mu) {
  if (!g_grows || g_bytes <= kMaxLogBytes) return;
  g_bytes = 0;  // A folder that allows no renaming is not asked at each line.
  if (std::rename(LogPath().c_str(), absl::StrCat(LogPath(), ".1").c_str()) ==
      0) {
    OpenLogFile().IgnoreError();  // Lines go on into the renamed file.
  }
}

// Returns whether kLibraryIntervalMs have passed since the last line. `due` is
// the Unix time in milliseconds from which on they have.
bool IsDue(std::atomic<int64_t>* due) {
  const int64_t now = absl::ToUnixMillis(absl::Now());
  int64_t then = *due;
  return now >= then &&
         due->compare_exchange_strong(then, now + kLibraryIntervalMs);
}

void LogOfProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                   const std::string& message) {
  static std::atomic<int64_t> due{0};
  if (level < google::protobuf::LOGLEVEL_WARNING || !IsDue(&due)) return;
  Log(LogLevel::kWarning, file, line, message);
}

// Errors may come by the thousand; the rest comes only where a user asks.
void LogOfGrpc(gpr_log_func_args* args) {
  static std::atomic<int64_t> due{0};
  const bool is_error = args->severity == GPR_LOG_SEVERITY_ERROR;
  if (is_error && !IsDue(&due)) return;
  Log(is_error ? LogLevel::kWarning : LogLevel::kInfo, args->file, args->line,
      args->message);
}

}  // namespace

absl::Status InitLog(absl::string_view path, LogLevel least) {
  g_least = least;
  google::protobuf::SetLogHandler(&LogOfProtobuf);
  gpr_set_log_function(&LogOfGrpc);
  if (path.empty()) return absl::OkStatus();
  MutexLock lock(&g_mu);
  LogPath() = std::string(path);
  return OpenLogFile();
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
  const ssize_t written = write(g_fd, out.data(), out.size());
  if (written > 0) g_bytes += static_cast<size_t>(written);
  Rotate();
}

}  // namespace ringfleet::cluster
