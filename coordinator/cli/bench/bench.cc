// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/read_ahead.h"
#include "coordinator/cli/bench/bench_report.h"
#include "coordinator/cli/bench/bench_request.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr char kBenchFooter[] = R"(
Times prompts and generation as llama.cpp's llama-bench does, with its names and
keys, so that results can be compared. A list is 1,8,32, 1-8, 0-1024+512 or
1-8*2. Every combination is one test:
  pp512          evaluate a prompt of 512 tokens (-p)
  tg128          generate 128 tokens, one step each (-n)
  pp512+tg128    one after the other (-pg 512,128)
  ... @ d2048    with 2048 tokens in the cache before the clock starts (-d)
-np 8 runs a test for 8 sequences at once. Ids are random, equal in every run, and
follow a BOS. Generated ids are replaced by random ones; end tokens are ignored.
The clock starts when the first step goes to the workers and stops at the last
result. Steps take the same queues as requests.

Columns and keys beside llama-bench's:
  t/s              avg_ts: tokens of all sequences; +- is the deviation over -r
                   repetitions
  world            number of workers; size (model_size) is the sum of their
                   weights in memory
  bytes_per_token  weights and cached rows that all workers read from memory for
                   one token of a step; a matrix is read once a step for all its
                   tokens, and only chosen experts are read
  read_gbps        these bytes over time, GB/s of 1e9 bytes, mean over the hosts
  host_read_gbps   memory bandwidth of a host: its workers read 512 MiB or more
                   together for a second before and after each repetition; the
                   mean
  bandwidth_share  read_gbps / host_read_gbps, mean over repetitions: 1 is the
                   limit of generation, unless the model fits into a cache
n_batch and n_ubatch are the prompt tokens of one step. There is no build number,
and no column for GPUs and batching.

Examples:
  ringfleet bench --model tests/models/tiny-v3 -p 128 -n 32 -r 3
  ringfleet bench --model DIR --local 2 -p 512 -n 128 -d 0,2048 -np 1,8,32
  ringfleet bench --model DIR -p 0 -n 64 -t 1,2,4 -o csv
  RINGFLEET_ISA=avx2 ringfleet bench --model DIR
      workers held back to an instruction set (ringfleet-worker --isa)
  ringfleet bench --cluster cluster.yaml -np 1-4*2 -o json
      a running fleet that has nothing else to do; -np at most its slots
)";

struct BenchVerb {
  SessionOptions session;
  BenchOptions what;
  std::string format = "md";
  bool progress = false;
};

// Prints results as they come, but for JSON, whose one document comes at the
// end.
class Printer {
 public:
  explicit Printer(std::string format) : format_(std::move(format)) {}

  absl::Status Add(const BenchResult& result) {
    if (format_ == "json") {
      document_.push_back(BenchJson(result));
      return absl::OkStatus();
    }
    if (format_ == "jsonl") return PrintJson(BenchJson(result));
    const bool first = !std::exchange(begun_, true);
    const bool csv = format_ == "csv";
    if (first) {
      RF_RETURN_IF_ERROR(
          PrintText(csv ? BenchCsvHeader() : BenchTableHeader()));
    }
    return PrintText(csv ? BenchCsvLine(result) : BenchTableLine(result));
  }

  absl::Status Finish(const std::vector<v1::BenchProgress::Setup>& setups) {
    if (format_ == "json") return PrintJson(document_);
    if (format_ != "md") return absl::OkStatus();
    for (const v1::BenchProgress::Setup& setup : setups) {
      RF_RETURN_IF_ERROR(PrintText(BenchTableFooter(setup)));
    }
    return absl::OkStatus();
  }

 private:
  const std::string format_;
  bool begun_ = false;
  Json document_ = Json::array();
};

// Shows the running test: on a terminal in one line that changes, with
// --progress in lines that stay.
class BenchProgressLine {
 public:
  BenchProgressLine(const v1::BenchRequest& request, bool stays)
      : request_(request), stays_(stays) {}

  void Show(uint32_t test, uint32_t repetition) {
    const v1::BenchTest& shown = request_.tests(static_cast<int>(test));
    const std::string text = absl::StrFormat(
        "test %d of %d: %s, %d sequences, repetition %d of %d", test + 1,
        request_.tests_size(), BenchTestName(shown), shown.n_parallel(),
        repetition + 1, request_.repetitions());
    if (stays_) {
      std::fprintf(stderr, "%s\n", text.c_str());
    } else {
      line_.Phase(text);
    }
  }
  // The line must be gone before a result goes to the same terminal.
  void Clear() { line_.Phase(""); }

 private:
  const v1::BenchRequest& request_;
  const bool stays_;
  Progress line_;
};

// Checks what the coordinator has sent so far; an error ends the call.
absl::Status Take(const v1::BenchProgress& progress,
                  const v1::BenchRequest& request, BenchResult* result,
                  BenchProgressLine& line, Printer& printer) {
  switch (progress.event_case()) {
    case v1::BenchProgress::kSetup:
      result->setup = progress.setup();
      return absl::OkStatus();
    case v1::BenchProgress::kStarted: {
      const uint32_t test = progress.started().test();
      if (test >= static_cast<uint32_t>(request.tests_size())) break;
      result->test = request.tests(static_cast<int>(test));
      result->unix_ms = progress.started().unix_ms();
      result->samples.clear();
      line.Show(test, 0);
      return absl::OkStatus();
    }
    case v1::BenchProgress::kSample: {
      const v1::BenchProgress::Sample& sample = progress.sample();
      if (sample.test() >= static_cast<uint32_t>(request.tests_size())) break;
      result->samples.push_back(sample);
      const uint32_t done = static_cast<uint32_t>(result->samples.size());
      if (done < request.repetitions()) {
        line.Show(sample.test(), done);
        return absl::OkStatus();
      }
      line.Clear();
      return printer.Add(*result);
    }
    case v1::BenchProgress::EVENT_NOT_SET:
      return absl::OkStatus();
  }
  return absl::InternalError(
      "bench: the coordinator tells of a test that was "
      "not asked for");
}

