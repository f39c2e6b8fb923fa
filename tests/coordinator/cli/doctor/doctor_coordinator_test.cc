// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/doctor/doctor_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DoctorCoordinatorTest, ReadsWhatTheScriptFound) {
  const CoordinatorFindings found = ParseCheck(
      "Warning: Permanently added 'gamma'\n"
      "[coordinator gamma] 12884901888 bytes free in /a b bytes free in c\n"
      "[coordinator gamma] no config.json in /m\n"
      "[coordinator gamma] no weights in /m\n"
      "[coordinator gamma] port 50051 on 10.0.0.11 is in use\n"
      "[coordinator gamma] port 8080 on 0.0.0.0 is in use\n");
  EXPECT_THAT(found.ports_in_use,
              ElementsAre("port 50051 on 10.0.0.11 is in use",
                          "port 8080 on 0.0.0.0 is in use"));
  EXPECT_TRUE(found.no_config);
  EXPECT_TRUE(found.no_weights);
  EXPECT_EQ(found.state_dir, "/a b bytes free in c");
  EXPECT_EQ(found.state_free_bytes, uint64_t{12} << 30);
}

TEST(DoctorCoordinatorTest, NothingFoundIsNothingWrong) {
  const CoordinatorFindings found = ParseCheck("");
  EXPECT_THAT(found.ports_in_use, IsEmpty());
  EXPECT_FALSE(found.no_config);
  EXPECT_FALSE(found.no_weights);
  EXPECT_EQ(found.state_dir, "");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
