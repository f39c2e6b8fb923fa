// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/generate.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

struct GenerateOptions {
  SessionOptions session;
  PromptOptions prompt;
  int64_t max_tokens = -1;
  float temperature = 0;
  int64_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  std::string seed;
  bool ignore_eos = false;
  bool mask_unused = false;
  bool json = false;
  bool detach = false;
  bool is_job = false;  // `submit`: shows the id.
  CLI::App* app = nullptr;
};

constexpr char kGenerateFooter[] = R"(
Sampling flags that are not given take the values of the model's
generation_config.json; without it sampling is greedy. Text goes to stdout as it
is generated, everything else to stderr.

Examples:
  ringfleet generate --model tests/models/tiny-v3 -p "def main(" -n 40
  ringfleet generate --model DIR --local 2 --dtype f32 --wire f32 --temp 0 \
      --prompt-ids 0,318,287 -n 48 --ignore-eos --json
  ringfleet generate --cluster cluster.yaml -f prompt.txt --temp 0.6 --top-p 0.95
  ringfleet generate --model DIR --local 2 -f prompt.txt -n 1 --trace trace.json
)";

constexpr char kSubmitFooter[] = R"(
The text streams back. --detach prints the job's id and leaves the job running;
its text is lost, because jobs are not stored.

Examples:
  ringfleet submit --cluster cluster.yaml -p "def main(" -n 40
  ringfleet submit --cluster cluster.yaml -f prompt.txt --detach
  ringfleet submit --cluster cluster.yaml -f prompt.txt --trace trace.json
  ringfleet call HOST:PORT ringfleet.v1.Coordinator/Cancel '{"id":"ID"}'
      ends a job; HOST:PORT is the coordinator
)";

std::string SeedProblem(const std::string& text) {
  uint64_t seed;
  return text == "-1" || absl::SimpleAtoi(text, &seed)
             ? ""
             : absl::StrCat(text, ", want -1 or 0 to 2^64 - 1");
}

void AddSamplingOptions(CLI::App& app, GenerateOptions& options) {
  options.app = &app;
  app.add_option("-n,--predict,--n-predict,--max-tokens", options.max_tokens,
                 "Tokens to write; -1: until a stop or the context's end")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--temp,--temperature", options.temperature,
                 "Temperature; 0: greedy");
  app.add_option("--top-k", options.top_k,
                 "Keep the K likeliest tokens; 0 or -1: off")
      ->check(CLI::Range(int64_t{-1}, int64_t{UINT32_MAX}));
  app.add_option("--top-p", options.top_p,
                 "Keep the likeliest tokens of this mass; 1: off");
  app.add_option("--min-p", options.min_p,
                 "Keep tokens of this share of the likeliest; 0: off");
  app.add_option("-s,--seed", options.seed,
                 "Seed of the draws, 0 to 2^64 - 1; -1: random [random]")
      ->check(SeedProblem);
  app.add_flag("--ignore-eos", options.ignore_eos, "Go on past the end token");
  app.add_flag("--mask-unused", options.mask_unused,
               "Never draw ids that have no token");
  app.add_flag("--json", options.json, "One JSON document on stdout");
}

v1::GenerateRequest MakeRequest(const GenerateOptions& options,
                                const v1::Prompt& prompt) {
  v1::GenerateRequest request;
  *request.mutable_prompt() = prompt;
  const CLI::App& app = *options.app;
  if (app.count("--temp") > 0) request.set_temperature(options.temperature);
  if (app.count("--top-k") > 0) {
    request.set_top_k(
        static_cast<uint32_t>(std::max<int64_t>(options.top_k, 0)));
  }
  if (app.count("--top-p") > 0) request.set_top_p(options.top_p);
  if (app.count("--min-p") > 0) request.set_min_p(options.min_p);
  uint64_t seed;
  if (absl::SimpleAtoi(options.seed, &seed)) request.set_seed(seed);
  request.set_max_tokens(options.max_tokens);
  request.set_ignore_eos(options.ignore_eos);
  request.set_mask_unused(options.mask_unused);
  request.set_detach(options.detach);
  return request;
}

// The sum of a stream of events.
struct Generated {
  v1::GenerateEvent::Accepted accepted;
  Json ids = Json::array();
  Json logprobs = Json::array();
  std::string text;
  v1::GenerateEvent::Finished finished;
};

double PerSecond(const v1::Timings& timings) {
  // The first token belongs to the prompt's time.
  return timings.predicted_n() > 1 && timings.predicted_ms() > 0
             ? (timings.predicted_n() - 1) * 1e3 / timings.predicted_ms()
             : 0;
}

