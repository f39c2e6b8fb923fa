// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/binaries.h"
#include "coordinator/cli/child_process.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/targets.h"
#include "coordinator/service/state_folder.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::ringfleet::cluster::Deadline;

// How soon an interrupt is noticed while the script says nothing.
constexpr absl::Duration kOutputPoll = absl::Milliseconds(20);

// An interrupted fleet.sh ends what it has started, by force after four
// seconds; then it ends itself.
constexpr absl::Duration kScriptGrace = absl::Seconds(6);

// fleet.sh gives each process ten seconds after SIGTERM.
constexpr absl::Duration kTakeBackTime = absl::Seconds(20);
// Time that two calls of RunLaunchScript may take beyond their deadline.
constexpr absl::Duration kScriptEndTime = absl::Seconds(15);

// Ends the wait for a script.
struct Limit {
  Deadline deadline;
  bool interruptible;

  bool Reached() const {
    return deadline.Expired() ||
           (interruptible && Interrupt::Get().requested());
  }
};

// Timeout for poll().
int PollMs(const Deadline& deadline) {
  return static_cast<int>(absl::ToInt64Milliseconds(
      std::min(deadline.Remaining() + absl::Milliseconds(1), kOutputPoll)));
}

void Echo(absl::string_view text) {
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, text.data(), text.size());
}

// Reads until the end of the output; false when the limit came first, or
// `on_output` returned false.
bool Collect(int fd, const Limit& limit,
             absl::FunctionRef<bool(absl::string_view)> on_output) {
  char buffer[4096];
  while (!limit.Reached()) {
    pollfd waiting = {.fd = fd, .events = POLLIN};
    if (poll(&waiting, 1, PollMs(limit.deadline)) <= 0) continue;
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    if (!on_output({buffer, static_cast<size_t>(got)})) return false;
  }
  return false;
}

