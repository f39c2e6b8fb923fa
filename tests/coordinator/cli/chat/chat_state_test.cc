// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/chat_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "ROLE: CONTENT" of each message.
std::vector<std::string> MessagesOf(const ChatState& state) {
  std::vector<std::string> messages;
  for (const auto& message :
       state.request().prompt().conversation().messages()) {
    messages.push_back(absl::StrCat(message.role(), ": ", message.content()));
  }
  return messages;
}

std::string Told(ChatState* state, const std::string& line) {
  const auto outcome = state->Run(line);
  return outcome.ok() ? outcome->told : std::string(outcome.status().message());
}

TEST(ChatStateTest, KeepsTheConversation) {
  ChatState state({});
  state.AddQuestion("a");
  state.AddAnswer("b", "r");
  EXPECT_EQ(Told(&state, "/system S T"), "");
  state.AddQuestion("c");
  EXPECT_THAT(MessagesOf(state),
              ElementsAre("system: S T", "user: a", "assistant: b", "user: c"));
  EXPECT_EQ(state.request().prompt().conversation().messages(2).reasoning(),
            "r");
  state.DropQuestion();
  EXPECT_EQ(Told(&state, "/system U"), "");
  EXPECT_THAT(MessagesOf(state),
              ElementsAre("system: U", "user: a", "assistant: b"));
  Told(&state, "/clear");
  EXPECT_THAT(MessagesOf(state), ElementsAre("system: U"));
  EXPECT_EQ(Told(&state, "/system"), "");
  EXPECT_THAT(MessagesOf(state), ElementsAre());
}

TEST(ChatStateTest, SettingsAreFieldsOrVariables) {
  v1::GenerateRequest request;
  request.set_top_k(5);
  ChatState state(request);
  for (const char* line :
       {"/set temperature 0.5", "/set max_tokens 7", "/set seed 3",
        "/set stop two words", "/set ignore_eos true", "/set thinking true",
        "/set reasoning_effort high"}) {
    EXPECT_EQ(Told(&state, line), "");
  }
  EXPECT_EQ(state.request().temperature(), 0.5F);
  EXPECT_EQ(state.request().max_tokens(), 7);
  EXPECT_EQ(state.request().seed(), 3u);
  EXPECT_THAT(state.request().stop(), ElementsAre("two words"));
  EXPECT_TRUE(state.request().ignore_eos());
  EXPECT_EQ(state.request().prompt().conversation().template_kwargs(),
            R"({"thinking":true,"reasoning_effort":"high"})");
  const std::string all = Told(&state, "/set");
  EXPECT_THAT(all, HasSubstr("temperature 0.5\n"));
  EXPECT_THAT(all, HasSubstr("top_k 5\n"));
  EXPECT_THAT(all, HasSubstr("top_p default\n"));
  EXPECT_THAT(all, HasSubstr("thinking true\n"));
  for (const char* line :
       {"/set top_k", "/set stop", "/set thinking", "/set reasoning_effort"}) {
    EXPECT_EQ(Told(&state, line), "");
  }
  EXPECT_FALSE(state.request().has_top_k());
  EXPECT_EQ(state.request().stop_size(), 0);
  EXPECT_EQ(state.request().prompt().conversation().template_kwargs(), "");
  EXPECT_EQ(Told(&state, "/set temperature hot"),
            "/set temperature: 'hot', want a number");
  EXPECT_EQ(Told(&state, "/set top_k -1"), "/set top_k: '-1', want 0 or more");
}

TEST(ChatStateTest, FilesGoInAndOut) {
  const testing::TempDir folder;
  testing::WriteFile(folder.File("in"), "text");
  ChatState state({});
  EXPECT_THAT(Told(&state, absl::StrCat("/read ", folder.File("in"))),
              HasSubstr("4 bytes"));
  state.AddQuestion("q");
  EXPECT_THAT(MessagesOf(state), ElementsAre("user: text\nq"));
  state.AddAnswer("a", "r");
  EXPECT_EQ(Told(&state, absl::StrCat("/save ", folder.File("out"))), "");
  EXPECT_EQ(Json::parse(testing::ReadFile(folder.File("out"))),
            Json::parse(R"([{"role": "user", "content": "text\nq"},
                {"role": "assistant", "content": "a", "reasoning_content": "r"}
                ])"));
  EXPECT_THAT(Told(&state, "/read /no/such/file"), HasSubstr("/no/such/file"));
  EXPECT_THAT(Told(&state, "/save /no/such/file"),
              HasSubstr("cannot be written"));
}

TEST(ChatStateTest, UnknownCommandsAreNamed) {
  ChatState state({});
  EXPECT_THAT(Told(&state, "/help"), HasSubstr("/quit"));
  EXPECT_TRUE(state.Run("/quit")->quits);
  EXPECT_THAT(Told(&state, "/etc/passwd"),
              HasSubstr("/etc/passwd: no such command"));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
