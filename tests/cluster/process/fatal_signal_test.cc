// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/fatal_signal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

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
        ExplainBusErrors("ringfleet-test");
        const int fd = open(path.c_str(), O_RDWR);
        const volatile char* const bytes = static_cast<const char*>(
            mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0));
        if (ftruncate(fd, 0) != 0) _exit(2);
        _exit(bytes[0]);
      },
      ::testing::KilledBySignal(SIGBUS),
      "ringfleet-test: bus error .*mapped into memory");
}

}  // namespace
}  // namespace ringfleet::cluster
