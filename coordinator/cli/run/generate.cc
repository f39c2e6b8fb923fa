// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/generate.h"

#include <cstdint>
#include <memory>
#include <string>

#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/cli/run/batch_file.h"
#include "coordinator/cli/run/generated.h"
#include "coordinator/cli/run/job_options.h"
#include "coordinator/cli/run/sampling_options.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

struct GenerateOptions {
  SessionOptions session;
  PromptOptions prompt;
  SamplingOptions sampling;
  uint32_t top_logprobs = 0;
  JobSettings job;
  BatchOptions batch;  // `submit` alone.
  bool json = false;
  bool detach = false;
  bool is_job = false;  // `submit`: shows the id.
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
With a FILE of JSON Lines it is a batch: all lines are checked, then they run
beside other jobs at a low priority, and each has one result, whatever fails
meanwhile. The call prints {"id","state","total"}; `ringfleet show ID` has the
state and the results, also after a restart of the coordinator. With --timeout
it expires then, and keeps the results that it has. A batch that ran to its end
exits with 0, also if lines have failed.

With a prompt the text streams back. A job outlives the loss of a worker: it waits for the
worker's return and goes on where it stopped. --detach prints the job's id and
leaves the job running; `ringfleet show ID` has its text until the job is a day
old.

Examples:
  ringfleet submit --cluster cluster.yaml prompts.jsonl --name night
  ringfleet submit --cluster cluster.yaml prompts.jsonl -o answers.jsonl
  ringfleet submit --cluster cluster.yaml -p "def main(" -n 40
  ringfleet submit --cluster cluster.yaml -f prompt.txt --timeout 10m
  ringfleet submit --cluster cluster.yaml -f prompt.txt --detach
  ringfleet show ID --cluster cluster.yaml --follow
  ringfleet cancel ID --cluster cluster.yaml
  ringfleet submit --cluster cluster.yaml -f prompt.txt --trace trace.json
  ringfleet submit --coordinator 10.0.0.11:50051 -p "def main("
)";

// Adds the options of `generate` and `submit` beside the prompt.
void AddGenerateOptions(CLI::App& app, GenerateOptions& options) {
  AddSamplingOptions(app, options.sampling);
  app.add_option("--top-logprobs", options.top_logprobs,
                 "Likeliest ids of each token in the --json document")
      ->check(CLI::Range(0, 128))
      ->capture_default_str();
  AddJobOptions(app, options.job);
  app.add_flag("--json", options.json, "One JSON document on stdout");
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerateOptions& options,
                                                const v1::Prompt& prompt) {
  RF_ASSIGN_OR_RETURN(v1::GenerateRequest request,
                      SamplingOf(options.sampling));
  *request.mutable_prompt() = prompt;
  request.set_top_logprobs(options.top_logprobs);
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
  return ReadEvents(call, *reader, options.json ? nullptr : PrintPiece,
                    [&options] { return !options.detach; });
}

absl::Status Run(GenerateOptions options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(const v1::Prompt prompt, ReadPrompt(options.prompt));
  options.session.settings.set_without_mtp(true);
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
  AddGenerateOptions(*verb, *options);
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

void RegisterSubmit(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "submit", "Submit a prompt, or a file of prompts, to a running fleet");
  verb->group("Jobs");
  verb->footer(kSubmitFooter);
  auto options = std::make_shared<GenerateOptions>();
  options->is_job = true;
  options->session.samples = true;
  options->session.local = 0;
  AddFleetChoice(*verb, options->session.fleet);
  AddPromptOptions(*verb, "--prompt-ids", options->prompt);
  AddGenerateOptions(*verb, *options);
  auto* trace = AddTraceOption(*verb, options->session);
  verb->add_flag("--detach", options->detach,
                 "Print {\"id\"} and leave the job running")
      ->excludes(trace);
  AddBatchOptions(
      *verb,
      {"--cluster", "--coordinator", "--timeout", "--priority", "--json"},
      options->batch);
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options, &invocation]() -> absl::Status {
      RF_RETURN_IF_ERROR(CheckBatchOptions(options->batch));
      if (!options->batch.file.empty()) {
        return RunBatchFile(options->session, options->batch, options->job,
                            invocation);
      }
      return Run(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
