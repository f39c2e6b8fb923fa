// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/config/config.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/targets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::ringfleet::cluster::Deadline;
using ::testing::HasSubstr;

// A launch folder with a script of the test's own, and a state folder.
class LauncherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("RINGFLEET_LAUNCH_DIR", dir_.path().c_str(), 1);
    setenv("XDG_STATE_HOME", dir_.path().c_str(), 1);
  }
  void TearDown() override {
    unsetenv("RINGFLEET_LAUNCH_DIR");
    unsetenv("XDG_STATE_HOME");
  }
  void WriteScript(absl::string_view body) {
    const std::string path = dir_.File("fleet.sh");
    std::ofstream(path) << "#!/bin/bash\n" << body << "\n";
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }

  // Not followed by the end of the process, tests and all.
  void Request() {
    interrupt_.Request();
    interrupt_.AllowCleanup(absl::Minutes(10));
  }

  testing::TempDir dir_;
  Interrupt interrupt_;
  const cluster::ClusterConfig fleet_ = *cluster::ParseClusterConfig(
      "model: /m\nworkers: [{port: 1}, {port: 2}]\n", "f.yaml", "/");
};

TEST_F(LauncherTest, ScriptGetsVerbBinariesAndResolvedTargets) {
  WriteScript("echo \"$*\"; cat");
  const std::string folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::string output;
  ASSERT_TRUE(RunLaunchScript("start", fleet_, "1", &output).ok());
  EXPECT_EQ(output, absl::StrCat("start --targets - --bin-dir ", folder, "\n",
                                 *FormatTargets(fleet_, "1")));
  ASSERT_TRUE(RunLaunchScript("stop", fleet_, "", &output).ok());
  EXPECT_THAT(output, HasSubstr("\ntarget\tcoordinator\t"));
  EXPECT_EQ(RunLaunchScript("stop", fleet_, "1-2", &output),
            FormatTargets(fleet_, "1-2").status());
  ASSERT_TRUE(RunLaunchScript("check", fleet_, "coordinator", &output,
                              Deadline::After(absl::Minutes(1)),
                              /*interruptible=*/true, {"--", "/m", "-"})
                  .ok());
  EXPECT_THAT(output,
              HasSubstr(absl::StrCat("--bin-dir ", folder, " -- /m -\n")));
}

TEST_F(LauncherTest, FailedHostsAreUnavailable) {
  WriteScript(
      "echo '[1 beta] no'; echo 'fleet.sh: start failed on 1 (beta)' >&2; "
      "exit 1");
  std::string output;
  const absl::Status status = RunLaunchScript("start", fleet_, "", &output);
  EXPECT_EQ(status, absl::UnavailableError("launch start: start failed on 1 "
                                           "(beta)"));
  EXPECT_THAT(output, HasSubstr("[1 beta] no\n"));
}

TEST_F(LauncherTest, WrongCallIsInvalidArgument) {
  WriteScript("echo \"fleet.sh: unknown option '-x'\" >&2; exit 2");
  EXPECT_EQ(RunLaunchScript("start", fleet_, "", nullptr),
            absl::InvalidArgumentError("launch start: unknown option '-x'"));
}

TEST_F(LauncherTest, AProcessOfAnotherFileIsInvalidArgument) {
  WriteScript(
      "echo '[1 beta] refused: pid 7, which was started from /a/f.yaml'; "
      "echo 'fleet.sh: stop failed on 1 (beta)' >&2; exit 1");
  cluster::ClusterConfig fleet = fleet_;
  fleet.path = "/b/f.yaml";
  EXPECT_EQ(RunLaunchScript("stop", fleet, "", nullptr),
            absl::InvalidArgumentError(
                "launch stop: fleet f was started from /a/f.yaml, want that "
                "file instead of /b/f.yaml, or --force"));
  EXPECT_EQ(RunLaunchScript("start", fleet, "", nullptr),
            absl::InvalidArgumentError(
                "launch start: fleet f was started from /a/f.yaml, want that "
                "file instead of /b/f.yaml, or another `name:` in this one"));
}

