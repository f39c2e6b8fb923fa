// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/generated.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/read_ahead.h"

namespace ringfleet::coordinator::cli {
namespace {

double PerSecond(const v1::Timings& timings) {
  // The first token belongs to the prompt's time.
  return timings.predicted_n() > 1 && timings.predicted_ms() > 0
             ? (timings.predicted_n() - 1) * 1e3 / timings.predicted_ms()
             : 0;
}

}  // namespace

Json ToJson(const Generated& generated, bool with_id) {
  const v1::Timings& timings = generated.finished.timings();
  Json document;
  if (with_id) document["id"] = generated.accepted.id();
  document["prompt_ids"] = JsonArray(generated.accepted.prompt_ids());
  document["ids"] = generated.ids;
  document["text"] = generated.text;
  if (!generated.reasoning.empty()) {
    document["reasoning"] = generated.reasoning;
  }
  document["logprobs"] = generated.logprobs;
  if (!generated.top.empty()) {
    Json& tokens = document["top_logprobs"] = Json::array();
    for (const v1::TopLogprobs& top : generated.top) {
      Json& likely = tokens.emplace_back(Json::array());
      for (int i = 0; i < top.ids_size(); ++i) {
        likely.push_back({{"id", top.ids(i)}, {"logprob", top.logprobs(i)}});
      }
    }
  }
  document["finish_reason"] =
      generated.finished.reason() == v1::FINISH_REASON_STOP ? "stop" : "length";
  document["timings"] = {{"load_ms", timings.load_ms()},
                         {"prompt_n", timings.prompt_n()},
                         {"cached_n", timings.cached_n()},
                         {"prompt_ms", timings.prompt_ms()},
                         {"predicted_n", timings.predicted_n()},
                         {"predicted_ms", timings.predicted_ms()},
                         {"predicted_per_second", PerSecond(timings)}};
  return document;
}

void PrintSummary(const Generated& generated, bool is_loaded_for_this) {
  const v1::Timings& timings = generated.finished.timings();
  // The prompt's step gives the first token; a rate needs a second one.
  const std::string rate =
      PerSecond(timings) > 0
          ? absl::StrFormat(" %.1f ms, %.2f tokens/s", timings.predicted_ms(),
                            PerSecond(timings))
          : "";
  const std::string load =
      is_loaded_for_this ? absl::StrFormat("load %.0f ms | ", timings.load_ms())
                         : "";
  const std::string cached =
      timings.cached_n() > 0
          ? absl::StrFormat(" (%u cached)", timings.cached_n())
          : "";
  const std::string line = absl::StrFormat(
      "%sprompt %u tokens%s %.1f ms | %u token%s%s | %s", load,
      timings.prompt_n(), cached, timings.prompt_ms(), timings.predicted_n(),
      timings.predicted_n() == 1 ? "" : "s", rate,
      generated.finished.reason() == v1::FINISH_REASON_STOP ? "stop"
                                                            : "length");
  std::fprintf(stderr, "%s\n", line.c_str());
}

void PrintWaiting(const std::string& reason) {
  std::fprintf(stderr, "%s\n",
               reason.empty()
                   ? "the fleet is ready again"
                   : absl::StrCat("waiting: ", OneLine(reason)).c_str());
}

absl::Status PrintPiece(const AnswerPiece& piece, bool last) {
  return PrintText(last ? piece.text + "\n" : piece.text);
}

absl::StatusOr<Generated> ReadEvents(
    InterruptibleCall& call, grpc::ClientReader<v1::GenerateEvent>& reader,
    const OnPiece& on_piece, const std::function<bool()>& on_accepted) {
  Generated generated;
  bool finished = false;
  absl::Status printed;
  const auto take = [&](const auto& part, bool last) {
    generated.text += part.text();
    generated.reasoning += part.reasoning();
    if (on_piece == nullptr || !printed.ok()) return;
    printed = on_piece({part.reasoning(), part.text()}, last);
    // The coordinator ends the job of a caller who leaves.
    if (!printed.ok()) call.context()->TryCancel();
  };
  cluster::ReadAhead<v1::GenerateEvent> events(&reader);
  v1::GenerateEvent event;
  while (events.Read(&event)) {
    switch (event.event_case()) {
      case v1::GenerateEvent::kAccepted:
        generated.accepted = event.accepted();
        if (on_accepted != nullptr && !on_accepted()) {
          call.context()->TryCancel();
          while (events.Read(&event)) {
          }
          reader.Finish();
          return generated;
        }
        break;
      case v1::GenerateEvent::kToken:
        generated.ids.push_back(event.token().id());
        generated.logprobs.push_back(event.token().logprob());
        if (event.token().has_top()) {
          generated.top.push_back(event.token().top());
        }
        take(event.token(), /*last=*/false);
        break;
      case v1::GenerateEvent::kPrompt:
        break;  // Never asked for here.
      case v1::GenerateEvent::kWaiting:
        PrintWaiting(event.waiting().reason());
        break;
      case v1::GenerateEvent::kFinished:
        generated.finished = event.finished();
        take(event.finished(), /*last=*/true);
        finished = true;
        break;
      case v1::GenerateEvent::EVENT_NOT_SET:
        break;
    }
  }
  const absl::Status status = cluster::FromGrpc(reader.Finish());
  RF_RETURN_IF_ERROR(printed);
  RF_RETURN_IF_ERROR(status);
  if (!finished) {
    return absl::UnavailableError("coordinator: the stream ended early");
  }
  return generated;
}

}  // namespace ringfleet::coordinator::cli
