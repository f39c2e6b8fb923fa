// SPDX-License-Identifier: Apache-2.0
// Batches and detached jobs over the deaths of coordinators and workers.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/http_client.h"

namespace ringfleet::integration {
namespace {

using Clock = std::chrono::steady_clock;
using ::testing::EndsWith;

// Lines of a text, each a document.
std::vector<json> LinesOf(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(json::parse(line, nullptr, false));
  }
  return lines;
}

// The part of a result that another run must repeat.
json Repeatable(const json& line) {
  const json& body = line["response"]["body"];
  return {{"custom_id", line["custom_id"]},
          {"status", line["response"]["status_code"]},
          {"text", body["choices"][0]["text"]},
          {"reason", body["choices"][0]["finish_reason"]},
          {"error", line["error"]}};
}

class BatchFleetTest : public HandFleet {
 protected:
  // Starts a coordinator with the store in the folder `state`.
  void StartOn(const std::string& state) {
    ASSERT_NO_FATAL_FAILURE(StartCoordinator(
        2,
        {"--dtype", "f32", "--wire", "f32", "--parallel", "16", "--state-dir",
         File(state), "--http", "127.0.0.1:" + std::to_string(http_port_)},
        {}, port()));
  }
  void StopCoordinator() {
    coordinator_->Signal(SIGTERM);
    EXPECT_EQ(Finish(*coordinator_).code, 0);
  }

  // Writes lines that are greedy, that have a seed, or that get one, with
  // answers of up to `most_tokens`.
  std::string WriteLines(int count, int most_tokens) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      json body = {{"prompt", "line " + std::to_string(i % 7) + " of " +
                                  std::to_string(i)},
                   {"max_tokens", 1 + i * 7 % most_tokens},
                   {"ignore_eos", true}};
      if (i % 3 > 0) body["temperature"] = 0.8;
      if (i % 3 == 1) body["seed"] = i;
      text += json({{"custom_id", "id-" + std::to_string(i)},
                    {"method", "POST"},
                    {"url", "/v1/completions"},
                    {"body", body}})
                  .dump() +
              "\n";
    }
    testing::WriteFile(File("lines.jsonl"), text);
    return File("lines.jsonl");
  }

  std::string Submit(const std::string& file, Arguments more = {}) {
    Arguments arguments = {"submit", "--cluster", cluster(), file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = Cli(arguments);
    EXPECT_EQ(finished.code, 0) << finished.errors;
    return finished.code == 0 ? finished.document()["id"].get<std::string>()
                              : "";
  }
  std::vector<json> Outputs(const std::string& id, double seconds = 120) {
    const Finished finished =
        Cli({"show", id, "--cluster", cluster(), "--output", "--follow"},
            {.seconds = seconds});
    EXPECT_EQ(finished.code, 0) << finished.errors;
    return LinesOf(finished.output);
  }

  const int http_port_ = testing::FreePort();
};

