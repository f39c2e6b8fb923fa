// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/fatal_signal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

TEST(FatalSignalTest, ACutFileIsNamedAsTheCause) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const testing::TempDir folder;
  const std::string path = folder.File("mapped");
  testing::WriteFile(path, std::string(4096, 'x'));
  EXPECT_EXIT(
      {
        ExplainCrashes("ringfleet-test");
        const int fd = open(path.c_str(), O_RDWR);
        const volatile char* const bytes = static_cast<const char*>(
            mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0));
        if (ftruncate(fd, 0) != 0) _exit(2);
        _exit(bytes[0]);
      },
      ::testing::KilledBySignal(SIGBUS),
      "ringfleet-test: bus error .*mapped into memory");
}

TEST(FatalSignalTest, ACrashShowsTimeStackAndCause) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const auto& [number, cause] :
       {std::make_pair(SIGABRT, "aborted"),
        std::make_pair(SIGSEGV, "segmentation fault")}) {
    EXPECT_EXIT(
        {
          // A sanitizer's handler would stay.
          std::signal(number, SIG_DFL);
          ExplainCrashes("ringfleet-test");
          raise(number);
        },
        ::testing::KilledBySignal(number),
        ::testing::AllOf(
            ::testing::ContainsRegex(
                "20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:"
                "[0-6][0-9]Z E ringfleet-test crashed, with this stack:\n"
                "(.*0x[0-9a-f]+.*\n)+ringfleet-test: "),
            ::testing::HasSubstr(
                absl::FormatTime("%Y-%m-", absl::Now(), absl::UTCTimeZone())),
            ::testing::HasSubstr(cause)));
  }
}

}  // namespace
}  // namespace ringfleet::cluster
