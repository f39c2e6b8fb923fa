// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/thread_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "cluster/process/process_limits.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ExitedWithCode;

TEST(ThreadLimitTest, AFewThreadsCanBeStarted) {
  EXPECT_TRUE(CheckThreads(1).ok());
  EXPECT_TRUE(CheckThreads(ClientThreads(), WorkerThreads(3)).ok());
  EXPECT_EQ(WorkerThreads(7), WorkerThreads(3) + 4);
  // One reads a worker's results, and one loads or records beside it.
  EXPECT_EQ(CoordinatorThreads(3), CoordinatorThreads(2) + 2);
  // Nine of its own and two for callbacks, where a client has one.
  EXPECT_GE(CoordinatorThreads(0), ClientThreads() - 1 + 9 + 2);
}

TEST(ThreadLimitTest, CpusAreCounted) {
  EXPECT_GE(AvailableCpus(), 1);
  EXPECT_LE(AvailableCpus(), sysconf(_SC_NPROCESSORS_CONF));
}

// For a child of the test, which limits itself.
void SetLimit(decltype(RLIMIT_AS) which, rlim_t value) {
  const rlimit limit = {value, value};
  setrlimit(which, &limit);
}

[[noreturn]] void EndWith(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  _exit(absl::IsResourceExhausted(status) ? 1 : 0);
}

TEST(ThreadLimitTest, ALimitOfAddressSpaceIsNamed) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer maps terabytes";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kThreads = 600;  // Stacks have 2 MiB and more.
  EXPECT_EXIT(
      {
        SetLimit(RLIMIT_AS, 1 << 30);
        EndWith(CheckThreads(kThreads));
      },
      ExitedWithCode(1), "threads: the limit is [0-9]+, want 600 .*ulimit -v");
}

// Becomes a user without processes. False: the system refuses.
bool BecomeNobody() { return setresuid(60123, 60123, 60123) == 0; }

bool CanBecomeNobody() {
  const pid_t child = fork();
  if (child == 0) _exit(BecomeNobody() ? 0 : 1);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

TEST(ThreadLimitTest, ALimitOfAUsersProcessesIsNamed) {
  if (!CanBecomeNobody()) GTEST_SKIP() << "needs root: a user of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        SetLimit(RLIMIT_NPROC, 5);
        if (!BecomeNobody() || !CheckThreads(2).ok()) _exit(2);
        EndWith(CheckThreads(10, 20));
      },
      ExitedWithCode(1), "threads: the limit is 5, want 3[0-9] .ulimit -u");
}

TEST(ThreadLimitTest, AnExceptionOfAThreadIsOneLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [](auto error) {
    EndWithoutResources("ringfleet-test");
    std::thread([&error] { throw error; }).join();
  };
  EXPECT_EXIT(fail(std::system_error(EAGAIN, std::generic_category())),
              ExitedWithCode(1), "^ringfleet-test: threads: ");
  EXPECT_EXIT(fail(std::bad_alloc()), ExitedWithCode(1),
              "^ringfleet-test: memory: ");
  EXPECT_DEATH(fail(std::runtime_error("a bug")), "a bug");
}

}  // namespace
}  // namespace ringfleet::cluster
