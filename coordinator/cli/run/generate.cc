// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/generate.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/cli/run/generated.h"
#include "coordinator/cli/run/job_options.h"
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
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::string> logit_bias;
  uint32_t min_tokens = 0;
  std::vector<std::string> bad_words;
  std::vector<uint32_t> stop_ids;
  std::vector<std::string> stops;
  bool keeps_stop = false;
  uint32_t top_logprobs = 0;
  std::string seed;
  JobSettings job;
  bool ignore_eos = false;
  bool mask_unused = false;
  bool json = false;
  bool detach = false;
  bool is_job = false;  // `submit`: shows the id.
  CLI::App* app = nullptr;
};

constexpr char kGenerateFooter[] = R"(
Sampling flags that are not given take the values of the model's
generation_config.json; without it sampling is greedy. A setting of that file
that is not supported, such as a number of beams, is named on stderr and
ignored. Penalties, biases and bad words apply before temperature, top-k, top-p
and min-p. Probabilities are those of the model before all of these. Text
goes to stdout as it is generated, everything else to stderr.

Examples:
  ringfleet generate --model tests/models/tiny-v3 -p "def main(" -n 40
  ringfleet generate --model DIR --local 2 --dtype f32 --wire f32 --temp 0 \
      --prompt-ids 0,318,287 -n 48 --ignore-eos --json
  ringfleet generate --cluster cluster.yaml -f prompt.txt --temp 0.6 --top-p 0.95
  ringfleet generate --model DIR --local 2 -f prompt.txt -n 1 --trace trace.json
)";

constexpr char kSubmitFooter[] = R"(
The text streams back. A job outlives the loss of a worker: it waits for the
worker's return and goes on where it stopped. --detach prints the job's id and
leaves the job running; `ringfleet show ID` has its text until the coordinator
ends or the job is a day old.

Examples:
  ringfleet submit --cluster cluster.yaml -p "def main(" -n 40
  ringfleet submit --cluster cluster.yaml -f prompt.txt --timeout 10m
  ringfleet submit --cluster cluster.yaml -f prompt.txt --detach
  ringfleet show ID --cluster cluster.yaml --follow
  ringfleet cancel ID --cluster cluster.yaml
  ringfleet submit --cluster cluster.yaml -f prompt.txt --trace trace.json
  ringfleet submit --coordinator 10.0.0.11:50051 -p "def main("
)";

std::string SeedProblem(const std::string& text) {
  uint64_t seed;
  return text == "-1" || absl::SimpleAtoi(text, &seed)
             ? ""
             : absl::StrCat(text, ", want -1 or 0 to 2^64 - 1");
}

// Parses "ID+BIAS" and "ID-BIAS".
absl::StatusOr<v1::LogitBias> ParseBias(const std::string& text) {
  v1::LogitBias bias;
  const size_t sign = text.find_first_of("+-");
  uint32_t id = 0;
  float value = 0;
  if (sign == std::string::npos ||
      !absl::SimpleAtoi(text.substr(0, sign), &id) ||
      !absl::SimpleAtof(text.substr(sign + (text[sign] == '+' ? 1 : 0)),
                        &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, ", want an id with a bias, as in 1234+2.5"));
  }
  bias.set_id(id);
  bias.set_bias(value);
  return bias;
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
  app.add_option("--repeat-penalty,--repetition-penalty",
                 options.repetition_penalty,
                 "Divide the logits of ids that the text has; 1: off");
  app.add_option("--presence-penalty", options.presence_penalty,
                 "Take this from the logits of ids that were drawn")
      ->capture_default_str();
  app.add_option("--frequency-penalty", options.frequency_penalty,
                 "Take this from an id's logit for each time it was drawn")
      ->capture_default_str();
  app.add_option("-l,--logit-bias", options.logit_bias,
                 "Add to the logit of an id, as in 1234+2.5 or 1234-100; may "
                 "be given several times")
      ->check([](const std::string& text) {
        return std::string(ParseBias(text).status().message());
      });
  app.add_option("--min-tokens", options.min_tokens,
                 "Draw no end token before so many tokens");
  app.add_option("--bad-word", options.bad_words,
                 "Never write this; may be given several times");
  app.add_option("--stop-id", options.stop_ids,
                 "Another id that ends the text; may be given several times");
  app.add_option("--stop", options.stops,
                 "End the text before this string; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--include-stop-str-in-output", options.keeps_stop,
               "End the text behind the stop string instead");
  app.add_option("--top-logprobs", options.top_logprobs,
                 "Likeliest ids of each token in the --json document")
      ->check(CLI::Range(0, 128))
      ->capture_default_str();
  app.add_option("-s,--seed", options.seed,
                 "Seed of the draws, 0 to 2^64 - 1; -1: random [random]")
      ->check(SeedProblem);
  app.add_flag("--ignore-eos", options.ignore_eos, "Go on past the end token");
  app.add_flag("--mask-unused", options.mask_unused,
               "Never draw ids that have no token");
  AddJobOptions(app, options.job);
  app.add_flag("--json", options.json, "One JSON document on stdout");
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerateOptions& options,
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
  if (app.count("--repeat-penalty") > 0) {
    request.set_repetition_penalty(options.repetition_penalty);
  }
  request.set_presence_penalty(options.presence_penalty);
  request.set_frequency_penalty(options.frequency_penalty);
  for (const std::string& text : options.logit_bias) {
    RF_ASSIGN_OR_RETURN(*request.add_logit_bias(), ParseBias(text));
  }
  if (app.count("--min-tokens") > 0) request.set_min_tokens(options.min_tokens);
  request.mutable_bad_words()->Add(options.bad_words.begin(),
                                   options.bad_words.end());
  request.mutable_stop_token_ids()->Add(options.stop_ids.begin(),
                                        options.stop_ids.end());
  request.mutable_stop()->Add(options.stops.begin(), options.stops.end());
  request.set_include_stop_str_in_output(options.keeps_stop);
  request.set_top_logprobs(options.top_logprobs);
  uint64_t seed;
  if (absl::SimpleAtoi(options.seed, &seed)) request.set_seed(seed);
  request.set_max_tokens(options.max_tokens);
  request.set_ignore_eos(options.ignore_eos);
  request.set_mask_unused(options.mask_unused);
  request.set_detach(options.detach);
  RF_ASSIGN_OR_RETURN(const uint32_t timeout_ms,
                      TimeoutMs(options.job.timeout));
  request.set_timeout_ms(timeout_ms);
  request.set_priority(options.job.priority);
  return request;
}

absl::StatusOr<Generated> Generate(const GenerateOptions& options,
                                   Session& session, const v1::Prompt& prompt) {
  RF_ASSIGN_OR_RETURN(const v1::GenerateRequest request,
                      MakeRequest(options, prompt));
  InterruptibleCall call;
  const std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader =
      session.stub().Generate(call.context(), request);
  // A detached job goes on without this call.
  return ReadEvents(call, *reader, /*prints=*/!options.json,
                    [&options] { return !options.detach; });
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
    // A running fleet may have loaded days ago.
    PrintSummary(*generated,
                 /*is_loaded_for_this=*/!options.session.fleet.given());
    return absl::OkStatus();
  });
}

}  // namespace

void RegisterGenerate(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("generate", "Continue a prompt");
  verb->group("One-shot");
  verb->footer(kGenerateFooter);
  auto options = std::make_shared<GenerateOptions>();
  options->session.samples = true;
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
  options->session.samples = true;
  options->session.local = 0;
  AddFleetChoice(*verb, options->session.fleet);
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
