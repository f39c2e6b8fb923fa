// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/batch_calls.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/batch/batch_upload.h"

namespace ringfleet::coordinator {
namespace {

// How long a caller who has left goes unnoticed.
constexpr absl::Duration kPoll = absl::Milliseconds(200);
constexpr absl::Duration kLongestCancel = absl::Seconds(10);

v1::JobState StateOf(const BatchRecord& batch) {
  if (batch.state == kBatchValidating) return v1::JOB_STATE_WAITING;
  if (batch.state == kBatchCompleted) return v1::JOB_STATE_COMPLETED;
  if (batch.state == kBatchFailed || batch.state == kBatchExpired) {
    return v1::JOB_STATE_FAILED;
  }
  if (batch.state == kBatchCancelled) return v1::JOB_STATE_CANCELLED;
  return v1::JOB_STATE_RUNNING;
}

void AddErrors(const std::string& json, v1::BatchInfo* info) {
  const auto errors =
      nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!errors.is_array()) return;
  for (const nlohmann::json& error : errors) {
    v1::BatchInfo::LineError* const line = info->add_errors();
    line->set_code(error["code"].get<std::string>());
    line->set_message(error["message"].get<std::string>());
    if (error["param"].is_string()) {
      line->set_param(error["param"].get<std::string>());
    }
    if (error["line"].is_number()) line->set_line(error["line"].get<int64_t>());
  }
}

// Waits for the result of a call that answers through a function.
class AwaitedBatch {
 public:
  Batches::Created Done() {
    return [state = state_](absl::StatusOr<BatchRecord> batch) {
      MutexLock lock(&state->mu);
      state->batch = std::move(batch);
      state->changed.NotifyAll();
    };
  }
  absl::StatusOr<BatchRecord> Wait(const std::function<bool()>& cancelled) {
    MutexLock lock(&state_->mu);
    while (!state_->batch.has_value()) {
      state_->changed.WaitUntil(
          &state_->mu,
          std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kPoll));
      if (cancelled()) return absl::CancelledError("the caller has left");
    }
    return *std::move(state_->batch);
  }