Json ToJson(const Generated& generated, bool with_id) {
  const v1::Timings& timings = generated.finished.timings();
  Json document;
  if (with_id) document["id"] = generated.accepted.id();
  document["prompt_ids"] = JsonArray(generated.accepted.prompt_ids());
  document["ids"] = generated.ids;
  document["text"] = generated.text;
  document["logprobs"] = generated.logprobs;
  document["finish_reason"] =
      generated.finished.reason() == v1::FINISH_REASON_STOP ? "stop" : "length";
  document["timings"] = {{"load_ms", timings.load_ms()},
                         {"prompt_n", timings.prompt_n()},
                         {"prompt_ms", timings.prompt_ms()},
                         {"predicted_n", timings.predicted_n()},
                         {"predicted_ms", timings.predicted_ms()},
                         {"predicted_per_second", PerSecond(timings)}};
  return document;
}

void PrintSummary(const Generated& generated) {
  const v1::Timings& timings = generated.finished.timings();
  // The prompt's step gives the first token; a rate needs a second one.
  const std::string rate =
      PerSecond(timings) > 0
          ? absl::StrFormat(" %.1f ms, %.2f tokens/s", timings.predicted_ms(),
                            PerSecond(timings))
          : "";
  const std::string line = absl::StrFormat(
      "load %.0f ms | prompt %u tokens %.1f ms | %u token%s%s | %s",
      timings.load_ms(), timings.prompt_n(), timings.prompt_ms(),
      timings.predicted_n(), timings.predicted_n() == 1 ? "" : "s", rate,
      generated.finished.reason() == v1::FINISH_REASON_STOP ? "stop"
                                                            : "length");
  std::fprintf(stderr, "%s\n", line.c_str());
}

absl::StatusOr<Generated> Generate(const GenerateOptions& options,
                                   Session& session, const v1::Prompt& prompt) {
  InterruptibleCall call;
  const std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader =
      session.stub().Generate(call.context(), MakeRequest(options, prompt));
  Generated generated;
  bool finished = false;
  absl::Status printed;
  const auto print = [&](const std::string& text) {
    if (options.json || !printed.ok()) return;
    printed = PrintText(text);
    // The coordinator ends the job of a caller who leaves.
    if (!printed.ok()) call.context()->TryCancel();
  };
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
    switch (event.event_case()) {
      case v1::GenerateEvent::kAccepted:
        generated.accepted = event.accepted();
        if (options.detach) {
          // The job goes on without this call.
          call.context()->TryCancel();
          while (reader->Read(&event)) {
          }
          reader->Finish();
          return generated;
        }
        break;
      case v1::GenerateEvent::kToken:
        generated.ids.push_back(event.token().id());
        generated.logprobs.push_back(event.token().logprob());
        generated.text += event.token().text();
        print(event.token().text());
        break;
      case v1::GenerateEvent::kFinished:
        generated.finished = event.finished();
        generated.text += event.finished().text();
        print(event.finished().text() + "\n");
        finished = true;
        break;
      case v1::GenerateEvent::EVENT_NOT_SET:
        break;
    }
  }
  const absl::Status status = cluster::FromGrpc(reader->Finish());
  RF_RETURN_IF_ERROR(printed);
  RF_RETURN_IF_ERROR(status);
  if (!finished) {
    return absl::UnavailableError("coordinator: the stream ended early");
  }
  return generated;
}

absl::Status Run(const GenerateOptions& options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(const v1::Prompt prompt, ReadPrompt(options.prompt));
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(options.session));
  const absl::StatusOr<Generated> generated =
      Generate(options, *session, prompt);
  return session->Finish(generated.status(), invocation, [&] {
    if (options.detach) return PrintJson({{"id", generated->accepted.id()}});
    if (options.json) return PrintJson(ToJson(*generated, options.is_job));
    PrintSummary(*generated);
    return absl::OkStatus();
  });
}

}  // namespace

void RegisterGenerate(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("generate", "Continue a prompt");
  verb->group("One-shot");
  verb->footer(kGenerateFooter);
  auto options = std::make_shared<GenerateOptions>();
  AddSessionOptions(*verb, options->session);
  AddPromptOptions(*verb, "--prompt-ids", options->prompt);
  AddSamplingOptions(*verb, *options);
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

void RegisterSubmit(CLI::App& app, Invocation& invocation) {
  CLI::App* verb =
      app.add_subcommand("submit", "Submit a prompt to a running fleet");
  verb->group("Jobs");
  verb->footer(kSubmitFooter);
  auto options = std::make_shared<GenerateOptions>();
  options->is_job = true;
  verb->add_option("--cluster", options->session.cluster,
                   "Cluster file of the fleet")
      ->required();
  AddPromptOptions(*verb, "--prompt-ids", options->prompt);
  AddSamplingOptions(*verb, *options);
  auto* trace = AddTraceOption(*verb, options->session);
  verb->add_flag("--detach", options->detach,
                 "Print {\"id\"} and leave the job running")
      ->excludes(trace);
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