absl::StatusOr<v1::BenchProgress::Setup> Measure(
    const v1::BenchRequest& request, bool progress_stays, Session& session,
    Printer& printer) {
  InterruptibleCall call;
  const std::unique_ptr<grpc::ClientReader<v1::BenchProgress>> reader =
      session.stub().Bench(call.context(), request);
  cluster::ReadAhead<v1::BenchProgress> events(reader.get());
  BenchProgressLine line(request, progress_stays);
  BenchResult result;
  absl::Status taken;
  v1::BenchProgress progress;
  while (events.Read(&progress)) {
    if (!taken.ok()) continue;
    taken = Take(progress, request, &result, line, printer);
    // The coordinator frees the slots of a caller who leaves.
    if (!taken.ok()) call.context()->TryCancel();
  }
  const absl::Status status = cluster::FromGrpc(reader->Finish());
  RF_RETURN_IF_ERROR(taken);
  RF_RETURN_IF_ERROR(status);
  return result.setup;
}

absl::Status Run(const BenchVerb& options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(const v1::BenchRequest request,
                      MakeBenchRequest(options.what));
  std::vector<uint32_t> threads = {0};
  if (!options.what.threads.empty()) {
    RF_ASSIGN_OR_RETURN(threads, ParseNumbers("-t", options.what.threads));
  }
  if (threads.size() > 1 && !options.session.trace.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --trace with ", threads.size(),
                     " values of -t, want one: each is a fleet of its own"));
  }
  const BenchNeeds needs = NeedsOf(request);
  SessionOptions session_options = options.session;
  RF_ASSIGN_OR_RETURN(const v1::FleetSettings given,
                      options.session.flags.Read());
  v1::FleetSettings& settings = session_options.settings;
  settings.set_parallel(needs.slots);
  if (!given.has_context()) {
    settings.set_context(static_cast<uint32_t>(
        std::min<uint64_t>(needs.context, std::numeric_limits<int>::max())));
  } else if (given.context() < needs.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: -c ", given.context(), ", the longest test takes ",
                     needs.context, " positions"));
  }
  Printer printer(options.format);
  settings.set_without_mtp(true);
  std::vector<v1::BenchProgress::Setup> setups;
  absl::Status ended;
  // The workers of a local fleet get their threads when they load.
  for (const uint32_t count : threads) {
    settings.set_threads(count);
    RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                        Session::Open(session_options));
    const absl::StatusOr<v1::BenchProgress::Setup> setup =
        Measure(request, options.progress, *session, printer);
    ended = session->Finish(setup.status());
    if (!setup.ok() || absl::IsCancelled(ended)) return ended;
    setups.push_back(*setup);
    if (!ended.ok()) break;
  }
  RF_RETURN_IF_ERROR(printer.Finish(setups));
  // The results are what this command prints, also before an error.
  invocation.json = false;
  return ended;
}

// A list in as many options as one likes.
CLI::Option* AddList(CLI::App& app, const std::string& names,
                     std::vector<std::string>& texts,
                     const std::string& description) {
  return app.add_option(names, texts, description)->allow_extra_args(false);
}

}  // namespace

void RegisterBench(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "bench", "Measure tokens per second, as llama-bench does");
  verb->group("Tools");
  verb->footer(kBenchFooter);
  auto options = std::make_shared<BenchVerb>();
  BenchOptions& what = options->what;
  const FleetFlags fleet =
      AddSessionOptions(*verb, options->session, /*with_threads=*/false);
  AddList(*verb, "-t,--threads", what.threads,
          "Threads per worker of a local fleet, which is started for each "
          "[the cores divided by --local]")
      ->excludes(fleet.cluster)
      ->excludes(fleet.coordinator);
  AddList(*verb, "-p,--n-prompt", what.prompts, "Prompt tokens [512]");
  AddList(*verb, "-n,--n-gen", what.generated, "Tokens to generate [128]");
  AddList(*verb, "--prompt-then-gen", what.pairs,
          "-pg PROMPT,GENERATED: one after the other");
  AddList(*verb, "-d,--n-depth", what.depths, "Tokens in the cache before [0]");
  verb->add_flag("--fill", what.fill,
                 "Make up what the cache holds before, instead of evaluating "
                 "it: the same speed, without the wait");
  AddList(*verb, "--n-parallel", what.parallels,
          "-np: sequences at the same time [1]");
  verb->add_option("-r,--repetitions", what.repetitions,
                   "Timed runs of each test")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--delay", what.delay_s, "Seconds between tests")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  verb->add_flag("--no-warmup", what.no_warmup,
                 "Skip the untimed step of the test's size before each test");
  verb->add_flag(
      "--no-memory-test", what.no_memory_test,
      "Skip reading memory between repetitions: no host_read_gbps, no "
      "bandwidth_share");
  verb->add_flag("--progress", options->progress,
                 "Say on stderr what is being done, also without a terminal");
  AddFormatOptions(*verb, {"md", "csv", "json", "jsonl"}, &options->format);
  verb->callback([options, &invocation] {
    invocation.json = options->format == "json" || options->format == "jsonl";
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