 private:
  struct State {
    Mutex mu;
    CondVar changed;
    std::optional<absl::StatusOr<BatchRecord>> batch ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

absl::Status BatchCalls::Check() const {
  if (batches_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("batches: the coordinator has no store, want state_dir",
                   missing_.ok() ? "" : "; ", missing_.message()));
}

absl::StatusOr<BatchRecord> BatchCalls::Find(const std::string& id) {
  RF_RETURN_IF_ERROR(Check());
  BatchRecord batch;
  RF_RETURN_IF_ERROR(batches_->store().Read([&](Database& database) {
    RF_ASSIGN_OR_RETURN(batch, FindBatch(database, id, ""));
    return absl::OkStatus();
  }));
  return batch;
}

void BatchCalls::Describe(const BatchRecord& batch, v1::JobInfo* info) const {
  info->set_id(batch.id);
  info->set_kind(v1::JOB_KIND_BATCH);
  info->set_state(StateOf(batch));
  info->set_detached(true);
  info->set_created_unix_ms(batch.created_ms);
  info->set_started_unix_ms(batch.in_progress_ms);
  info->set_ended_unix_ms(batch.ended_ms());
  const auto count = [](int64_t tokens) {
    return static_cast<uint32_t>(
        std::min<int64_t>(tokens, std::numeric_limits<uint32_t>::max()));
  };
  info->set_prompt_n(count(batch.prompt_tokens));
  info->set_predicted_n(count(batch.completion_tokens));
  const absl::Status trouble = batches_->store().trouble();
  if (!batch.has_ended() && !trouble.ok()) {
    info->set_waits_for(std::string(trouble.message()));
  } else if (!batch.has_ended() && batch.model != batches_->served_name()) {
    info->set_waits_for(absl::StrCat("waits for the model ", batch.model));
  }
  if (batch.state == kBatchFailed) {
    info->set_error_code(
        static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
    info->set_error(batch.errors.empty() ? "the input was deleted"
                                         : "the input has errors");
  } else if (batch.state == kBatchExpired) {
    info->set_error_code(
        static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded));
    info->set_error("the batch has expired");
  } else if (batch.state == kBatchCancelled) {
    info->set_error_code(static_cast<uint32_t>(absl::StatusCode::kCancelled));
    info->set_error("the batch was cancelled");
  }
  v1::BatchInfo* const told = info->mutable_batch();
  told->set_name(batch.name);
  told->set_state(batch.state);
  told->set_priority(static_cast<int32_t>(batch.priority));
  told->set_total(batch.total);
  told->set_completed(batch.completed);
  told->set_failed(batch.failed);
  const BatchPace pace = batches_->PaceOf(batch.id);
  told->set_in_flight(pace.in_flight);
  told->set_lines_per_second(pace.lines_per_second);
  told->set_prompt_tokens(batch.prompt_tokens);
  told->set_cached_tokens(batch.cached_tokens);
  told->set_completion_tokens(batch.completion_tokens);
  told->set_expires_unix_ms(batch.expires_ms);
  told->set_input_file(batch.input_file);
  told->set_output_file(batch.output_file);
  told->set_error_file(batch.error_file);
}

absl::Status BatchCalls::Submit(
    const std::function<bool(v1::SubmitBatchRequest*)>& read,
    const std::function<bool()>& cancelled, v1::GetJobResponse* response) {
  RF_RETURN_IF_ERROR(Check());
  v1::SubmitBatchRequest message;
  if (!read(&message) || !message.has_batch()) {
    return absl::InvalidArgumentError(
        "no batch in the first message, want one");
  }
  const v1::SubmitBatchRequest::NewBatch wanted = message.batch();
  NewBatch batch;
  batch.name = wanted.name();
  batch.endpoint = wanted.endpoint();
  if (!wanted.key().empty()) batch.client_key = wanted.key();
  if (wanted.priority() != 0) batch.priority = wanted.priority();
  batch.window_seconds = (int64_t{wanted.timeout_ms()} + 999) / 1000;
  FileRecord file;
  file.purpose = "batch";
  file.name = wanted.file_name();
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<BatchUpload> upload,
                      BatchUpload::Start(&batches_->store(), file));
  while (read(&message)) {
    if (!message.has_data()) {
      return absl::InvalidArgumentError("a second batch, want data");
    }
    RF_RETURN_IF_ERROR(upload->Append(message.data()));
  }
  if (cancelled()) return absl::CancelledError("the caller has left");
  RF_ASSIGN_OR_RETURN(file, upload->Finish(batches_->upload_seconds()));
  batch.input_file = file.id;
  AwaitedBatch awaited;
  batches_->Create(std::move(batch), awaited.Done());
  const absl::StatusOr<BatchRecord> made = awaited.Wait(cancelled);
  // The batch has the bytes under a name of its own.
  batches_->DeleteFile(file.id, "", [](const absl::Status&) {});
  RF_RETURN_IF_ERROR(made.status());
  uint64_t version = 0;
  while (true) {
    RF_ASSIGN_OR_RETURN(const BatchRecord now, Find(made->id));
    if (now.state != kBatchValidating || now.model != batches_->served_name()) {
      break;
    }
    if (cancelled()) return absl::CancelledError("the caller has left");
    batches_->WaitForChange(&version, kPoll);
  }
  return Get(made->id, response);
}

absl::Status BatchCalls::StreamResults(
    const v1::StreamResultsRequest& request,
    const std::function<bool()>& cancelled,
    const std::function<bool(const v1::StreamResultsResponse&)>& write) {
  OutputOptions options;
  const bool by_commits =
      request.order() == v1::StreamResultsRequest::ORDER_COMMITS;
  options.order = by_commits ? OutputOptions::Order::kCommits
                             : OutputOptions::Order::kInput;
  options.after = request.after();
  if (request.failed() != request.completed())
    options.failed = request.failed();
  uint64_t version = 0;
  while (!cancelled()) {
    RF_ASSIGN_OR_RETURN(const BatchRecord batch, Find(request.id()));
    std::vector<OutputRecord> outputs;
    int64_t first_open = 0;
    RF_RETURN_IF_ERROR(batches_->store().Read([&](Database& database) {
      RF_ASSIGN_OR_RETURN(outputs, ListOutputs(database, batch.id, options));
      if (!by_commits && request.follow()) {
        RF_ASSIGN_OR_RETURN(first_open, FirstOpenLine(database, batch.id));
      }
      return absl::OkStatus();
    }));
    v1::StreamResultsResponse response;
    for (OutputRecord& output : outputs) {
      if (first_open > 0 && output.number > first_open) break;
      options.after = by_commits ? output.sequence : output.number;
      v1::StreamResultsResponse::Result* const result = response.add_results();
      result->set_sequence(output.sequence);
      result->set_line(output.number);
      result->set_failed(output.failed);
      result->set_text(std::move(output.text));
    }
    if (response.results_size() > 0) {
      if (!write(response)) return absl::CancelledError("the caller has left");
      continue;
    }
    if (!request.follow() || batch.has_ended()) return absl::OkStatus();
    // Nothing more will come.
    if (batches_->store().is_lost()) return batches_->store().trouble();
    batches_->WaitForChange(&version, kPoll);
  }
  return absl::CancelledError("the caller has left");
}

absl::Status BatchCalls::Get(const std::string& id,
                             v1::GetJobResponse* response) {
  RF_ASSIGN_OR_RETURN(const BatchRecord batch, Find(id));
  Describe(batch, response->mutable_job());
  AddErrors(batch.errors, response->mutable_job()->mutable_batch());
  return absl::OkStatus();
}

absl::Status BatchCalls::List(const std::string& after, int64_t limit,
                              v1::ListJobsResponse* response,
                              std::string* next) {
  RF_RETURN_IF_ERROR(Check());
  PageOptions page;
  page.after = after;
  page.limit = limit + 1;
  page.ascending = true;
  std::vector<BatchRecord> batches;
  RF_RETURN_IF_ERROR(batches_->store().Read([&](Database& database) {
    RF_ASSIGN_OR_RETURN(batches, ListBatches(database, page));
    return absl::OkStatus();
  }));
  const bool more = static_cast<int64_t>(batches.size()) > limit;
  if (more) batches.resize(static_cast<size_t>(limit));
  for (const BatchRecord& batch : batches) {
    Describe(batch, response->add_jobs());
  }
  *next = more ? batches.back().id : "";
  return absl::OkStatus();
}

absl::Status BatchCalls::Cancel(const std::string& id) {
  RF_RETURN_IF_ERROR(Check());
  AwaitedBatch awaited;
  batches_->Cancel(id, "", awaited.Done());
  const auto deadline = cluster::Deadline::After(kLongestCancel);
  const auto batch = awaited.Wait([deadline] { return deadline.Expired(); });
  if (absl::IsCancelled(batch.status())) {
    return absl::UnavailableError("the store's disk does not answer");
  }
  RF_RETURN_IF_ERROR(batch.status());
  if (batch->has_ended()) {
    return absl::FailedPreconditionError(
        absl::StrCat("batch ", id, " was cancelled before"));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator
