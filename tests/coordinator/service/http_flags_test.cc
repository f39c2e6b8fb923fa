// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/http_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::HasSubstr;

// Returns the options that the words of a command line give.
absl::StatusOr<HttpOptions> ParseHttpFlags(std::vector<std::string> words,
                                           HttpOptions options = {}) {
  CLI::App app;
  HttpFlags flags("30s");
  flags.Add(app, {});
  std::reverse(words.begin(), words.end());  // As CLI11 wants them.
  app.parse(words);
  const absl::Status status = flags.Read(&options);
  if (!status.ok()) return status;
  return options;
}

TEST(HttpFlagsTest, TimesAreSecondsOrHaveUnits) {
  const auto timeout = [](const std::string& text) {
    return ParseHttpFlags({"--request-timeout", text})->request_timeout;
  };
  EXPECT_EQ(timeout("90"), absl::Seconds(90));
  EXPECT_EQ(timeout("2.5"), absl::Milliseconds(2500));
  EXPECT_EQ(timeout("10m"), absl::Minutes(10));
  for (const char* const text : {"0", "-1s", "25h", "soon", "nan", "inf"}) {
    const auto options = ParseHttpFlags({"--request-timeout", text});
    EXPECT_THAT(std::string(options.status().message()),
                HasSubstr("want a time from 1ms to 24h"))
        << text;
  }
  EXPECT_FALSE(ParseHttpFlags({"--drain", "2h"}).ok());
}

TEST(HttpFlagsTest, AnAbsentTimeoutKeepsThatOfTheClusterFile) {
  EXPECT_EQ(ParseHttpFlags({})->request_timeout, absl::InfiniteDuration());
  HttpOptions file;
  file.request_timeout = absl::Seconds(7);
  EXPECT_EQ(ParseHttpFlags({}, file)->request_timeout, absl::Seconds(7));
}

}  // namespace
}  // namespace ringfleet::coordinator
