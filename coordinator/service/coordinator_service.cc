// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/coordinator_service.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/process/log.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/chat/reasoning.h"
#include "coordinator/fleet/bench_run.h"
#include "coordinator/service/job_events.h"
#include "coordinator/service/job_stream.h"
#include "coordinator/service/prompt_form.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

constexpr absl::Duration kLongestWait = absl::Minutes(10);
constexpr uint32_t kMostListed = 1000;  // Jobs of a page, far below 4 MB.
Deadline DeadlineOf(const grpc::ServerContext& context,
                    absl::Duration at_most) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return Deadline::After(std::min(absl::FromChrono(left), at_most));
}

// Returns when a job's own timeout ends it.
Deadline TimeoutOf(uint32_t timeout_ms) {
  return timeout_ms == 0 ? Deadline::Infinite()
                         : Deadline::After(absl::Milliseconds(timeout_ms));
}

}  // namespace

CoordinatorService::CoordinatorService(const ServedModel* model, Fleet* fleet,
                                       const v1::FleetSettings& settings)
    : model_(model),
      fleet_(fleet),
      reference_(settings.reference()),
      without_mtp_(settings.without_mtp()),
      served_model_(settings.model()),
      jobs_(fleet) {}

absl::StatusOr<Request> CoordinatorService::GenerateRequestOf(
    const v1::GenerateRequest& wanted, TextRules* rules) {
  Request request;
  const uint32_t known = fleet_->context();  // 0: the fleet is not ready.
  RF_ASSIGN_OR_RETURN(
      PromptForm prompt,
      ReadPromptForm(
          *model_, wanted.prompt(),
          known > 0 ? known : model_->spec().max_position_embeddings));
  request.prompt_ids = std::move(prompt.ids);
  rules->reasoning = prompt.reasoning;
  RF_ASSIGN_OR_RETURN(request.sampling, model_->Sampling(wanted));
  RF_ASSIGN_OR_RETURN(request.stop_ids, model_->StopIdsOf(wanted));
  RF_RETURN_IF_ERROR(model_->CheckLogprobs(wanted));
  request.top_logprobs = wanted.top_logprobs();
  if (wanted.has_prompt_logprobs()) {
    request.score.emplace();
    request.score->set_prompt_top(wanted.prompt_logprobs());
  }
  if (wanted.mask_unused()) {
    RF_ASSIGN_OR_RETURN(request.usable_vocab, model_->UsableVocab());
  }
  request.max_tokens = TokenLimit(wanted);
  request.deadline = TimeoutOf(wanted.timeout_ms());
  request.priority = wanted.priority();
  request.cache_salt = wanted.cache_salt();
  return request;
}

absl::StatusOr<Request> CoordinatorService::ScoreRequestOf(
    const v1::ScoreRequest& wanted) {
  Request request;
  RF_ASSIGN_OR_RETURN(PromptForm prompt,
                      ReadPromptForm(*model_, wanted.prompt()));
  request.prompt_ids = std::move(prompt.ids);
  RF_RETURN_IF_ERROR(model_->CheckScore(wanted.options()));
  if (wanted.options().reference() && !reference_) {
    return absl::FailedPreconditionError(
        "reference: the workers hold no float32 copy to compare with, want "
        "`reference: true` in the cluster file, or --reference of the "
        "coordinator");
  }
  if (wanted.options().mtp() && without_mtp_) {
    return absl::FailedPreconditionError(
        "mtp: the workers hold no multi-token prediction layers, want "
        "`without_mtp: false` in the cluster file");
  }
  request.score = wanted.options();
  request.windows = true;
  request.deadline = TimeoutOf(wanted.timeout_ms());
  request.priority = wanted.priority();
  return request;
}

absl::StatusOr<std::shared_ptr<Job>> CoordinatorService::Submit(
    const v1::GenerateRequest& wanted) {
  TextRules rules = RulesOf(wanted);
  RF_RETURN_IF_ERROR(Annotate(CheckStops(rules.stops), "stop"));
  // Without a tokenizer a job has ids, and no text that could end.
  if (!rules.stops.empty()) RF_RETURN_IF_ERROR(model_->tokenizer().status());
  RF_ASSIGN_OR_RETURN(Request request, GenerateRequestOf(wanted, &rules));
  v1::StoredJob stored;
  if (rules.reasoning.has_value()) {
    stored.set_reasoning(static_cast<int32_t>(rules.reasoning->state));
  }
  RF_ASSIGN_OR_RETURN(
      const std::shared_ptr<Job> job,
      jobs_.Submit(std::move(request), wanted.detach(), std::move(rules)));
  if (!wanted.detach() || detached_ == nullptr) return job;
  *stored.mutable_request() = wanted;
  const std::vector<uint32_t>& ids = job->request().prompt_ids;
  stored.mutable_request()->mutable_prompt()->mutable_ids()->mutable_ids()->Add(
      ids.begin(), ids.end());
  stored.mutable_request()->set_seed(job->request().sampling.seed());
  stored.set_model(served_model_);
  stored.set_created_unix_ms(absl::ToUnixMillis(job->created()));
  if (wanted.timeout_ms() > 0) {
    stored.set_timeout_unix_ms(stored.created_unix_ms() + wanted.timeout_ms());
  }
  // The caller learns of no job that would not last. This thread does not wait
  // for the disk.
  job->HoldUntilStored();
  detached_->Keep(job, std::move(stored),
                  [this, job](const absl::Status& kept) {
                    if (!kept.ok()) {
                      detached_->Remove(job->id());  // It may be stored late.
                      jobs_.Leave(*job);
                    }
                    job->OnStored(kept);
                  });
  return job;
}

TextRules CoordinatorService::RulesOf(const v1::GenerateRequest& wanted) const {
  return {.tokenizer = model_->tokenizer().value_or(nullptr),
          .stops = {wanted.stop().begin(), wanted.stop().end()},
          .keeps_stop = wanted.include_stop_str_in_output()};
}

void CoordinatorService::KeepDetached(DetachedJobs* detached) {
  detached_ = detached;
  absl::StatusOr<std::vector<DetachedJobs::Kept>> jobs = detached->Load();
  absl::Status status = jobs.status();
  if (status.ok()) {
    for (DetachedJobs::Kept& kept : *jobs) {
      if (kept.job.model() != served_model_) {
        RF_LOG(kWarning, "job ", kept.id, " waits for the model ",
               kept.job.model());
        continue;
      }
      const std::string id = kept.id;
      const absl::Status restored = Restore(std::move(kept));
      if (restored.ok()) continue;
      RF_LOG(kError, "job ", id, " cannot go on: ", restored.message());
    }
  }
  if (!status.ok()) RF_LOG(kError, "detached jobs: ", status.message());
}

