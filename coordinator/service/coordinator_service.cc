// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/coordinator_service.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/fleet/bench_run.h"
#include "coordinator/scheduling/score_windows.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

constexpr absl::Duration kLongestWait = absl::Minutes(10);
// How soon a caller that has gone is noticed while no token arrives.
constexpr absl::Duration kCallerPoll = absl::Milliseconds(50);

std::string RandomPrefix() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random() & 0xffff, absl::kZeroPad4));
}

Deadline DeadlineOf(const grpc::ServerContext& context,
                    absl::Duration at_most) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return Deadline::After(std::min(absl::FromChrono(left), at_most));
}

// Turns tokens into text; without a tokenizer the text stays empty. A stop
// token is text like another unless it is a special one.
class TextStream {
 public:
  explicit TextStream(const ServedModel& model) {
    const auto tokenizer = model.tokenizer();
    if (tokenizer.ok()) decoder_.emplace(*tokenizer);
  }

  std::string Add(uint32_t id) {
    return decoder_.has_value() ? decoder_->Add(id) : "";
  }
  std::string Finish() {
    return decoder_.has_value() ? decoder_->Finish() : "";
  }

 private:
  std::optional<StreamDecoder> decoder_;
};

}  // namespace

CoordinatorService::CoordinatorService(const ServedModel* model, Fleet* fleet,
                                       bool reference)
    : model_(model),
      fleet_(fleet),
      reference_(reference),
      id_prefix_(RandomPrefix()) {}

std::shared_ptr<Request> CoordinatorService::NewRequest(
    std::shared_ptr<EventBuffer> events) {
  auto request = std::make_shared<Request>();
  request->id =
      absl::StrCat(id_prefix_, absl::Hex(next_id_++, absl::kZeroPad4));
  request->events = std::move(events);
  return request;
}

absl::Status CoordinatorService::Submit(
    grpc::ServerContext* context, std::shared_ptr<Request> request,
    const std::function<absl::Status(uint32_t)>& prepare) {
  const Deadline deadline = DeadlineOf(*context, kLongestWait);
  while (true) {
    RF_RETURN_IF_ERROR(fleet_->WaitReady(
        deadline, [context] { return context->IsCancelled(); }));
    const uint32_t positions = fleet_->context();
    if (positions > 0) {
      RF_RETURN_IF_ERROR(prepare(positions));
      const absl::Status status = fleet_->Submit(request);
      // The fleet failed between the two calls: wait for it again.
      if (!absl::IsUnavailable(status)) return status;
    }
  }
}

absl::Status CoordinatorService::Follow(
    grpc::ServerContext* context, const Request& request, EventBuffer& events,
    bool detach, const std::function<bool(EventBuffer::Event&)>& on_event) {
  while (true) {
    auto event = events.Pop(Deadline::After(kCallerPoll));
    if (event.has_value()) {
      if (const auto* failed = std::get_if<absl::Status>(&*event)) {
        return *failed;
      }
      const bool written = on_event(*event);
      if (std::holds_alternative<RequestUpdate::Finished>(*event)) {
        return absl::OkStatus();
      }
      if (written) continue;
    } else if (!context->IsCancelled()) {
      continue;
    }
    events.Abandon();
    if (!detach) {
      // NOT_FOUND: it has ended in the meantime.
      fleet_->Cancel(request.id).IgnoreError();
    }
    return absl::CancelledError(
        absl::StrCat("the caller of job ", request.id, " has left"));
  }
}

grpc::Status CoordinatorService::Generate(
    grpc::ServerContext* context, const v1::GenerateRequest* request,
    grpc::ServerWriter<v1::GenerateEvent>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  return cluster::ToGrpc(RunGenerate(context, *request, writer));
}

