// SPDX-License-Identifier: Apache-2.0
// Programs that are started without some of the standard streams, or whose
// output cannot be written: nothing ends up where it does not belong.
#include <signal.h>

#include <filesystem>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

class ClosedStreamsTest : public HandFleet {
 protected:
  // Runs `ringfleet ARGUMENTS REDIRECTIONS`.
  Finished Redirected(const std::string& redirections, Arguments arguments) {
    arguments.insert(arguments.begin(), {"-c", "exec \"$@\" " + redirections,
                                         "sh", RINGFLEET_BINARY});
    return Run("/bin/sh", std::move(arguments));
  }
};

TEST_F(ClosedStreamsTest, AResultThatNobodyGetsIsAnError) {
  const std::string trace = File("trace.json");
  for (const char* redirections : {">&-", "<&- >&-"}) {
    const Finished finished =
        Redirected(redirections, {"generate", "--model", Model(), "-p", "x",
                                  "-n", "1", "--json", "--trace", trace});
    EXPECT_EQ(finished.code, 1);
    EXPECT_THAT(finished.errors, HasSubstr("ringfleet: stdout: cannot be"));
    EXPECT_TRUE(json::parse(testing::ReadFile(trace)).is_object());
  }
}

TEST_F(ClosedStreamsTest, HelpThatNobodyGetsIsAnErrorToo) {
  for (const Arguments& arguments :
       {Arguments{"--help"}, Arguments{"generate", "--help"},
        Arguments{"--version"}}) {
    for (const char* redirection : {">/dev/full", ">&-"}) {
      const Finished finished = Redirected(redirection, arguments);
      EXPECT_EQ(finished.code, 1);
      EXPECT_THAT(finished.error_line(), HasSubstr("stdout"));
    }
  }
}

TEST_F(ClosedStreamsTest, ErrorsMayBeDropped) {
  const Arguments generate = {
      "generate", "--model", Model(),  "-p",      "x",
      "-n",       "1",       "--json", "--trace", File("trace.json")};
  for (const char* redirections : {"2>&-", "<&- 2>&-"}) {
    const Finished finished = Redirected(redirections, generate);
    EXPECT_EQ(finished.code, 0);
    EXPECT_EQ(finished.document()["ids"].size(), 1u);
    EXPECT_TRUE(json::parse(testing::ReadFile(File("trace.json"))).is_object());
  }
  const Finished refused = Redirected(
      "<&- 2>&-", {"generate", "--model", Model(), "-f", "-", "--json"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.document()["error"]["message"].get<std::string>(),
              HasSubstr("prompt is empty"));
}

TEST_F(ClosedStreamsTest, CountsThatWereNotPrintedAreNotZeroed) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  ASSERT_EQ(
      Cli({"generate", "--cluster", cluster(), "-p", "x", "-n", "2"}).code, 0);
  const Arguments counts = {"--experts", "--counts"};
  const json before = Status(counts)["experts"];
  ASSERT_FALSE(before.empty());
  for (const char* format : {"json", "text"}) {
    const Finished full =
        Redirected(">/dev/full", {"status", "--cluster", cluster(), "--experts",
                                  "--counts", "--reset", "-o", format});
    EXPECT_EQ(full.code, 1);
    EXPECT_THAT(full.error_line(), HasSubstr("stdout"));
    EXPECT_EQ(Status(counts)["experts"], before);
  }
  EXPECT_EQ(Status({"--experts", "--counts", "--reset"})["experts"], before);
  EXPECT_NE(Status(counts)["experts"], before);
}

TEST_F(ClosedStreamsTest, DaemonsWork) {
  constexpr char kClosed[] = "exec \"$@\" <&- >&- 2>&-";
  const std::string port_file = File("port");
  const auto coordinator =
      Start("/bin/sh",
            {"-c", kClosed, "sh", RINGFLEET_COORDINATOR_BINARY, "--model",
             Model(), "--listen", "127.0.0.1:0", "--port-file", port_file});
  ASSERT_TRUE(
      WaitUntil(10, [&] { return std::filesystem::exists(port_file); }));
  const std::string port =
      std::to_string(std::stoi(testing::ReadFile(port_file)));
  const auto worker =
      Start("/bin/sh", {"-c", kClosed, "sh", RINGFLEET_WORKER_BINARY, "--rank",
                        "0", "--listen", "127.0.0.1:0", "--coordinator",
                        "127.0.0.1:" + port, "--threads", "1"});
  testing::WriteFile(cluster(), "name: ringfleet\nmodel: " + Model() +
                                    "\ncoordinator: {port: " + port +
                                    "}\nworkers:\n  - {port: 0}\n");
  EXPECT_EQ(WaitForState("ready")["state"], "ready");
  for (Process* const process : {coordinator.get(), worker.get()}) {
    process->Signal(SIGPIPE);
  }
  const Finished finished =
      Cli({"generate", "--cluster", cluster(), "-p", "x", "-n", "2", "--json"});
  EXPECT_EQ(finished.code, 0) << finished.errors;
  for (Process* const process : {worker.get(), coordinator.get()}) {
    process->Signal(SIGTERM);
    EXPECT_EQ(process->Wait(10), 0);
  }
}

}  // namespace
}  // namespace ringfleet::integration
