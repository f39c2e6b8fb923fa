// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/score.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/read_ahead.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/cli/run/job_options.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

struct ScoreCommandOptions {
  SessionOptions session;
  PromptOptions prompt;
  uint32_t top = 8;
  bool hidden = false;
  bool mtp = false;
  std::string reference;
  JobSettings job;
  bool json = false;
};

constexpr char kScoreFooter[] = R"(
Prints log p(ids[i+1] | ids[..i]) for each id but the first, and the likeliest
ids after the last. A text longer than the context is scored in windows. Each
window starts with the last id of the previous one.

Examples:
  ringfleet score --model DIR -f text.txt
  ringfleet score --model DIR --local 2 --ids 0,318,287 --top 8 --hidden --json
  ringfleet score --model DIR -f text.txt --reference f32 --json
)";

Json ToJson(const v1::ScoreEvent::Result& result,
            const ScoreCommandOptions& options) {
  const v1::ScoreResult& score = result.score();
  Json document;
  document["ids"] = JsonArray(result.ids());
  document["logprobs"] = JsonArray(score.logprobs());
  document["top_ids"] = JsonArray(score.top_ids());
  document["top_logprobs"] = JsonArray(score.top_logprobs());
  if (options.hidden) {
    Json states = Json::array();
    for (const v1::HiddenState& state : score.hidden_states()) {
      states.push_back({{"last_token_head", JsonArray(state.head())},
                        {"last_token_norm", state.norm()}});
    }
    document["hidden_states"] = states;
  }
  if (options.mtp) {
    document["mtp_top_ids"] = JsonArray(score.mtp_top_ids());
    document["mtp_top_logprobs"] = JsonArray(score.mtp_top_logprobs());
  }
  if (!options.reference.empty()) {
    // No position, no mean: NaN is printed as null.
    const double compared = score.compared();
    document["reference"] = {
        {"mean_kl", score.kl_sum() / compared},
        {"top1_agreement", score.top1_agreements() / compared}};
  }
  return document;
}

std::string Table(const v1::ScoreEvent::Result& result,
                  const ScoreCommandOptions& options) {
  const v1::ScoreResult& score = result.score();
  std::string text;
  for (int i = 0; i < score.logprobs_size(); ++i) {
    absl::StrAppendFormat(&text, "%8d  id %6u  %10.5f\n", i + 1,
                          result.ids(i + 1), score.logprobs(i));
  }
  absl::StrAppend(&text, "next:");
  for (int i = 0; i < score.top_ids_size(); ++i) {
    absl::StrAppendFormat(&text, " %u (%.4f)", score.top_ids(i),
                          score.top_logprobs(i));
  }
  absl::StrAppend(&text, "\n");
  if (score.logprobs_size() > 0) {
    const double sum =
        std::accumulate(score.logprobs().begin(), score.logprobs().end(), 0.0);
    const double mean = sum / score.logprobs_size();
    absl::StrAppendFormat(&text,
                          "%d tokens, %.5f nats a token, perplexity %.4f\n",
                          score.logprobs_size(), -mean, std::exp(-mean));
  }
  if (!options.reference.empty() && score.compared() > 0) {
    absl::StrAppendFormat(
        &text, "against float32: mean KL %.3e nats, top-1 agreement %.2f %%\n",
        score.kl_sum() / score.compared(),
        100.0 * score.top1_agreements() / score.compared());
  }
  return text;
}

absl::StatusOr<v1::ScoreEvent::Result> Score(const ScoreCommandOptions& options,
                                             Session& session,
                                             const v1::Prompt& prompt) {
  v1::ScoreRequest request;
  *request.mutable_prompt() = prompt;
  request.mutable_options()->set_top(options.top);
  request.mutable_options()->set_hidden(options.hidden);
  request.mutable_options()->set_mtp(options.mtp);
  request.mutable_options()->set_reference(!options.reference.empty());
  RF_ASSIGN_OR_RETURN(const uint32_t timeout_ms,
                      TimeoutMs(options.job.timeout));
  request.set_timeout_ms(timeout_ms);
  request.set_priority(options.job.priority);
  InterruptibleCall call;
  const std::unique_ptr<grpc::ClientReader<v1::ScoreEvent>> reader =
      session.stub().Score(call.context(), request);
  cluster::ReadAhead<v1::ScoreEvent> events(reader.get());
  v1::ScoreEvent::Result result;
  bool finished = false;
  {
    Progress progress;
    v1::ScoreEvent event;
    while (events.Read(&event)) {
      if (event.has_progress()) {
        progress.Phase(absl::StrFormat("scored %u of %u tokens",
                                       event.progress().done(),
                                       event.progress().total()));
      } else if (event.has_result()) {
        // A long text's result comes in parts.
        result.MergeFrom(event.result());
        finished = true;
      } else if (event.has_waiting()) {
        progress.Phase(event.waiting().reason());
      }
    }
  }
  RF_RETURN_IF_ERROR(cluster::FromGrpc(reader->Finish()));
  if (!finished) {
    return absl::UnavailableError("coordinator: the stream ended early");
  }
  return result;
}

absl::Status Run(ScoreCommandOptions options, Invocation& invocation) {
  if (!options.reference.empty() && options.reference != "f32") {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --reference ", options.reference, ", want f32"));
  }
  RF_ASSIGN_OR_RETURN(const v1::Prompt prompt, ReadPrompt(options.prompt));
  options.session.settings.set_reference(!options.reference.empty());
  options.session.settings.set_without_mtp(!options.mtp);
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(options.session));
  const absl::StatusOr<v1::ScoreEvent::Result> result =
      Score(options, *session, prompt);
  return session->Finish(result.status(), invocation, [&] {
    return options.json ? PrintJson(ToJson(*result, options))
                        : PrintText(Table(*result, options));
  });
}

}  // namespace

void RegisterScore(CLI::App& app, Invocation& invocation) {
  CLI::App* verb =
      app.add_subcommand("score", "Print the probabilities of a text");
  verb->group("One-shot");
  verb->footer(kScoreFooter);
  auto options = std::make_shared<ScoreCommandOptions>();
  AddSessionOptions(*verb, options->session);
  AddPromptOptions(*verb, "--ids", options->prompt);
  verb->add_option("--top", options->top,
                   "Likeliest ids to print after the last one")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  verb->add_flag("--hidden", options->hidden,
                 "Also the hidden states of the last token, in the JSON");
  verb->add_flag("--mtp", options->mtp,
                 "Also the predictions of the multi-token prediction layer, in "
                 "the JSON");
  verb->add_option("--reference", options->reference,
                   "f32: also the divergence from the plain float32 path");
  AddJobOptions(*verb, options->job);
  verb->add_flag("--json", options->json, "One JSON document on stdout");
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
