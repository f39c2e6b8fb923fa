// SPDX-License-Identifier: Apache-2.0
// `--trace` with real workers, and `perf/overlap`, which draws it.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

struct Span {
  double begin = 0;
  double end = 0;
};

// Complete events of a trace, of one rank and thread, whose `key` is one of
// `values`.
std::vector<Span> SpansWith(const json& trace, int rank, int thread,
                            const char* key,
                            const std::vector<std::string>& values) {
  std::vector<Span> spans;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != rank || event["tid"] != thread ||
        std::count(values.begin(), values.end(),
                   event[key].get<std::string>()) == 0) {
      continue;
    }
    const double begin = event["ts"];
    spans.push_back({begin, begin + event["dur"].get<double>()});
  }
  return spans;
}

// Of some kinds.
std::vector<Span> SpansOf(const json& trace, int rank, int thread,
                          const std::vector<std::string>& kinds) {
  return SpansWith(trace, rank, thread, "cat", kinds);
}

// Of what the executor does.
std::vector<Span> SpansNamed(const json& trace, int rank,
                             const std::vector<std::string>& names) {
  return SpansWith(trace, rank, /*thread=*/1, "name", names);
}

double Total(const std::vector<Span>& spans) {
  double total = 0;
  for (const Span& span : spans) total += span.end - span.begin;
  return total;
}

// Times are rounded to a nanosecond, which double precision keeps to a part of
// one.
constexpr double kRounding = 0.0015;

int CountWithin(const Span& around, const std::vector<Span>& spans) {
  return static_cast<int>(
      std::count_if(spans.begin(), spans.end(), [&](const Span& span) {
        return span.begin >= around.begin - kRounding &&
               span.end <= around.end + kRounding;
      }));
}

// Expects that any two lie within each other or apart.
void ExpectNested(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Span> around;
  for (const Span& span : spans) {
    ASSERT_LE(span.begin, span.end);
    while (!around.empty() && around.back().end <= span.begin + kRounding) {
      around.pop_back();
    }
    if (!around.empty()) {
      ASSERT_LE(span.end, around.back().end + kRounding);
    }
    around.push_back(span);
  }
}

// What holds for the trace of any command that ran steps on `world` ranks.
void ExpectTrace(const json& trace, int world) {
  const std::vector<std::string> all = {
      "step", "layer", "compute", "collective", "send", "receive", "wait"};
  EXPECT_EQ(trace["displayTimeUnit"], "ms");
  for (const json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event["ph"] == "X" || event["ph"] == "M") << event;
    ASSERT_TRUE(event["name"].is_string() && event["pid"].is_number() &&
                event["tid"].is_number())
        << event;
  }
  ASSERT_EQ(trace["otherData"]["ranks"].size(), static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    const json& about = trace["otherData"]["ranks"][rank];
    EXPECT_EQ(about["rank"], rank);
    EXPECT_EQ(about["dropped"], 0);
    EXPECT_GT(about["events"], 0);
    // One machine has one steady clock.
    for (const char* when : {"clock_began", "clock_ended"}) {
      EXPECT_GT(about[when]["error_us"], 0);
      EXPECT_LE(std::abs(about[when]["offset_us"].get<double>()),
                about[when]["error_us"].get<double>());
    }
    ExpectNested(SpansOf(trace, rank, 1, all));
    const double steps = Total(SpansOf(trace, rank, 1, {"step"}));
    const double layers = Total(SpansOf(trace, rank, 1, {"layer"}));
    const std::vector<Span> operations =
        SpansOf(trace, rank, 1, {"collective"});
    const double waits = Total(SpansOf(trace, rank, 1, {"wait"}));
    EXPECT_GT(layers, 0);
    EXPECT_LT(layers, steps);
    EXPECT_LT(Total(operations), steps);
    // For frames inside of an operation, for rows beside one.
    EXPECT_LT(waits, steps);
    if (world > 1) {
      EXPECT_GT(waits, 0);
      EXPECT_FALSE(SpansOf(trace, rank, 1, {"send"}).empty());
      EXPECT_FALSE(SpansOf(trace, rank, 1, {"receive"}).empty());
    }
    // What a layer does is in the trace, however long the machine lets it wait
    // between two parts; all its exchanges may run beside products.
    const std::vector<Span> beside = SpansOf(trace, rank, 2, {"collective"});
    for (const Span& layer : SpansOf(trace, rank, 1, {"layer"})) {
      EXPECT_GE(CountWithin(layer, SpansNamed(trace, rank, {"attention"})), 1);
      EXPECT_GE(
          CountWithin(layer, SpansNamed(trace, rank, {"dense MLP", "experts"})),
          1);
      if (world > 1) {
        EXPECT_GT(CountWithin(layer, operations) + CountWithin(layer, beside),
                  0);
      }
    }
  }
}