absl::StatusOr<ChildProcess> StartScript(absl::string_view verb,
                                         std::vector<std::string> arguments,
                                         const cluster::ClusterConfig& config,
                                         absl::string_view hosts) {
  RF_ASSIGN_OR_RETURN(const std::string script, LaunchScriptPath());
  RF_ASSIGN_OR_RETURN(std::string targets, FormatTargets(config, hosts));
  std::vector<std::string> command = {
      script, std::string(verb), "--targets", "-", "--bin-dir", BinaryFolder()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return ChildProcess::Start({.command = std::move(command),
                              .input = std::move(targets),
                              .death_signal = SIGTERM});
}

// Puts the lines of hosts in the order of ranks; the coordinator's come first,
// other lines last.
std::string InOrderOfRanks(absl::string_view output) {
  const auto place = [](absl::string_view line) {
    int rank = -1;
    const std::vector<LaunchLine> parsed = ParseLaunchOutput(line);
    if (parsed.empty()) return std::numeric_limits<int>::max();
    return absl::SimpleAtoi(parsed[0].label, &rank) ? rank : -1;
  };
  std::vector<absl::string_view> lines =
      absl::StrSplit(output, '\n', absl::SkipEmpty());
  std::stable_sort(lines.begin(), lines.end(),
                   [&](absl::string_view a, absl::string_view b) {
                     return place(a) < place(b);
                   });
  std::string text;
  for (absl::string_view line : lines) absl::StrAppend(&text, line, "\n");
  return text;
}

// Returns true when the child ends before the limit.
bool WaitUntil(ChildProcess& child, const Limit& limit) {
  while (!child.Ended()) {
    if (limit.Reached()) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

// Asks the script to end, which ends its own children first, and waits for it.
void End(ChildProcess& child) {
  child.Signal(SIGTERM);
  WaitUntil(child, {Deadline::After(kScriptGrace), /*interruptible=*/false});
  child.Kill();
}

// The script's last word, without its name: "start failed on 2 (gamma)".
std::string LastLine(absl::string_view output) {
  output = absl::StripTrailingAsciiWhitespace(output);
  const size_t end = output.rfind('\n');
  if (end != absl::string_view::npos) output.remove_prefix(end + 1);
  return std::string(absl::StripPrefix(output, "fleet.sh: "));
}

// Last line of the first process that ended as soon as it was started,
// "coordinator (gamma): context 9, want at most 8".
struct LastWord {
  std::string text;
  bool bad_input = false;  // By its exit code.
};
std::optional<LastWord> LastWordOfDaemon(absl::string_view output) {
  const std::vector<LaunchLine> lines = ParseLaunchOutput(output);
  for (const LaunchLine& ended : lines) {
    absl::string_view code = ended.text;
    if (!absl::ConsumePrefix(&code, "ended at once with exit code ")) continue;
    const auto line = std::find_if(
        lines.rbegin(), lines.rend(),
        [&](const LaunchLine& other) { return other.label == ended.label; });
    absl::string_view word = line->text;
    if (!absl::ConsumePrefix(&word, "ringfleet-coordinator: ") &&
        !absl::ConsumePrefix(&word, "ringfleet-worker: ")) {
      continue;
    }
    const bool rank = ended.label != "coordinator";
    return LastWord{.text = absl::StrCat(rank ? "rank " : "", ended.label, " (",
                                         ended.host, "): ", word),
                    .bad_input = absl::StartsWith(code, "2;")};
  }
  return std::nullopt;
}

// Path of the other cluster file that a host has refused to work for.
std::optional<std::string> OtherFile(absl::string_view output) {
  const std::string from = ", which was started from ";
  for (const LaunchLine& line : ParseLaunchOutput(output)) {
    const size_t at = line.text.find(from);
    if (absl::StartsWith(line.text, "refused: pid ") &&
        at != std::string::npos) {
      return line.text.substr(at + from.size());
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status RunLaunchScript(absl::string_view verb,
                             const cluster::ClusterConfig& config,
                             absl::string_view hosts, std::string* output,
                             Deadline deadline, bool interruptible,
                             const std::vector<std::string>& arguments) {
  if (interruptible) RF_RETURN_IF_ERROR(Interrupt::Get().status());
  RF_ASSIGN_OR_RETURN(ChildProcess child,
                      StartScript(verb, arguments, config, hosts));
  std::string collected;
  const Limit limit = {deadline, interruptible};
  // The lines of a state are read together; those of a start tell how far it
  // is.
  const bool echo = verb != "status";
  const auto on_output = [&](absl::string_view text) {
    absl::StrAppend(&collected, text);
    if (echo) Echo(text);
    return true;
  };
  const bool ended =
      Collect(child.output(), limit, on_output) && WaitUntil(child, limit);
  if (!ended) End(child);
  if (!echo) Echo(InOrderOfRanks(collected));
  if (output != nullptr) *output = collected;
  const int status = child.wait_status();
  if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return absl::OkStatus();
  }
  // A terminal's Ctrl-C reaches the script, too, which then ends by itself.
  if (interruptible) RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (!ended) {
    return absl::DeadlineExceededError(absl::StrCat(
        "launch ", verb, ": the hosts of fleet ", config.name,
        " have not answered in time, want an answer before the deadline"));
  }
  const std::optional<std::string> other = OtherFile(collected);
  if (other.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "launch ", verb, ": fleet ", config.name, " was started from ", *other,
        ", want that file instead of ", config.path,
        verb == "stop" ? ", or --force" : ", or another `name:` in this one"));
  }
  const std::optional<LastWord> word = LastWordOfDaemon(collected);
  const std::string message =
      absl::StrCat("launch ", verb, ": ",
                   word.has_value() ? word->text : LastLine(collected));
  if ((WIFEXITED(status) && WEXITSTATUS(status) == 2) ||
      (word.has_value() && word->bad_input)) {
    return absl::InvalidArgumentError(message);
  }
  return absl::UnavailableError(message);
}

absl::Status ReadLogs(
    const cluster::ClusterConfig& config, absl::string_view hosts,
    absl::Duration since, bool follow,
    absl::FunctionRef<absl::Status(absl::string_view)> print) {
  std::vector<std::string> arguments;
  if (since != absl::InfiniteDuration()) {
    const absl::Duration seconds = absl::Ceil(since, absl::Seconds(1));
    arguments = {"--since", absl::StrCat(absl::ToInt64Seconds(seconds))};
  }
  if (follow) arguments.push_back("--follow");
  RF_ASSIGN_OR_RETURN(ChildProcess child,
                      StartScript("logs", arguments, config, hosts));
  absl::Status printed;
  std::string begun, complaint;  // A line without its end; the script's last.
  const auto on_output = [&](absl::string_view text) {
    absl::StrAppend(&begun, text);
    const size_t end = begun.rfind('\n') + 1;  // 0: there is none.
    std::string lines;
    for (absl::string_view line :
         absl::StrSplit(absl::string_view(begun).substr(0, end), '\n',
                        absl::SkipEmpty())) {
      if (absl::StartsWith(line, "[")) {
        absl::StrAppend(&lines, line, "\n");
      } else {
        complaint = std::string(line);
        Echo(absl::StrCat(line, "\n"));
      }
    }
    begun.erase(0, end);
    if (!lines.empty()) printed = print(lines);
    return printed.ok();
  };
  const Limit limit = {Deadline::Infinite(), /*interruptible=*/true};
  if (!Collect(child.output(), limit, on_output) || !WaitUntil(child, limit)) {
    End(child);
    return printed.ok() ? Interrupt::Get().status() : printed;
  }
  const int status = child.wait_status();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  return absl::UnavailableError(absl::StrCat("logs: ", LastLine(complaint)));
}

void TakeBack(const cluster::ClusterConfig& config,
              const std::vector<std::string>& hosts) {
  Interrupt& interrupt = Interrupt::Get();
  if (interrupt.requested()) {
    std::fprintf(stderr, "interrupted: stopping what was started\n");
    interrupt.AllowCleanup(kTakeBackTime + kScriptEndTime);
  }
  const auto deadline = Deadline::After(kTakeBackTime);
  for (const std::string& some : hosts) {
    RunLaunchScript("stop", config, some, nullptr, deadline,
                    /*interruptible=*/false)
        .IgnoreError();
  }
}

std::vector<LaunchLine> ParseLaunchOutput(absl::string_view output) {
  std::vector<LaunchLine> lines;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    const size_t close_bracket = line.find("] ");
    if (!absl::ConsumePrefix(&line, "[") ||
        close_bracket == absl::string_view::npos) {
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> tag = absl::StrSplit(
        line.substr(0, close_bracket - 1), absl::MaxSplits(' ', 1));
    LaunchLine parsed{.label = std::string(tag.first),
                      .host = std::string(tag.second),
                      .text = std::string(line.substr(close_bracket + 1))};
    const size_t pid = parsed.text.find("pid ");
    if (pid != std::string::npos) {
      const absl::string_view rest =
          absl::string_view(parsed.text).substr(pid + 4);
      const size_t digits = rest.find_first_not_of("0123456789");
      if (!absl::SimpleAtoi(rest.substr(0, digits), &parsed.pid)) {
        parsed.pid = 0;
      }
    }
    lines.push_back(std::move(parsed));
  }
  return lines;
}

absl::StatusOr<std::string> StateDir(absl::string_view fleet) {
  RF_ASSIGN_OR_RETURN(const std::string dir, StateFolder(fleet));
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("state folder ", dir, ": ", error.message(),
                     ", want it writable; XDG_STATE_HOME moves it"));
  }
  return dir;
}

absl::StatusOr<FleetLock> FleetLock::Acquire(absl::string_view fleet,
                                             Deadline deadline) {
  RF_ASSIGN_OR_RETURN(const std::string dir, StateDir(fleet));
  const std::string path = absl::StrCat(dir, "/launch.lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::strerror(errno), ", want it writable"));
  }
  FleetLock lock(fd);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat(path, ": flock: ", std::strerror(errno)));
    }
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    if (deadline.Expired()) {
      char pid[32] = {};
      [[maybe_unused]] const ssize_t got = pread(fd, pid, sizeof(pid) - 1, 0);
      const absl::string_view holder = absl::StripAsciiWhitespace(pid);
      return absl::UnavailableError(absl::StrCat(
          "fleet ", fleet, ": ",
          holder.empty() ? "another command" : absl::StrCat("pid ", holder),
          " starts or stops it and has not ended in time (", path, ")"));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  // For the messages of others. On a full disk they have none.
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) == 0) {
    [[maybe_unused]] const ssize_t written =
        pwrite(fd, pid.data(), pid.size(), 0);
  }
  return lock;
}

FleetLock::FleetLock(FleetLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FleetLock& FleetLock::operator=(FleetLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FleetLock::~FleetLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace ringfleet::coordinator::cli