// Clients that ask for short answers while everything else goes on.
class ShortAnswers {
 public:
  ShortAnswers(int port, int clients) : port_(port) {
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, i] { Run(i); });
    }
  }
  ~ShortAnswers() { End(); }
  void End() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  struct Failure {
    Clock::time_point from, to;
    std::string what;
  };
  std::vector<Failure> failures() {
    std::lock_guard<std::mutex> lock(mu_);
    return failures_;
  }
  int answered() const { return answered_; }

  // Returns nothing if nobody listens.
  static std::optional<testing::HttpReply> Call(int port, const char* method,
                                                const std::string& path,
                                                const std::string& body) {
    testing::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit = {.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
      return std::nullopt;
    }
    return testing::HttpClient(std::move(socket)).Call(method, path, body);
  }

 private:
  void Run(int client) {
    const std::string body =
        json({{"prompt", "client " + std::to_string(client)},
              {"max_tokens", 6},
              {"temperature", 0},
              {"ignore_eos", true}})
            .dump();
    std::string first;
    while (!stop_) {
      const auto from = Clock::now();
      const auto reply = Call(port_, "POST", "/v1/completions", body);
      const std::string text =
          reply.has_value() && reply->status == 200
              ? json::parse(reply->body)["choices"][0]["text"]
                    .get<std::string>()
              : "";
      const bool good = reply.has_value() && reply->status == 200;
      if (good && first.empty()) first = text;
      if (good && text == first) {
        ++answered_;
      } else {
        std::lock_guard<std::mutex> lock(mu_);
        failures_.push_back({from, Clock::now(),
                             !reply.has_value()
                                 ? "refused"
                                 : std::to_string(reply->status) + " " +
                                       reply->body + " not " + first});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  const int port_;
  std::atomic<bool> stop_{false};
  std::atomic<int> answered_{0};
  std::mutex mu_;
  std::vector<Failure> failures_;
  std::vector<std::thread> threads_;
};

constexpr double kLongestCalm = 3;  // Seconds.

struct Chaos {
  int rounds;
  int lines;
  int tokens;  // Most of a line.
  int clients;
  int coordinator_kills;
  int worker_kills;
  double full_disk_seconds;  // In the first round; a second in the others.
  bool soak;                 // RINGFLEET_SOAK_MINUTES may end it earlier.
};

class BatchChaosTest : public BatchFleetTest,
                       public ::testing::WithParamInterface<Chaos> {
 protected:
  void SetLimit(rlim_t bytes) {
    rlimit limit;
    ASSERT_EQ(prlimit(coordinator_->pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
    limit.rlim_cur = std::min(bytes, limit.rlim_max);
    ASSERT_EQ(prlimit(coordinator_->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  }
  // Kills the coordinator and starts it again.
  void RestartCoordinator() {
    const auto from = Clock::now();
    coordinator_->Signal(SIGKILL);
    coordinator_->Wait(5);
    ASSERT_NO_FATAL_FAILURE(StartOn("wild"));
    ASSERT_TRUE(WaitUntil(60, [this] {
      const auto reply = ShortAnswers::Call(http_port_, "GET", "/ready", "");
      return reply.has_value() && reply->status == 200;
    })) << coordinator_->errors();
    away_.emplace_back(from, Clock::now());
  }
  void RestartWorker(int rank) {
    workers_[rank]->Signal(SIGKILL);
    workers_[rank]->Wait(5);
    StartWorker(rank);
  }

  // Times in which the coordinator's death cuts requests.
  std::vector<std::pair<Clock::time_point, Clock::time_point>> away_;
};

// Each line has one result, equal to that of an undisturbed run with the same
// seeds, and nobody else's request fails but through the coordinator's death.
TEST_P(BatchChaosTest, EveryLineHasOneResult) {
  const Chaos& chaos = GetParam();
  const char* const given = std::getenv("RINGFLEET_SOAK_SEED");
  const auto seed =
      static_cast<uint32_t>(given != nullptr ? std::strtoul(given, nullptr, 10)
                                             : std::random_device()());
  std::fprintf(stderr, "RINGFLEET_SOAK_SEED=%u\n", seed);
  std::mt19937 random(seed);
  // Without workers the lines get their seeds and do not run.
  ASSERT_NO_FATAL_FAILURE(StartOn("calm"));
  const std::string id = Submit(WriteLines(chaos.lines, chaos.tokens));
  ASSERT_NE(id, "");
  StopCoordinator();
  std::filesystem::copy(File("calm"), File("kept"),
                        std::filesystem::copy_options::recursive);
  ASSERT_NO_FATAL_FAILURE(StartOn("calm"));
  for (const int rank : {0, 1}) StartWorker(rank);
  std::vector<json> right;
  const double limit = chaos.soak ? 1200 : 240;  // Seconds of all lines.
  for (const json& line : Outputs(id, limit)) right.push_back(Repeatable(line));
  ASSERT_EQ(right.size(), static_cast<size_t>(chaos.lines));
  for (int i = 0; i < chaos.lines; ++i) {
    ASSERT_EQ(right[i]["custom_id"], "id-" + std::to_string(i));
    ASSERT_EQ(right[i]["status"], 200) << right[i];
  }
  StopCoordinator();
  const char* const minutes = std::getenv("RINGFLEET_SOAK_MINUTES");
  const auto end =
      Clock::now() + std::chrono::duration<double>(
                         60 * std::atof(minutes == nullptr ? "1" : minutes));
  int done = 0;
  for (int round = 0; round < chaos.rounds && !HasFailure(); ++round, ++done) {
    if (chaos.soak && round > 0 && Clock::now() > end) break;
    std::filesystem::remove_all(File("wild"));
    std::filesystem::copy(File("kept"), File("wild"),
                          std::filesystem::copy_options::recursive);
    ASSERT_NO_FATAL_FAILURE(StartOn("wild"));
    ASSERT_EQ(WaitForState("ready")["state"], "ready")
        << coordinator_->errors();
    away_.clear();
    ShortAnswers crowd(http_port_, chaos.clients);
    const auto follower =
        StartCli({"show", id, "--cluster", cluster(), "--output", "--follow"});
    // A command does not wait for a coordinator that it has never met.
    ASSERT_TRUE(WaitUntil(limit, [&] { return !follower->output().empty(); }))
        << follower->errors();
    std::vector<int> events;  // -1: the coordinator, -2: the disk.
    events.insert(events.end(), chaos.coordinator_kills, -1);
    for (int i = 0; i < chaos.worker_kills; ++i) events.push_back(i % 2);
    events.push_back(-2);
    std::shuffle(events.begin(), events.end(), random);
    // They come from the first line to the last, and also where none ends.
    std::vector<int> places;
    for (size_t i = 0; i < events.size(); ++i) {
      places.push_back(
          std::uniform_int_distribution<int>(0, chaos.lines * 9 / 10)(random));
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < events.size(); ++i) {
      const int event = events[i];
      WaitUntil(kLongestCalm, [&] {
        const std::string seen = follower->output();
        return std::count(seen.begin(), seen.end(), '\n') >= places[i];
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(
          std::uniform_int_distribution<int>(50, 500)(random)));
      if (event == -1) {
        ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
      } else if (event >= 0) {
        RestartWorker(event);
      } else {
        ASSERT_NO_FATAL_FAILURE(SetLimit(1));
        std::this_thread::sleep_for(std::chrono::duration<double>(
            round == 0 ? chaos.full_disk_seconds : 1.0));
        ASSERT_NO_FATAL_FAILURE(SetLimit(RLIM_INFINITY));
      }
    }
    // The kills came while lines ran.
    const Finished state = Cli({"show", id, "--cluster", cluster(), "--json"});
    if (state.code == 0) {
      std::fprintf(stderr, "after the faults: %s of %d lines\n",
                   state.document()["completed"].dump().c_str(), chaos.lines);
    }
    const Finished followed = Finish(*follower, limit);
    crowd.End();
    EXPECT_EQ(followed.code, 0) << followed.errors;
    std::vector<json> results;
    for (const json& line : LinesOf(followed.output)) {
      results.push_back(Repeatable(line));
    }
    EXPECT_EQ(results, right) << coordinator_->errors();
    const Finished failed =
        Cli({"show", id, "--cluster", cluster(), "--errors"});
    EXPECT_EQ(failed.code, 0) << failed.errors;
    EXPECT_EQ(failed.output, "");
    EXPECT_GT(crowd.answered(), 0);
    for (const ShortAnswers::Failure& failure : crowd.failures()) {
      bool cut = false;
      for (const auto& [from, to] : away_) {
        cut |= failure.from <= to && failure.to >= from;
      }
      EXPECT_TRUE(cut) << failure.what;
    }
    StopCoordinator();
  }
  RecordProperty("rounds", done);
}

INSTANTIATE_TEST_SUITE_P(Rounds, BatchChaosTest,
                         ::testing::Values(kSanitized
                                               ? Chaos{.rounds = 1,
                                                       .lines = 15,
                                                       .tokens = 10,
                                                       .clients = 3,
                                                       .coordinator_kills = 1,
                                                       .worker_kills = 1,
                                                       .full_disk_seconds = 1,
                                                       .soak = false}
                                               : Chaos{.rounds = 2,
                                                       .lines = 60,
                                                       .tokens = 40,
                                                       .clients = 8,
                                                       .coordinator_kills = 2,
                                                       .worker_kills = 3,
                                                       .full_disk_seconds = 1,
                                                       .soak = false}),
                         [](const auto&) { return "Few"; });
INSTANTIATE_TEST_SUITE_P(Soak, BatchChaosTest,
                         ::testing::Values(Chaos{.rounds = 100,
                                                 .lines = 400,
                                                 .tokens = 24,
                                                 .clients = 8,
                                                 .coordinator_kills = 5,
                                                 .worker_kills = 10,
                                                 .full_disk_seconds = 60,
                                                 .soak = true}),
                         [](const auto&) { return "Full"; });

TEST_F(BatchFleetTest, AFollowerMeetsTheNextCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  for (const int rank : {0, 1}) StartWorker(rank);
  const std::string id = Submit(WriteLines(40, 10));
  const auto follower =
      StartCli({"show", id, "--cluster", cluster(), "--output", "--follow"});
  ASSERT_TRUE(WaitUntil(60, [&] { return !follower->output().empty(); }))
      << follower->errors();
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(5);
  // Several tries find nobody.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  const Finished followed = Finish(*follower, 120);
  EXPECT_EQ(followed.code, 0) << followed.errors;
  EXPECT_EQ(LinesOf(followed.output).size(), 40);
}

TEST_F(BatchFleetTest, LinesWithErrorsAreNamedAndNothingRuns) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  testing::WriteFile(File("bad.jsonl"),
                     "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"top_p\": 2}\n"
                     "nonsense\n");
  const Finished refused =
      Cli({"submit", "--cluster", cluster(), File("bad.jsonl")});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.output, "");
  EXPECT_THAT(refused.errors, HasSubstr("bad.jsonl:2: top_p: "));
  EXPECT_THAT(refused.errors, HasSubstr("bad.jsonl:3: "));
  EXPECT_THAT(refused.errors, HasSubstr("2 lines have errors"));
  const Finished documented =
      Cli({"submit", "--cluster", cluster(), File("bad.jsonl"), "--json"});
  const json error = documented.document()["error"];
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("2 lines have errors, nothing was run"));
  const Finished listed = Cli({"show", error["id"].get<std::string>(),
                               "--cluster", cluster(), "--errors"});
  EXPECT_EQ(LinesOf(listed.output).size(), 2) << listed.errors;
  testing::WriteFile(File("empty.jsonl"), "\n");
  EXPECT_THAT(
      Cli({"submit", "--cluster", cluster(), File("empty.jsonl")}).error_line(),
      EndsWith("empty.jsonl: no line, want at least one"));
  std::string many;
  for (int i = 0; i < 120; ++i) many += "{\"\\u001b\\n\"\n";
  testing::WriteFile(File("many.jsonl"), many);
  EXPECT_THAT(
      Cli({"submit", "--cluster", cluster(), File("many.jsonl")}).errors,
      EndsWith("100 lines have errors, and the rest was not checked, nothing "
               "was run\n"));
  const Finished missing =
      Cli({"submit", "--cluster", cluster(), File("none.jsonl")});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.error_line(), HasSubstr("none.jsonl"));
  const Finished both = Cli(
      {"submit", "--cluster", cluster(), File("bad.jsonl"), "--temp", "0.5"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.errors, HasSubstr("--temp"));
}

TEST_F(BatchFleetTest, OptionsThatMeanNothingAreNamed) {
  const std::string file = WriteLines(1, 1);
  const auto expect = [this](Arguments arguments, const std::string& error) {
    arguments.insert(arguments.begin(), {"submit", "--coordinator", "a:1"});
    const Finished refused = Cli(arguments);
    EXPECT_EQ(refused.code, 2) << refused.output;
    EXPECT_EQ(refused.error_line().substr(0, error.size()), error);
  };
  for (const char* const option : {"--name", "--key", "--endpoint"}) {
    const std::string name = option;
    expect({"-p", "a", name, "x"},
           "usage: " + name + " without FILE, want a file of lines");
    expect({file, name, "\xff"}, "usage: " + name + ": '\\xff': text is not");
  }
  expect({"-p", "a", "-o", File("out")}, "usage: --output without FILE");
  expect({"-p", "a", "--follow"}, "usage: --follow without FILE");
  expect({file, "-p", "a"},
         "usage: --prompt beside " + file + ", want one of them");
  expect({file, "--detach"},
         "usage: --detach beside " + file + ", a batch is always detached");
  expect({file, "--trace", File("trace")},
         "usage: --trace beside " + file + ", want it beside a prompt");
  expect({file, "--top-k", "3"},
         "usage: --top-k beside " + file + ", want it in the lines themselves");
  for (const std::string priority : {"0", "-1"}) {
    expect({file, "--priority", priority}, "usage: --priority " + priority +
                                               " beside " + file +
                                               ", want at least 1");
  }
  for (const char* const verb : {"show", "cancel"}) {
    const Finished refused = Cli({verb, "\xff", "--coordinator", "a:1"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.error_line(), HasSubstr("usage: ID: '\\xff': text is"));
  }
}

TEST_F(BatchFleetTest, ATimeoutEndsABatch) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  const std::string lines = WriteLines(2, 2);
  const std::string late = Submit(lines, {"--timeout", "1h"});
  const Finished waiting = Cli({"show", late, "--cluster", cluster()});
  EXPECT_THAT(waiting.output, HasSubstr("\nexpires in 59m"));
  // A name that no protobuf string may have.
  const std::string file = File("\xff.jsonl");
  std::filesystem::copy_file(lines, file);
  const std::string id = Submit(file, {"--timeout", "1s"});
  const Finished followed =
      Cli({"show", id, "--cluster", cluster(), "--follow", "--json"});
  EXPECT_EQ(followed.code, 3);
  EXPECT_THAT(followed.errors, HasSubstr("ringfleet: the batch has expired"));
  const json shown = followed.document();
  EXPECT_EQ(shown["state"], "expired");
  EXPECT_EQ(shown["failed"], 2);
  EXPECT_EQ(shown["expires"].get<int64_t>() - shown["created"].get<int64_t>(),
            1);
}

TEST_F(BatchFleetTest, JobsAndShowKnowBatches) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  const std::string file = WriteLines(5, 4);
  const std::string id = Submit(file, {"--name", "night", "--key", "k1"});
  EXPECT_EQ(Submit(file, {"--name", "night", "--key", "k1"}), id);
  const Finished listed = Cli({"jobs", "--cluster", cluster(), "--json"});
  ASSERT_EQ(listed.code, 0) << listed.errors;
  ASSERT_EQ(listed.document().size(), 1);
  const json job = listed.document()[0];
  EXPECT_EQ(job["id"], id);
  EXPECT_EQ(job["name"], "night");
  EXPECT_EQ(job["kind"], "batch");
  EXPECT_EQ(job["state"], "in_progress");
  EXPECT_EQ(job["total"], 5);
  const std::string wild =
      Submit(file, {"--name", "a\x1b[2J\nb", "--priority", "1"});
  for (const Arguments& verb : {Arguments{"jobs"}, Arguments{"show", wild}}) {
    Arguments arguments = verb;
    arguments.insert(arguments.end(), {"--cluster", cluster()});
    const Finished shown = Cli(arguments);
    EXPECT_THAT(shown.output, HasSubstr("a [2J b: in_progress"))
        << shown.errors;
  }
  const Finished cancelled = Cli({"cancel", id, "--cluster", cluster()});
  EXPECT_EQ(cancelled.code, 0) << cancelled.errors;
  const Finished followed =
      Cli({"show", id, "--cluster", cluster(), "--follow", "--json"});
  EXPECT_EQ(followed.document()["state"], "cancelled") << followed.errors;
  EXPECT_THAT(Cli({"jobs", "--cluster", cluster()}).output,
              HasSubstr("night: 0 of 5 lines completed, the batch was "));
  const Finished errors = Cli({"show", id, "--cluster", cluster(), "--errors"});
  EXPECT_EQ(errors.code, 0) << errors.errors;
  EXPECT_EQ(LinesOf(errors.output).size(), 5);
  // Its results stay.
  EXPECT_EQ(Cli({"cancel", id, "--cluster", cluster()}).code, 3);
  EXPECT_EQ(Cli({"show", id, "--cluster", cluster()}).code, 0);
  EXPECT_EQ(Cli({"show", "batch_0", "--cluster", cluster()}).code, 2);
}

TEST_F(BatchFleetTest, ResultsInAFileLeaveADocumentOnStdout) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  for (const int rank : {0, 1}) StartWorker(rank);
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  const Finished finished =
      Cli({"submit", "--cluster", cluster(), WriteLines(2, 2), "-o",
           File("results.jsonl"), "--json"});
  ASSERT_EQ(finished.code, 0) << finished.errors;
  const json document = finished.document();
  EXPECT_EQ(document["state"], "completed");
  EXPECT_EQ(document["total"], 2);
  EXPECT_EQ(document.size(), 3);
  EXPECT_EQ(LinesOf(testing::ReadFile(File("results.jsonl"))).size(), 2);
  testing::Process piped(
      {.command = {"/bin/sh", "-c",
                   "\"$0\" submit --cluster \"$1\" - -o - <\"$2\"",
                   RINGFLEET_BINARY, cluster(), WriteLines(3, 2)},
       .folder = File(""),
       .capture = File("piped")});
  EXPECT_EQ(piped.Wait(60), 0) << piped.errors();
  EXPECT_EQ(LinesOf(piped.output()).size(), 3);
  EXPECT_FALSE(std::filesystem::exists(File("-")));
  // More of the input never comes.
  const auto files = [this] {
    const std::filesystem::directory_iterator begin(File("store/files"));
    return std::distance(begin, std::filesystem::directory_iterator());
  };
  const auto before = files();
  testing::Process endless(
      {.command = {RINGFLEET_BINARY, "submit", "--cluster", cluster(), "-"},
       .capture = File("endless"),
       .input = true});
  endless.Write("{\"prompt\": \"a\"}\n");
  EXPECT_TRUE(testing::WaitUntil(30, [&] { return files() > before; }));
  endless.Signal(SIGINT);
  EXPECT_EQ(endless.Wait(20), 130) << endless.errors();
  EXPECT_THAT(endless.errors(), HasSubstr("interrupted"));
  EXPECT_TRUE(testing::WaitUntil(30, [&] { return files() == before; }));
}

TEST_F(BatchFleetTest, SubmissionsThatHaveNoMeaningAreRefused) {
  const std::string lines = WriteLines(2, 2);
  const std::string before = testing::ReadFile(lines);
  std::filesystem::create_symlink(lines, File("link"));
  const auto refused = [this](Arguments arguments) {
    arguments.insert(arguments.end(), {"--cluster", cluster()});
    const Finished finished = Cli(arguments);
    EXPECT_EQ(finished.code, 2) << finished.errors;
    return finished.error_line();
  };
  for (const std::string& output : {lines, File("link")}) {
    EXPECT_THAT(refused({"submit", lines, "-o", output}),
                HasSubstr("is FILE itself, want another file"));
  }
  EXPECT_EQ(testing::ReadFile(lines), before);
  EXPECT_THAT(refused({"submit"}), HasSubstr("or a FILE of them"));
  EXPECT_THAT(refused({"show", "batch_0", "--unordered"}),
              HasSubstr("want one of them"));
}

// A detached job goes on with the tokens that it had.
TEST_F(BatchFleetTest, ADetachedJobOutlivesTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  for (const int rank : {0, 1}) StartWorker(rank);
  ASSERT_EQ(WaitForState("ready")["state"], "ready") << coordinator_->errors();
  const Arguments prompt = {
      "-p",  "once upon a time", "-n", "300",         "--temp",
      "0.9", "--seed",           "7",  "--ignore-eos"};
  Arguments submit = {"submit", "--cluster", cluster(), "--json"};
  submit.insert(submit.end(), prompt.begin(), prompt.end());
  const Finished right = Cli(submit);
  ASSERT_EQ(right.code, 0) << right.errors;
  submit.back() = "--ignore-eos";
  submit.push_back("--detach");
  const Finished detached = Cli(submit);
  ASSERT_EQ(detached.code, 0) << detached.errors;
  const std::string id = detached.document()["id"];
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait(5);
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  const Finished followed =
      Cli({"show", id, "--cluster", cluster(), "--follow"}, {.seconds = 60});
  EXPECT_EQ(followed.code, 0) << followed.errors;
  const Finished shown = Cli({"show", id, "--cluster", cluster(), "--output"});
  ASSERT_EQ(shown.code, 0) << shown.errors;
  EXPECT_EQ(shown.document()["ids"], right.document()["ids"]);
  EXPECT_EQ(shown.document()["text"], right.document()["text"]);
  // An ended job is shown after another restart, too.
  StopCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  const Finished again = Cli({"show", id, "--cluster", cluster(), "--output"});
  ASSERT_EQ(again.code, 0) << again.errors;
  EXPECT_EQ(again.document()["ids"], right.document()["ids"]);
}

// Batches stop with the store, and whoever asks or waits is told.
TEST_F(BatchFleetTest, ALostStoreIsTold) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  const std::string id = Submit(WriteLines(5, 4));
  const auto follower =
      StartCli({"show", id, "--cluster", cluster(), "--output", "--follow"});
  testing::WriteFile(File("other"), "someone's");
  std::filesystem::rename(File("other"), File("store/state.db"));
  for (const int rank : {0, 1}) StartWorker(rank);
  const Finished followed = Finish(*follower, 60);
  EXPECT_EQ(followed.code, 4) << followed.errors;
  EXPECT_THAT(followed.error_line(), HasSubstr("another file took its place"));
  const Finished status = Cli({"status", "--cluster", cluster()});
  EXPECT_THAT(status.output, HasSubstr("batches pause: "));
  EXPECT_EQ(testing::ReadFile(File("store/state.db")), "someone's");
}

TEST_F(BatchFleetTest, WhyThereIsNoStoreIsTold) {
  testing::WriteFile(File("state"), "The default folder cannot be made.");
  testing::WriteFile(cluster(), "model: " + Model() + "\ncoordinator: {port: " +
                                    std::to_string(testing::FreePort()) +
                                    "}\nworkers:\n  - {port: 0}\n");
  coordinator_ = Start(RINGFLEET_COORDINATOR_BINARY,
                       {"--cluster", cluster(), "--port-file", File("port")});
  ASSERT_TRUE(WaitUntil(30, [&] {
    return std::filesystem::exists(File("port"));
  })) << coordinator_->errors();
  const Finished submitted =
      Cli({"submit", "--cluster", cluster(), WriteLines(2, 4)});
  EXPECT_EQ(submitted.code, 3) << submitted.errors;
  EXPECT_THAT(submitted.error_line(), HasSubstr(File("state")));
  const Finished status = Cli({"status", "--cluster", cluster()});
  EXPECT_THAT(status.output, HasSubstr("batches pause: " + File("state")));
}

TEST_F(BatchFleetTest, ASecondCoordinatorOnTheStoreIsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartOn("store"));
  const Finished second = Run(RINGFLEET_COORDINATOR_BINARY,
                              {"--model", Model(), "--world", "1", "--listen",
                               "127.0.0.1:0", "--state-dir", File("store")});
  EXPECT_EQ(second.code, 1) << second.errors;
  EXPECT_THAT(second.errors, HasSubstr("in use by fleet ringfleet, process"));
}

}  // namespace
}  // namespace ringfleet::integration
