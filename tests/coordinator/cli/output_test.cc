// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/output.h"

#include <gtest/gtest.h>

namespace ringfleet::coordinator::cli {
namespace {

TEST(OutputTest, OneLineHasNoControls) {
  EXPECT_EQ(OneLine("plain, \u00e9 and \U0001F600"),
            "plain, \u00e9 and \U0001F600");
  EXPECT_EQ(OneLine("a\nb\x1b]0;c\x07\r\t\x7f"), "a b ]0;c    ");
  EXPECT_EQ(OneLine("\u0080\u009b\u009f\u00a0\u2028\u2029"), "   \u00a0  ");
  EXPECT_EQ(OneLine("\x9b\xff\xe2\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(OneLine(""), "");
}

TEST(OutputTest, JsonHasNoControls) {
  EXPECT_EQ(EscapeControls("{\"a\":\"\u00e9\"}"), "{\"a\":\"\u00e9\"}");
  EXPECT_EQ(EscapeControls("\"\x7f\u0080\u009b\u009f\u00a0\""),
            "\"\\u007f\\u0080\\u009b\\u009f\u00a0\"");
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