TEST_F(LauncherTest, AStateIsShownInTheOrderOfRanks) {
  WriteScript(
      "echo '[10 a] ten'; echo '[2 b] two'; echo 'more'; "
      "echo '[coordinator c] c'; echo '[2 b] again'");
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(RunLaunchScript("status", fleet_, "", nullptr).ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "[coordinator c] c\n[2 b] two\n[2 b] again\n[10 a] ten\nmore\n");
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(RunLaunchScript("start", fleet_, "", nullptr).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::StartsWith("[10 a] ten\n[2 b] two\n"));
}

TEST_F(LauncherTest, MissingScriptNamesItsPlace) {
  const absl::Status status = RunLaunchScript("start", fleet_, "", nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(dir_.File("fleet.sh"), ": No such file")));
}

TEST_F(LauncherTest, DeadlineEndsAScriptThatHangs) {
  WriteScript("echo begun; exec sleep 100");
  std::string output;
  const absl::Time start = absl::Now();
  const absl::Status status = RunLaunchScript(
      "start", fleet_, "", &output, Deadline::After(absl::Milliseconds(300)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
}

// A daemon that kept the script's output open would hold the caller for ever.
TEST_F(LauncherTest, DeadlineHoldsWhenAnotherProcessKeepsTheOutputOpen) {
  WriteScript(
      absl::StrCat("sleep 20 & echo $! >", dir_.path(), "/pid; exit 0"));
  EXPECT_EQ(RunLaunchScript("start", fleet_, "", nullptr,
                            Deadline::After(absl::Seconds(2)))
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  pid_t pid = 0;
  std::ifstream(dir_.File("pid")) >> pid;
  ASSERT_GT(pid, 0);
  kill(pid, SIGKILL);
}

TEST_F(LauncherTest, AnInterruptEndsAScriptWithItsChildrenAndWaitsForThem) {
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  WriteScript(absl::StrCat("trap 'kill $child; wait; echo >", dir_.path(),
                           "/ended; exit 143' TERM\n",
                           "sleep 100 & child=$!\necho $$ $child >", fifo,
                           "\nwait"));
  pid_t script = 0, child = 0;
  std::thread user([&] {
    std::ifstream(fifo) >> script >> child;
    Request();
  });
  EXPECT_EQ(RunLaunchScript("start", fleet_, "", nullptr),
            absl::CancelledError("interrupted"));
  user.join();
  EXPECT_TRUE(std::filesystem::exists(dir_.File("ended")));
  for (const pid_t pid : {script, child}) {
    ASSERT_GT(pid, 0);
    EXPECT_NE(kill(pid, 0), 0) << "pid " << pid << " is left";
  }
}

// A shell that starts with the signal ignored cannot give it to its pipelines.
TEST_F(LauncherTest, ScriptsEndByClosedPipesThoughThisProcessDoesNot) {
  WriteScript("yes | head -n 1 >/dev/null; echo ${PIPESTATUS[0]}");
  std::string output;
  ASSERT_TRUE(RunLaunchScript("start", fleet_, "", &output).ok());
  EXPECT_EQ(output, "141\n");
}

TEST_F(LauncherTest, AfterAnInterruptOnlyWhatCleansUpIsStarted) {
  WriteScript(absl::StrCat("echo $1 >>", dir_.path(), "/verbs"));
  Request();
  EXPECT_EQ(RunLaunchScript("start", fleet_, "", nullptr),
            absl::CancelledError("interrupted"));
  EXPECT_EQ(RunLaunchScript("stop", fleet_, "", nullptr,
                            Deadline::After(absl::Minutes(1)),
                            /*interruptible=*/false),
            absl::OkStatus());
  std::string verbs;
  std::getline(std::ifstream(dir_.File("verbs")), verbs, '\0');
  EXPECT_EQ(verbs, "stop\n");
}

TEST_F(LauncherTest, AnInterruptEndsTheWaitForAFleet) {
  const auto first = FleetLock::Acquire("f", Deadline::After(absl::Seconds(1)));
  ASSERT_TRUE(first.ok()) << first.status();
  Request();
  EXPECT_EQ(FleetLock::Acquire("f", Deadline::After(absl::Minutes(1))).status(),
            absl::CancelledError("interrupted"));
}

TEST_F(LauncherTest, ScriptEndsWithItsCaller) {
  const std::string fifo = dir_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  // The pipe has a writer for as long as the script lives.
  WriteScript(absl::StrCat("exec 5>", fifo, "; echo x >&5; exec sleep 100"));
  const pid_t caller = fork();
  if (caller == 0) {
    (void)RunLaunchScript("start", fleet_, "", nullptr);
    _exit(0);
  }
  const int fd = open(fifo.c_str(), O_RDONLY);
  char byte;
  ASSERT_EQ(read(fd, &byte, 1), 1);
  ASSERT_EQ(read(fd, &byte, 1), 1);  // "x\n"
  kill(caller, SIGKILL);
  waitpid(caller, nullptr, 0);
  pollfd end = {.fd = fd, .events = POLLIN};
  ASSERT_EQ(poll(&end, 1, 60000), 1) << "the script lives on";
  EXPECT_EQ(read(fd, &byte, 1), 0);
  close(fd);
}

// The script of the source tree, with logs that nobody writes.
class LogsTest : public LauncherTest {
 protected:
  void SetUp() override {
    LauncherTest::SetUp();
    setenv("RINGFLEET_LAUNCH_DIR", RINGFLEET_SOURCE_DIR "/cluster/launch/ssh",
           1);
    std::filesystem::create_directories(dir_.File("ringfleet/f"));
  }

  std::string Log(const std::string& name) const {
    return absl::StrCat(dir_.File("ringfleet/f"), "/", name);
  }
  static std::string Line(absl::Duration age, const std::string& text) {
    return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now() - age,
                            absl::UTCTimeZone()) +
           " I " + text + "\n";
  }
  absl::Status Read(absl::string_view hosts, absl::Duration since) {
    text_.clear();
    return ReadLogs(fleet_, hosts, since, /*follow=*/false,
                    [this](absl::string_view text) {
                      absl::StrAppend(&text_, text);
                      return absl::OkStatus();
                    });
  }

  std::string text_;
};

TEST_F(LogsTest, LinesCarryTheirHostAndComeHostByHost) {
  const std::string old = Line(absl::Hours(30), "old");
  const std::string last = Line(absl::Hours(2), "late");
  const std::string now = Line(absl::ZeroDuration(), "now");
  std::ofstream(Log("rank-0.log.1")) << old << "behind it\n";
  std::ofstream(Log("rank-0.log")) << last;
  std::ofstream(Log("rank-1.log")) << now << "crash\n";
  std::ofstream(Log("coordinator.log")) << last;
  const std::string zero = "[0 127.0.0.1] ", one = "[1 127.0.0.1] ",
                    coordinator = "[coordinator 127.0.0.1] ";
  ASSERT_TRUE(Read("", absl::InfiniteDuration()).ok());
  EXPECT_EQ(text_, zero + old + zero + "behind it\n" + zero + last + one + now +
                       one + "crash\n" + coordinator + last);
  ASSERT_TRUE(Read("", absl::Hours(3)).ok());
  EXPECT_EQ(text_,
            zero + last + one + now + one + "crash\n" + coordinator + last);
  ASSERT_TRUE(Read("0-1", absl::Hours(1)).ok());
  EXPECT_EQ(text_, one + now + one + "crash\n");
}

TEST_F(LogsTest, AHostWithoutALogIsNamed) {
  std::ofstream(Log("rank-1.log")) << "here\n";
  EXPECT_EQ(Read("0-1", absl::InfiniteDuration()),
            absl::UnavailableError("logs: logs failed on 0 (127.0.0.1)"));
  EXPECT_THAT(text_, HasSubstr("[0 127.0.0.1] no log "));
  EXPECT_THAT(text_, HasSubstr("[1 127.0.0.1] here\n"));
}

TEST_F(LogsTest, FollowingGoesOnWithNewLinesUntilItsReaderLeaves) {
  std::ofstream(Log("rank-0.log")) << "first\n";
  std::string read;
  const absl::Status status = ReadLogs(
      fleet_, "0", absl::InfiniteDuration(), /*follow=*/true,
      [&](absl::string_view text) {
        const bool first = read.empty();
        absl::StrAppend(&read, text);
        if (first) {
          std::ofstream(Log("rank-0.log"), std::ios::app) << "second\n";
          return absl::OkStatus();
        }
        return absl::CancelledError("enough");
      });
  EXPECT_EQ(status, absl::CancelledError("enough"));
  EXPECT_EQ(read, "[0 127.0.0.1] first\n[0 127.0.0.1] second\n");
}

TEST(LaunchOutputTest, LinesGiveLabelHostTextAndPid) {
  const auto lines = ParseLaunchOutput(
      "[0 alpha] started pid 12\n[1 ::1] not running\nnoise\n"
      "[coordinator beta] already running pid 7, late\n[]\n[x] y\n"
      "[2 c] pid 99999999999999\n");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].label, "0");
  EXPECT_EQ(lines[0].host, "alpha");
  EXPECT_EQ(lines[0].text, "started pid 12");
  EXPECT_EQ(lines[0].pid, 12);
  EXPECT_EQ(lines[1].host, "::1");
  EXPECT_EQ(lines[1].pid, 0);
  EXPECT_EQ(lines[2].label, "coordinator");
  EXPECT_EQ(lines[2].pid, 7);
  EXPECT_EQ(lines[3].label, "x");
  EXPECT_EQ(lines[4].pid, 0);
}