class TraceTest : public HandFleet {
 protected:
  // Enough for three ranks to share it out by tokens.
  static std::string LongPrompt() {
    json ids = json::array();
    for (int id = 0; id < 100; ++id) ids.push_back(id);
    return JoinIds(ids);
  }
  std::string trace() const { return File("trace.json"); }
  json Trace() const { return json::parse(testing::ReadFile(trace())); }
};

TEST_F(TraceTest, ALocalPromptShowsEveryRank) {
  const Finished finished =
      Cli({"generate", "--model", Model(), "--local", "3", "-t", "1", "-n", "4",
           "--prompt-ids", LongPrompt(), "--temp", "0", "--ignore-eos",
           "--trace", trace(), "--json"},
          {.seconds = 60});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  EXPECT_EQ(finished.document()["ids"].size(), 4u);
  EXPECT_THAT(finished.errors, HasSubstr(" trace events are in " + trace()));
  ExpectTrace(Trace(), 3);
}

TEST_F(TraceTest, ARunningFleetIsTracedAgainAndAgain) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(2));
  WaitForState("ready");
  for (const Arguments& command :
       {Arguments{"submit", "--prompt-ids", "1,2,3", "-n", "3"},
        Arguments{"score", "--ids", "1,2,3,4"},
        Arguments{"bench", "-p", "8", "-n", "2", "-r", "1",
                  "--no-memory-test"}}) {
    Arguments arguments = command;
    for (const std::string& more : {std::string("--cluster"), cluster(),
                                    std::string("--trace"), trace()}) {
      arguments.push_back(more);
    }
    const Finished finished = Cli(arguments);
    ASSERT_EQ(finished.code, 0) << finished.errors;
    ExpectTrace(Trace(), 2);
    std::filesystem::remove(trace());
  }
}

