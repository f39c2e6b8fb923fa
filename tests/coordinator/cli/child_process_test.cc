// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::HasSubstr;

// Returns all output of a child, up to its end.
std::string OutputOf(ChildProcess& child) {
  std::string output;
  char buffer[4096];
  ssize_t got;
  while ((got = read(child.output(), buffer, sizeof(buffer))) > 0) {
    output.append(buffer, static_cast<size_t>(got));
  }
  while (!child.Ended()) absl::SleepFor(absl::Milliseconds(1));
  return output;
}

TEST(ChildProcessTest, TextOfAnyLengthIsItsInput) {
  const std::string text(1 << 20, 'x');
  auto child = ChildProcess::Start({.command = {"/bin/cat"}, .input = text});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(OutputOf(*child), text);
  EXPECT_EQ(child->wait_status(), 0);
  auto without = ChildProcess::Start({.command = {"/bin/cat"}});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(OutputOf(*without), "");
}

TEST(ChildProcessTest, AProgramThatCannotBeExecutedIsAnError) {
  const absl::Status status =
      ChildProcess::Start({.command = {"/absent/program"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "cannot start /absent/program: No such file or directory");
}

TEST(ChildProcessTest, ALogGetsBothOutputs) {
  const testing::TempDir folder;
  const std::string log = folder.File("log");
  std::ofstream(log) << "before\n";
  auto child = ChildProcess::Start(
      {.command = {"/bin/sh", "-c", "echo out; echo err >&2; exit 3"},
       .log = log});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->output(), -1);
  while (!child->Ended()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(WEXITSTATUS(child->wait_status()), 3);
  EXPECT_FALSE(child->killed());
  std::string text;
  std::getline(std::ifstream(log), text, '\0');
  EXPECT_EQ(text, "before\nout\nerr\n");
  EXPECT_THAT(std::string(ChildProcess::Start(
                              {.command = {"/bin/true"}, .log = "/absent/log"})
                              .status()
                              .message()),
              HasSubstr("/absent/log: "));
}

TEST(ChildProcessTest, InheritsOneDescriptorOnly) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const int other = fcntl(ends[0], F_DUPFD_CLOEXEC, 50);
  auto child = ChildProcess::Start(
      {.command = {"/bin/sh", "-c",
                   absl::StrCat("[ -e /proc/$$/fd/", ends[0],
                                " ] && [ ! -e /proc/$$/fd/", other, " ]")},
       .inherited_fd = ends[0]});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(OutputOf(*child), "");
  EXPECT_EQ(child->wait_status(), 0);
  for (const int fd : {ends[0], ends[1], other}) close(fd);
}

TEST(ChildProcessTest, TheDestructorAndKillEndIt) {
  auto child = ChildProcess::Start({.command = {"/bin/sh", "-c",
                                                "echo $$; "
                                                "exec sleep 100"}});
  ASSERT_TRUE(child.ok()) << child.status();
  char text[16] = {};
  ASSERT_GT(read(child->output(), text, sizeof(text) - 1), 0);
  const pid_t pid = std::atoi(text);
  EXPECT_FALSE(child->Ended());
  {
    const ChildProcess moved = *std::move(child);
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);

  auto second = ChildProcess::Start({.command = {"/bin/sleep", "100"}});
  ASSERT_TRUE(second.ok()) << second.status();
  second->Kill();
  EXPECT_TRUE(second->Ended());
  EXPECT_TRUE(second->killed());
  EXPECT_EQ(WTERMSIG(second->wait_status()), SIGKILL);
  second->Signal(SIGTERM);  // Nobody gets it.
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