TEST_F(LauncherTest, SecondHolderWaitsAndIsToldWhoHoldsTheFleet) {
  auto first = FleetLock::Acquire("f", Deadline::After(absl::Seconds(1)));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second =
      FleetLock::Acquire("f", Deadline::After(absl::Milliseconds(50)));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("fleet f: pid ", getpid(), " starts")));
  // Another fleet is not concerned.
  EXPECT_TRUE(FleetLock::Acquire("g", Deadline::After(absl::Seconds(1))).ok());
  // Moving keeps it held; the end of the holder frees it.
  {
    const FleetLock moved = *std::move(first);
    EXPECT_FALSE(
        FleetLock::Acquire("f", Deadline::After(absl::ZeroDuration())).ok());
  }
  EXPECT_TRUE(FleetLock::Acquire("f", Deadline::After(absl::Seconds(1))).ok());
}

// Nothing can be written to the link's target.
TEST_F(LauncherTest, ALockNeedsNoSpaceOnADisk) {
  const absl::StatusOr<std::string> folder = StateDir("f");
  ASSERT_TRUE(folder.ok()) << folder.status();
  std::filesystem::create_symlink("/dev/full",
                                  absl::StrCat(*folder, "/launch.lock"));
  const auto now = [] { return Deadline::After(absl::ZeroDuration()); };
  const absl::StatusOr<FleetLock> lock = FleetLock::Acquire("f", now());
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_THAT(std::string(FleetLock::Acquire("f", now()).status().message()),
              HasSubstr("fleet f: another command starts or stops it"));
}

TEST_F(LauncherTest, LockOfADeadHolderIsFree) {
  const pid_t holder = fork();
  if (holder == 0) {
    const auto lock =
        FleetLock::Acquire("f", Deadline::After(absl::Seconds(10)));
    raise(SIGKILL);
  }
  waitpid(holder, nullptr, 0);
  EXPECT_TRUE(FleetLock::Acquire("f", Deadline::After(absl::Seconds(10))).ok());
}

TEST_F(LauncherTest, StateFolderThatCannotBeMadeIsAnError) {
  std::ofstream(dir_.File("ringfleet")) << "a file in the way";
  EXPECT_EQ(StateDir("f").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