absl::Status CoordinatorService::Restore(DetachedJobs::Kept kept) {
  const v1::StoredJob& stored = kept.job;
  TextRules rules = RulesOf(stored.request());
  RF_ASSIGN_OR_RETURN(Request request,
                      GenerateRequestOf(stored.request(), &rules));
  if (stored.has_reasoning() && rules.tokenizer != nullptr) {
    const auto markers = MarkersOf(*rules.tokenizer);
    if (markers.has_value()) {
      rules.reasoning = {*markers,
                         static_cast<ReasoningState>(stored.reasoning())};
    }
  }
  request.id = kept.id;
  const absl::Time created = absl::FromUnixMillis(stored.created_unix_ms());
  JobProgress progress;
  const v1::StoredJob::End& end = stored.end();
  if (stored.has_end()) {
    progress.error = absl::Status(
        static_cast<absl::StatusCode>(end.error_code()), end.error());
    progress.state = progress.error.ok() ? v1::JOB_STATE_COMPLETED
                     : absl::IsCancelled(progress.error)
                         ? v1::JOB_STATE_CANCELLED
                         : v1::JOB_STATE_FAILED;
    if (end.started_unix_ms() > 0) {
      progress.started = absl::FromUnixMillis(end.started_unix_ms());
    }
    progress.ended = absl::FromUnixMillis(end.ended_unix_ms());
    progress.reason = end.reason();
    progress.timings = {.prompt_n = end.timings().prompt_n(),
                        .prompt_ms = end.timings().prompt_ms(),
                        .predicted_n = end.timings().predicted_n(),
                        .predicted_ms = end.timings().predicted_ms(),
                        .cached_n = end.timings().cached_n()};
  } else {
    for (const DrawnToken& token : kept.tokens) {
      request.drawn.push_back(token.id);
    }
    // The end of a job with these tokens may not have been stored.
    const std::vector<uint32_t>& ids = request.stop_ids;
    const bool stopped =
        !request.drawn.empty() &&
        std::find(ids.begin(), ids.end(), request.drawn.back()) != ids.end();
    if (stopped || (!request.drawn.empty() &&
                    request.drawn.size() >= request.max_tokens)) {
      progress.state = v1::JOB_STATE_COMPLETED;
      progress.ended = absl::Now();
      progress.reason =
          stopped ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH;
    }
    if (stored.timeout_unix_ms() > 0) {
      request.deadline = Deadline::After(
          absl::FromUnixMillis(stored.timeout_unix_ms()) - absl::Now());
    }
  }
  const size_t tokens = kept.tokens.size();
  const std::shared_ptr<Job> job =
      Job::Restore(std::move(request), std::move(rules), created,
                   std::move(progress), std::move(kept.tokens), end.score());
  if (!stored.has_end()) detached_->GoOn(job, stored, tokens);
  jobs_.Restore(job);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Job>> CoordinatorService::Submit(
    const v1::ScoreRequest& wanted) {
  RF_ASSIGN_OR_RETURN(Request request, ScoreRequestOf(wanted));
  return jobs_.Submit(std::move(request), /*kept=*/false, TextRules());
}

template <typename Event>
grpc::ServerWriteReactor<Event>* CoordinatorService::Stream(
    absl::StatusOr<std::shared_ptr<Job>> job,
    std::unique_ptr<JobEvents<Event>> events, bool owner) {
  if (!job.ok()) return new RefusedStream<Event>(job.status());
  const std::string id = (*job)->id();
  const bool ends = owner && !(*job)->kept();
  return JobStream<Event>::Start(
      *std::move(job), std::move(events), &calls_,
      [this, id, ends] {
        if (ends) jobs_.Cancel(id);
      },
      [this, id, ends] {
        if (ends) jobs_.table().Remove(id);
      });
}

grpc::ServerWriteReactor<v1::GenerateEvent>* CoordinatorService::Generate(
    grpc::CallbackServerContext*, const v1::GenerateRequest* request) {
  return Stream<v1::GenerateEvent>(Submit(*request),
                                   std::make_unique<GenerateEvents>(*fleet_),
                                   /*owner=*/true);
}

grpc::ServerWriteReactor<v1::ScoreEvent>* CoordinatorService::Score(
    grpc::CallbackServerContext*, const v1::ScoreRequest* request) {
  return Stream<v1::ScoreEvent>(
      Submit(*request), std::make_unique<ScoreEvents>(), /*owner=*/true);
}

grpc::ServerWriteReactor<v1::GenerateEvent>* CoordinatorService::WatchJob(
    grpc::CallbackServerContext*, const v1::WatchJobRequest* request) {
  absl::StatusOr<std::shared_ptr<Job>> job = jobs_.table().Find(request->id());
  if (job.ok() && (*job)->request().windows) {
    job = absl::FailedPreconditionError(absl::StrCat(
        "job ", request->id(), " scores a text, want one that generates"));
  }
  return Stream<v1::GenerateEvent>(std::move(job),
                                   std::make_unique<GenerateEvents>(*fleet_),
                                   /*owner=*/false);
}

grpc::Status CoordinatorService::ListJobs(grpc::ServerContext*,
                                          const v1::ListJobsRequest* request,
                                          v1::ListJobsResponse* response) {
  const uint32_t limit =
      std::min(request->page_size() == 0 ? kMostListed : request->page_size(),
               kMostListed);
  std::string after = request->page_token();
  if (!IsBatchId(after)) {
    uint64_t told = 0;
    if (!after.empty() && !absl::SimpleAtoi(after, &told)) {
      return cluster::ToGrpc(absl::InvalidArgumentError(
          absl::StrCat("page_token: '", after,
                       "', want the next_page_token of a response")));
    }
    for (const auto& [number, job] : jobs_.table().ListAfter(told)) {
      if (response->jobs_size() == static_cast<int>(limit)) {
        response->set_next_page_token(absl::StrCat(told));
        return grpc::Status::OK;
      }
      *response->add_jobs() = InfoOf(*job, job->progress());
      told = number;
    }
    after.clear();
    if (batches_.has_batches() &&
        response->jobs_size() == static_cast<int>(limit)) {
      response->set_next_page_token(absl::StrCat(told));
      return grpc::Status::OK;
    }
  }
  if (!batches_.has_batches()) return grpc::Status::OK;
  const int64_t left = int64_t{limit} - response->jobs_size();
  return cluster::ToGrpc(batches_.List(after, left, response,
                                       response->mutable_next_page_token()));
}

grpc::Status CoordinatorService::SubmitBatch(
    grpc::ServerContext* context,
    grpc::ServerReader<v1::SubmitBatchRequest>* reader,
    v1::GetJobResponse* response) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  return cluster::ToGrpc(batches_.Submit(
      [reader](v1::SubmitBatchRequest* message) {
        return reader->Read(message);
      },
      [context] { return context->IsCancelled(); }, response));
}