TEST_F(TraceTest, AFileThatCannotBeWrittenEndsTheCommandFirst) {
  const Finished finished =
      Cli({"generate", "--model", Model(), "-p", "x", "-n", "1", "--trace",
           File("none/trace.json"), "--json"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.error_line(),
              StartsWith(absl::StrCat("usage: --trace ",
                                      File("none/trace.json"), ": cannot")));
}

// What was computed is not lost with the trace of it.
TEST_F(TraceTest, ATraceOnAFullDiskComesAfterTheResult) {
  const std::string error =
      "trace: /dev/full: cannot be written: No space left on device";
  const Arguments where = {"--model", Model(), "--trace", "/dev/full"};
  const auto run = [&](Arguments arguments) {
    arguments.insert(arguments.end(), where.begin(), where.end());
    const Finished finished = Cli(arguments);
    EXPECT_EQ(finished.code, 1) << finished.errors;
    EXPECT_THAT(finished.errors, EndsWith("ringfleet: " + error + "\n"));
    return finished;
  };
  const Finished generated =
      run({"generate", "--prompt-ids", "1,2,3", "-n", "3", "--temp", "0",
           "--ignore-eos", "--json"});
  EXPECT_EQ(generated.document()["ids"].size(), 3u);
  EXPECT_EQ(generated.error_line(), error);
  const Finished text = run({"generate", "--prompt-ids", "1,2,3", "-n", "3",
                             "--temp", "0", "--ignore-eos"});
  EXPECT_EQ(text.output,
            generated.document()["text"].get<std::string>() + "\n");
  EXPECT_THAT(text.errors, HasSubstr(" tokens/s | "));
  const Finished scored = run({"score", "--ids", "1,2,3,4", "--json"});
  EXPECT_EQ(scored.document()["logprobs"].size(), 3u);
  EXPECT_EQ(scored.error_line(), error);
  EXPECT_THAT(run({"score", "--ids", "1,2,3,4"}).output,
              HasSubstr("3 tokens, "));
  const Finished measured = run({"bench", "-p", "8", "-n", "0", "-r", "1",
                                 "--no-memory-test", "-o", "json"});
  EXPECT_EQ(measured.document().size(), 1u);
  EXPECT_EQ(measured.error_line(), error);
}

// A link stays a link, a device a device, and what lies beside as it is.
TEST_F(TraceTest, ReplacesNothingButTheFile) {
  const std::string beside = trace() + ".part";
  testing::WriteFile(beside, "another's");
  std::filesystem::create_symlink(trace(), File("link"));
  std::filesystem::create_symlink("/dev/null", File("null"));
  for (const char* name : {"link", "null"}) {
    const Finished finished = Cli({"score", "--model", Model(), "--ids",
                                   "1,2,3,4", "--trace", File(name), "--json"});
    ASSERT_EQ(finished.code, 0) << finished.errors;
    EXPECT_TRUE(std::filesystem::is_symlink(File(name))) << name;
  }
  ExpectTrace(Trace(), 1);
  EXPECT_EQ(testing::ReadFile(beside), "another's");
}

TEST_F(TraceTest, ATraceOfSeveralFleetsIsRefused) {
  const Finished finished = Cli({"bench", "--model", Model(), "-t", "1,2",
                                 "--trace", trace(), "-o", "json"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_THAT(finished.error_line(), StartsWith("usage: --trace with 2"));
}

TEST_F(TraceTest, OverlapDrawsEachRank) {
  if (access("/usr/bin/python3", X_OK) != 0) {
    GTEST_SKIP() << "no /usr/bin/python3, which perf/overlap needs";
  }
  const Finished traced =
      Cli({"score", "--model", Model(), "--local", "2", "-t", "1", "--ids",
           LongPrompt(), "--trace", trace()},
          {.seconds = 60});
  ASSERT_EQ(traced.code, 0) << traced.errors;
  const std::string script = RINGFLEET_SOURCE_DIR "/perf/overlap";
  for (const char* step : {"longest", "all", "1"}) {
    const std::string svg = File("overlap.svg");
    const Finished drawn =
        Run("/usr/bin/python3", {script, trace(), svg, "--step", step});
    ASSERT_EQ(drawn.code, 0) << drawn.errors;
    EXPECT_EQ(drawn.errors, "");
    EXPECT_THAT(drawn.output, HasSubstr("\n| 0 | "));
    EXPECT_THAT(drawn.output, HasSubstr("\n| 1 | "));
    const std::string text = testing::ReadFile(svg);
    for (const char* what : {"rank 0", "rank 1", "computes", "sends", "waits",
                             "hidden: ", "executor"}) {
      EXPECT_THAT(text, HasSubstr(what));
    }
    const Finished parsed = Run(
        "/usr/bin/python3",
        {"-c", "import sys, xml.dom.minidom as d; d.parse(sys.argv[1])", svg});
    EXPECT_EQ(parsed.code, 0) << parsed.errors;
  }
  json gaps = Trace();
  gaps["otherData"]["ranks"][1]["dropped"] = 7;
  testing::WriteFile(File("gaps.json"), gaps.dump());
  const Finished warned =
      Run("/usr/bin/python3", {script, File("gaps.json"), File("x.svg")});
  EXPECT_EQ(warned.code, 0);
  EXPECT_THAT(warned.output, HasSubstr("\n| 1 | "));
  EXPECT_EQ(warned.errors,
            "overlap: warning: the trace had no room for 7 older events of "
            "rank 1: its times are incomplete\n");
  const Finished wrong =
      Run("/usr/bin/python3", {script, trace(), File("x.svg"), "--step", "99"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.errors, HasSubstr("no step 99"));
}

}  // namespace
}  // namespace ringfleet::integration
