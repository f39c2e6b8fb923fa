// SPDX-License-Identifier: Apache-2.0
// Each test logs in a process of its own: a log is one for the whole process.
#include "cluster/process/log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "protos/cluster.pb.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ContainsRegex;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LogDeathTest, AFullFileBecomesTheOlderOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const std::string folder = std::filesystem::temp_directory_path() /
                                   ("log_test." + std::to_string(getpid()));
        std::filesystem::create_directory(folder);
        const std::string path = folder + "/daemon.log";
        bool right = InitLog(path, LogLevel::kInfo).ok();
        const std::string long_text(size_t{1} << 20, 'x');
        for (int i = 0; i < 70; ++i) RF_LOG(kInfo, "line ", i, long_text);
        right &= std::filesystem::file_size(path) < (10 << 20);
        const std::string older = testing::ReadFile(path + ".1");
        right &= older.size() > (64 << 20) && older.size() < (66 << 20);
        const std::string all = older + testing::ReadFile(path);
        right &= all.find("line 69x") != std::string::npos;
        std::filesystem::remove_all(folder);
        exit(right ? 0 : 1);
      },
      ExitedWithCode(0), "");
}

TEST(LogDeathTest, ProtobufWritesFewLines) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        InitLog("", LogLevel::kInfo).IgnoreError();
        v1::ClusterState state;
        for (int i = 0; i < 100; ++i) state.ParseFromString("\x1a\x01\xff");
        exit(0);
      },
      ExitedWithCode(0),
      ::testing::AllOf(HasSubstr(" W ringfleet wire_format_lite"),
                       HasSubstr("invalid UTF-8"),
                       Not(HasSubstr("[libprotobuf")),
                       Not(ContainsRegex("UTF-8(.|\n)*contains invalid"))));
}

TEST(LogDeathTest, GrpcWritesFewErrorsAndAllThatAUserAsksFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        InitLog("", LogLevel::kInfo).IgnoreError();
        gpr_set_log_verbosity(GPR_LOG_SEVERITY_INFO);
        for (int i = 0; i < 100; ++i) gpr_log(GPR_ERROR, "error %d", i);
        for (int i = 0; i < 2; ++i) gpr_log(GPR_INFO, "info %d", i);
        exit(0);
      },
      ExitedWithCode(0),
      ::testing::AllOf(HasSubstr(" W ringfleet log_test.cc:"),
                       HasSubstr("] error 0\n"), Not(HasSubstr("error 1")),
                       HasSubstr("] info 0\n"), HasSubstr("] info 1\n")));
}

}  // namespace
}  // namespace ringfleet::cluster