absl::Status CoordinatorService::RunGenerate(
    grpc::ServerContext* context, const v1::GenerateRequest& request,
    grpc::ServerWriter<v1::GenerateEvent>* writer) {
  const auto events = std::make_shared<EventBuffer>();
  const auto job = NewRequest(events);
  RF_ASSIGN_OR_RETURN(job->prompt_ids, model_->PromptIds(request.prompt()));
  RF_ASSIGN_OR_RETURN(job->sampling, model_->Sampling(request));
  if (!request.ignore_eos()) job->stop_ids = model_->StopIds();
  if (request.mask_unused()) {
    RF_ASSIGN_OR_RETURN(job->usable_vocab, model_->UsableVocab());
  }
  const int64_t requested =
      request.has_max_tokens() ? request.max_tokens() : -1;
  RF_RETURN_IF_ERROR(Submit(context, job, [&](uint32_t positions) {
    job->max_tokens = TokenLimit(requested, job->prompt_ids.size(), positions);
    return absl::OkStatus();
  }));

  v1::GenerateEvent accepted;
  accepted.mutable_accepted()->set_id(job->id);
  accepted.mutable_accepted()->mutable_prompt_ids()->Add(
      job->prompt_ids.begin(), job->prompt_ids.end());
  *accepted.mutable_accepted()->mutable_sampling() = job->sampling;
  // A caller that has gone is noticed with the first event.
  writer->Write(accepted);

  TextStream text(*model_);
  return Follow(
      context, *job, *events, request.detach(), [&](EventBuffer::Event& event) {
        v1::GenerateEvent out;
        if (const auto* token = std::get_if<RequestUpdate::Token>(&event)) {
          out.mutable_token()->set_id(token->id);
          out.mutable_token()->set_logprob(token->logprob);
          out.mutable_token()->set_text(text.Add(token->id));
        } else if (const auto* end =
                       std::get_if<RequestUpdate::Finished>(&event)) {
          v1::GenerateEvent::Finished* finished = out.mutable_finished();
          finished->set_reason(end->reason);
          finished->set_text(text.Finish());
          v1::Timings* timings = finished->mutable_timings();
          timings->set_load_ms(fleet_->State().load_ms());
          timings->set_prompt_n(end->timings.prompt_n);
          timings->set_prompt_ms(end->timings.prompt_ms);
          timings->set_predicted_n(end->timings.predicted_n);
          timings->set_predicted_ms(end->timings.predicted_ms);
        } else {
          return true;
        }
        return writer->Write(out);
      });
}

grpc::Status CoordinatorService::Score(
    grpc::ServerContext* context, const v1::ScoreRequest* request,
    grpc::ServerWriter<v1::ScoreEvent>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  return cluster::ToGrpc(RunScore(context, *request, writer));
}

absl::Status CoordinatorService::RunScore(
    grpc::ServerContext* context, const v1::ScoreRequest& request,
    grpc::ServerWriter<v1::ScoreEvent>* writer) {
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                      model_->PromptIds(request.prompt()));
  RF_RETURN_IF_ERROR(model_->CheckScore(request.options()));
  if (request.options().reference() && !reference_) {
    return absl::FailedPreconditionError(
        "reference: the workers hold no float32 copy to compare with, want "
        "`reference: true` in the cluster file, or --reference of the "
        "coordinator");
  }
  v1::ScoreResult total;
  // Windows follow each other: a long text takes one slot, not all of them.
  size_t begin = 0;
  bool last = false;
  while (!last) {
    const auto events = std::make_shared<EventBuffer>();
    const auto job = NewRequest(events);
    ScoreWindow window;
    RF_RETURN_IF_ERROR(
        Submit(context, job, [&](uint32_t positions) -> absl::Status {
          RF_ASSIGN_OR_RETURN(
              window,
              NextScoreWindow(ids.size(), begin, positions, request.options()));
          last = window.end == ids.size();
          job->prompt_ids.assign(ids.begin() + window.begin,
                                 ids.begin() + window.end);
          job->score = request.options();
          if (!last) job->score->set_top(0);
          return absl::OkStatus();
        }));
    RF_RETURN_IF_ERROR(
        Follow(context, *job, *events, /*detach=*/false,
               [&](EventBuffer::Event& event) {
                 const auto* part = std::get_if<v1::ScoreResult>(&event);
                 if (part == nullptr) return true;
                 AppendScore(*part, &total);
                 v1::ScoreEvent progress;
                 progress.mutable_progress()->set_done(total.logprobs_size());
                 progress.mutable_progress()->set_total(ids.size() - 1);
                 return writer->Write(progress);
               }));
    begin = window.end - 1;
  }
  if (static_cast<size_t>(total.logprobs_size()) != ids.size() - 1) {
    return absl::InternalError(
        absl::StrCat("score: workers gave ", total.logprobs_size(),
                     " probabilities, want ", ids.size() - 1));
  }
  for (v1::ScoreEvent::Result& part : SplitScore(ids, std::move(total))) {
    v1::ScoreEvent event;
    *event.mutable_result() = std::move(part);
    writer->Write(event);
  }
  return absl::OkStatus();
}