grpc::Status CoordinatorService::StreamResults(
    grpc::ServerContext* context, const v1::StreamResultsRequest* request,
    grpc::ServerWriter<v1::StreamResultsResponse>* writer) {
  const cluster::ActiveCalls::Scope scope(&calls_);
  absl::Status status = batches_.StreamResults(
      *request,
      [this, context] { return context->IsCancelled() || fleet_->has_ended(); },
      [writer](const v1::StreamResultsResponse& response) {
        return writer->Write(response);
      });
  if (absl::IsCancelled(status) && fleet_->has_ended()) {
    status = absl::UnavailableError("the coordinator is stopping");
  }
  return cluster::ToGrpc(status);
}

grpc::Status CoordinatorService::GetJob(grpc::ServerContext*,
                                        const v1::GetJobRequest* request,
                                        v1::GetJobResponse* response) {
  if (IsBatchId(request->id())) {
    return cluster::ToGrpc(batches_.Get(request->id(), response));
  }
  const auto found = jobs_.table().Find(request->id());
  if (!found.ok()) return cluster::ToGrpc(found.status());
  const Job& job = **found;
  // Read before the tokens: an end that is seen has all of them.
  const JobProgress progress = job.progress();
  *response->mutable_job() = InfoOf(job, progress);
  response->set_reason(progress.reason);
  if (progress.has_ended()) {
    *response->mutable_timings() =
        TimingsOf(progress.timings, fleet_->load_ms());
  }
  response->mutable_prompt_ids()->Add(job.request().prompt_ids.begin(),
                                      job.request().prompt_ids.end());
  *response->mutable_sampling() = job.request().sampling;
  TextStream text(job.text_rules());
  const auto append = [response](const AnswerPiece& piece) {
    response->mutable_text()->append(piece.text);
    response->mutable_reasoning()->append(piece.reasoning);
  };
  for (const DrawnToken& token : job.TokensFrom(0)) {
    response->add_ids(token.id);
    response->add_logprobs(token.logprob);
    append(text.Add(token.id));
  }
  if (progress.has_ended() && !text.stop().has_value()) append(text.Finish());
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::CancelJob(grpc::ServerContext*,
                                           const v1::CancelJobRequest* request,
                                           v1::CancelJobResponse*) {
  if (IsBatchId(request->id())) {
    return cluster::ToGrpc(batches_.Cancel(request->id()));
  }
  const auto job = jobs_.table().Find(request->id());
  if (!job.ok()) return cluster::ToGrpc(job.status());
  const bool had_ended = (*job)->progress().has_ended();
  if (!had_ended && (*job)->kept() && detached_ != nullptr) {
    // A coordinator that dies next must not run it again.
    const absl::Status noted = detached_->NoteCancelled(request->id());
    if (!noted.ok()) return cluster::ToGrpc(noted);
  }
  jobs_.Cancel(request->id());
  if (!had_ended) return grpc::Status::OK;
  jobs_.table().Remove(request->id());
  if (detached_ != nullptr) detached_->Remove(request->id());
  return grpc::Status::OK;
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
  response->set_batch_trouble(std::string(batches_.trouble().message()));
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
