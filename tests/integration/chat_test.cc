// SPDX-License-Identifier: Apache-2.0
// `ringfleet chat` in a pipe and on a terminal.
#include <signal.h>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::Not;

class ChatTest : public FleetTest {
 protected:
  // Runs a chat whose input is a file with `input`.
  Finished Chat(const std::string& input, Arguments more) {
    testing::WriteFile(File("input"), input);
    std::string command = "exec \"$@\" <" + File("input");
    Arguments arguments = {"-c", command, "sh", RINGFLEET_BINARY, "chat"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run("/bin/sh", std::move(arguments));
  }

  // Starts a chat on a terminal of its own, whose keys Write presses.
  std::unique_ptr<Process> ChatOnTerminal(const std::string& arguments) {
    return Start("/usr/bin/script",
                 {"-qefc", std::string(RINGFLEET_BINARY) + " chat " + arguments,
                  "/dev/null"},
                 {.input = true});
  }
};

constexpr char kQuestions[] =
    "/system S\n"
    "import os\\\n"
    "import re\n"
    "/set max_tokens 4\n"
    "\"\"\"\n"
    "def f(x):\n"
    "    return\n"
    "\"\"\"\n";

TEST_F(ChatTest, APipeHasTheAnswersOfLocalWorkersAndOfAServer) {
  const Arguments sampling = {"--temp", "0",     "-n",          "9",
                              "--stop", "never", "--ignore-eos"};
  Arguments local = sampling;
  local.insert(local.end(), {"--model", Model(), "--dtype", "f32"});
  const Finished here = Chat(kQuestions, local);
  ASSERT_EQ(here.code, 0) << here.errors;
  EXPECT_THAT(here.errors, HasSubstr("| 9 tokens "));
  EXPECT_THAT(here.errors, HasSubstr("| 4 tokens "));
  EXPECT_THAT(here.output, Not(HasSubstr("> ")));
  EXPECT_THAT(here.output, Not(HasSubstr("\033")));

  const std::unique_ptr<Process> serve =
      StartCli({"serve", "--model", Model(), "--port", "0", "--dtype", "f32"});
  const std::string line = "listening on ";
  ASSERT_TRUE(WaitUntil(30, [&] {
    return serve->output().ends_with("\n") || !serve->Running();
  })) << serve->errors();
  ASSERT_TRUE(serve->output().starts_with(line)) << serve->errors();
  std::string url = serve->output().substr(line.size());
  url.pop_back();
  Arguments remote = sampling;
  remote.insert(remote.end(), {"--url", url});
  const Finished there = Chat(kQuestions, remote);
  ASSERT_EQ(there.code, 0) << there.errors;
  EXPECT_EQ(there.output, here.output);
  EXPECT_THAT(there.errors, HasSubstr("| 4 tokens "));

  // A refusal comes in the words of the server.
  remote.insert(remote.end(), {"--model", "another"});
  const Finished refused = Chat("x\n", remote);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("'another' is not served"));
  serve->Signal(SIGTERM);
  EXPECT_EQ(serve->Wait(30), 0) << serve->errors();
}

TEST_F(ChatTest, TheExitCodeSaysWhatFailed) {
  EXPECT_EQ(Chat("x\n", {"--coordinator", "127.0.0.1:1"}).code, 3);
  const Finished nobody = Chat("x\n", {"--url", "http://127.0.0.1:1"});
  EXPECT_EQ(nobody.code, 3);
  EXPECT_THAT(nobody.error_line(), HasSubstr("server 127.0.0.1:1"));
  EXPECT_EQ(Chat("/nothing\n", {"--url", "http://127.0.0.1:1"}).code, 2);
  EXPECT_EQ(Chat("x\n", {"--url", "127.0.0.1:1"}).code, 2);
  EXPECT_EQ(Chat("", {"--url", "http://127.0.0.1:1"}).code, 0);
  EXPECT_EQ(
      Chat("", {"--url", "http://127.0.0.1:1", "--model", "x", "--local", "2"})
          .code,
      2);
}

TEST_F(ChatTest, CtrlCStopsAnAnswerAndThenLeaves) {
  // The template opens a reasoning, which no token of this model ends.
  const std::string model = CopyModel();
  json config =
      json::parse(testing::ReadFile(model + "/tokenizer_config.json"));
  config["chat_template"] =
      "{{ messages[0]['content'] }}{% if add_generation_prompt %}"
      "<｜Assistant｜><think>\n{% endif %}";
  testing::WriteFile(model + "/tokenizer_config.json", config.dump());
  const std::unique_ptr<Process> chat =
      ChatOnTerminal("--model " + model + " --ignore-eos --temp 0");
  const auto shown = [&](const std::string& text) {
    return WaitUntil(30,
                     [&] {
                       return chat->output().find(text) != std::string::npos ||
                              !chat->Running();
                     }) &&
           chat->Running();
  };
  ASSERT_TRUE(shown("> ")) << chat->output();
  chat->Write("import os\n");
  ASSERT_TRUE(shown("\033[2m")) << chat->output();
  chat->Write("\x03");
  ASSERT_TRUE(shown("\033[0m\r\n> ")) << chat->output();
  chat->Write("/set max_tokens 3\nimport re\n");
  ASSERT_TRUE(shown("| 3 tokens ")) << chat->output();
  chat->Write("\x03");
  EXPECT_EQ(chat->Wait(30), 130) << chat->output();
}

class ChatFleetTest : public HandFleet {};

TEST_F(ChatFleetTest, AConversationGoesOnWithTheNextCoordinator) {
  const int where = testing::FreePort();
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(1, {}, {}, where));
  StartWorker(0);
  ASSERT_EQ(WaitForState("ready")["state"], "ready");
  const std::unique_ptr<Process> chat =
      Start("/usr/bin/script",
            {"-qefc",
             std::string(RINGFLEET_BINARY) + " chat -n 3 --temp 0 --cluster " +
                 cluster(),
             "/dev/null"},
            {.input = true});
  size_t seen = 0;
  // Asks, and returns what is shown until the next prompt.
  const auto ask = [&](const std::string& question) {
    seen = chat->output().size();
    chat->Write(question + "\n");
    EXPECT_TRUE(WaitUntil(30, [&] {
      return chat->output().size() > seen + question.size() + 4 &&
             chat->output().ends_with("> ");
    })) << chat->output();
    return chat->output().substr(seen);
  };
  ASSERT_TRUE(WaitUntil(30, [&] { return chat->output().ends_with("> "); }))
      << chat->output();
  EXPECT_THAT(ask("import os"), HasSubstr("| 3 tokens "));
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(5);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ask("import re"), HasSubstr("ringfleet: "))
        << "nobody is there";
  }
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(1, {}, {}, where));
  ASSERT_EQ(WaitForState("ready")["state"], "ready");
  EXPECT_THAT(ask("import io"), HasSubstr("| 3 tokens "));
}

TEST_F(ChatTest, CtrlDLeaves) {
  const std::unique_ptr<Process> chat =
      ChatOnTerminal("--url http://127.0.0.1:1");
  ASSERT_TRUE(WaitUntil(
      30, [&] { return chat->output().ends_with("> ") || !chat->Running(); }));
  chat->Write("x\n");
  // An error ends no conversation.
  ASSERT_TRUE(WaitUntil(30, [&] {
    return chat->output().find("server 127.0.0.1:1") != std::string::npos &&
           chat->output().ends_with("> ");
  })) << chat->output();
  chat->Write("\x04");
  EXPECT_EQ(chat->Wait(30), 0) << chat->output();
}

}  // namespace
}  // namespace ringfleet::integration