grpc::Status CoordinatorService::Tokenize(grpc::ServerContext*,
                                          const v1::TokenizeRequest* request,
                                          v1::TokenizeResponse* response) {
  const auto tokenizer = model_->tokenizer();
  if (!tokenizer.ok()) return cluster::ToGrpc(tokenizer.status());
  if (request->bos()) {
    if (!(*tokenizer)->bos_id().has_value()) {
      return cluster::ToGrpc(
          absl::FailedPreconditionError("bos: the tokenizer has no BOS token"));
    }
    response->add_ids(*(*tokenizer)->bos_id());
  }
  const auto ids = (*tokenizer)->Encode(request->text());
  if (!ids.ok()) return cluster::ToGrpc(ids.status());
  response->mutable_ids()->Add(ids->begin(), ids->end());
  for (const uint32_t id : response->ids()) {
    response->add_pieces(std::string((*tokenizer)->TokenBytes(id)));
  }
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Detokenize(
    grpc::ServerContext*, const v1::DetokenizeRequest* request,
    v1::DetokenizeResponse* response) {
  const auto tokenizer = model_->tokenizer();
  if (!tokenizer.ok()) return cluster::ToGrpc(tokenizer.status());
  const std::vector<uint32_t> ids(request->ids().begin(), request->ids().end());
  const absl::Status valid = CheckTokenIds(ids);
  if (!valid.ok()) return cluster::ToGrpc(valid);
  response->set_text((*tokenizer)->Decode(ids, request->keep_special()));
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::DescribeCluster(
    grpc::ServerContext*, const v1::DescribeClusterRequest*,
    v1::ClusterState* response) {
  *response = fleet_->State();
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::DescribeExperts(
    grpc::ServerContext* context, const v1::DescribeExpertsRequest* request,
    v1::DescribeExpertsResponse* response) {
  auto statistics = fleet_->Statistics(
      request->reset_counts(), DeadlineOf(*context, kStatisticsTimeout));
  if (!statistics.ok()) return cluster::ToGrpc(statistics.status());
  for (v1::ExpertBalance& layer : fleet_->BalanceOf(*statistics)) {
    *response->add_balance() = std::move(layer);
  }
  *response->mutable_layers() = std::move(*statistics->mutable_layers());
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Cancel(grpc::ServerContext*,
                                        const v1::CancelRequest* request,
                                        v1::CancelResponse*) {
  return cluster::ToGrpc(fleet_->Cancel(request->id()));
}

grpc::Status CoordinatorService::Bench(
    grpc::ServerContext* context, const v1::BenchRequest* request,
    grpc::ServerWriter<v1::BenchProgress>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  const auto cancelled = [context] { return context->IsCancelled(); };
  absl::Status status =
      fleet_->WaitReady(DeadlineOf(*context, kLongestWait), cancelled);
  if (status.ok()) {
    status = RunBench(*request, *model_, *fleet_, cancelled,
                      [writer](const v1::BenchProgress& progress) {
                        return writer->Write(progress);
                      });
  }
  return cluster::ToGrpc(status);
}

grpc::Status CoordinatorService::Rebalance(
    grpc::ServerContext* context, const v1::RebalanceRequest* request,
    grpc::ServerWriter<v1::RebalanceProgress>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  absl::Status status =
      fleet_->WaitReady(DeadlineOf(*context, kLongestWait),
                        [context] { return context->IsCancelled(); });
  if (status.ok()) {
    status = fleet_->Rebalance(
        *request, /*threshold=*/0,
        [context, writer](const v1::RebalanceProgress& progress) {
          return !context->IsCancelled() && writer->Write(progress);
        });
  }
  return cluster::ToGrpc(status);
}

grpc::Status CoordinatorService::Trace(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::TraceProgress, v1::TraceRequest>* stream) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  v1::TraceRequest request;
  if (!stream->Read(&request)) {
    return cluster::ToGrpc(
        absl::InvalidArgumentError("trace: no request, want one"));
  }
  absl::Status status =
      fleet_->WaitReady(DeadlineOf(*context, kLongestWait),
                        [context] { return context->IsCancelled(); });
  if (status.ok()) {
    status = fleet_->Trace(
        request,
        [context, stream] {
          v1::TraceRequest ignored;
          while (stream->Read(&ignored)) {  // Until the caller ends its side.
          }
          return !context->IsCancelled();
        },
        [stream](const v1::TraceProgress& progress) {
          stream->Write(progress);  // A caller that has gone needs none.
        });
  }
  return cluster::ToGrpc(status);
}

}  // namespace ringfleet::coordinator
