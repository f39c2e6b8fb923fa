// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/jobs.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/run/batch_file.h"
#include "coordinator/cli/run/generated.h"
#include "coordinator/cli/session.h"
#include "coordinator/cli/table.h"
#include "coordinator/cli/value_checks.h"

namespace ringfleet::coordinator::cli {
namespace {

struct JobOptions {
  SessionOptions session;
  std::string id;
  bool output = false;
  bool errors = false;
  bool unordered = false;
  bool follow = false;
  bool json = false;
};

constexpr char kJobsFooter[] = R"(
Jobs that wait or run are listed, detached ones that have ended, and batches.

Examples:
  ringfleet jobs --cluster cluster.yaml
  ringfleet jobs --cluster cluster.yaml --json
)";

constexpr char kShowFooter[] = R"(
Without options: the job's state and counts. --output prints its result, one
line of JSON in the form of `submit --json`; --follow streams its text until it
ends. The exit code of a job that failed is the job's.

Of a batch, --output prints the lines that have a result so far, in the order of
the input, and --errors those that failed; with --follow also those that come,
until the batch has ended. A connection that breaks is made again. The exit code
of a batch that ran to its end is 0, also if lines have failed.

Examples:
  ringfleet show 5e2f0001 --cluster cluster.yaml
  ringfleet show 5e2f0001 --cluster cluster.yaml --output
  ringfleet show 5e2f0001 --cluster cluster.yaml --follow
  ringfleet show batch_5e2f --cluster cluster.yaml --output >answers.jsonl
)";

constexpr char kCancelFooter[] = R"(
A job that waits or runs ends at the next step. The result of one that has ended
is dropped. A batch that is cancelled keeps the results of its lines; one that
has ended cannot be cancelled.

Examples:
  ringfleet cancel 5e2f0001 --cluster cluster.yaml
)";

std::string StateName(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_RUNNING:
      return "running";
    case v1::JOB_STATE_COMPLETED:
      return "completed";
    case v1::JOB_STATE_FAILED:
      return "failed";
    case v1::JOB_STATE_CANCELLED:
      return "cancelled";
    default:
      return "waiting";
  }
}

std::string KindName(v1::JobKind kind) {
  switch (kind) {
    case v1::JOB_KIND_SCORE:
      return "score";
    case v1::JOB_KIND_BATCH:
      return "batch";
    default:
      return "generate";
  }
}

// The state as users know it: a batch has more of them than other jobs.
std::string StateName(const v1::JobInfo& job) {
  return job.has_batch() ? job.batch().state() : StateName(job.state());
}

Json ToJson(const v1::JobInfo& job) {
  const bool failed = job.state() == v1::JOB_STATE_FAILED ||
                      job.state() == v1::JOB_STATE_CANCELLED;
  if (job.has_batch()) {
    return {{"id", job.id()},
            {"name", job.batch().name()},
            {"kind", KindName(job.kind())},
            {"state", StateName(job)},
            {"created", job.created_unix_ms() / 1000},
            {"total", job.batch().total()},
            {"completed", job.batch().completed()},
            {"failed", job.batch().failed()}};
  }
  return {{"id", job.id()},
          {"name", ""},
          {"kind", KindName(job.kind())},
          {"state", StateName(job.state())},
          {"created", job.created_unix_ms() / 1000},
          {"total", 1},
          {"completed", job.state() == v1::JOB_STATE_COMPLETED ? 1 : 0},
          {"failed", failed ? 1 : 0}};
}

// How long a job has taken, or has waited and run so far.
std::string AgeOf(const v1::JobInfo& job) {
  const absl::Time end = job.ended_unix_ms() == 0
                             ? absl::Now()
                             : absl::FromUnixMillis(job.ended_unix_ms());
  const absl::Duration age = end - absl::FromUnixMillis(job.created_unix_ms());
  return absl::FormatDuration(absl::Trunc(
      age, age < absl::Seconds(10) ? absl::Milliseconds(1) : absl::Seconds(1)));
}

std::string RemarkOf(const v1::JobInfo& job) {
  if (job.has_batch()) return BatchRemark(job);
  return job.error().empty() ? job.waits_for() : job.error();
}

// Returns a line that tells when a batch expires. Empty: never, or it has
// ended.
std::string ExpiryOf(const v1::JobInfo& job) {
  const int64_t expires_ms = job.batch().expires_unix_ms();
  if (expires_ms == 0 || job.ended_unix_ms() != 0) return "";
  const absl::Duration left = absl::FromUnixMillis(expires_ms) - absl::Now();
  return absl::StrCat(
      "expires in ",
      absl::FormatDuration(
          absl::Trunc(std::max(left, absl::ZeroDuration()), absl::Seconds(1))),
      "\n");
}

// The status that a job ended with.
absl::Status ErrorOf(const v1::JobInfo& job) {
  return job.error_code() == 0
             ? absl::OkStatus()
             : absl::Status(static_cast<absl::StatusCode>(job.error_code()),
                            job.error());
}

absl::StatusOr<v1::ListJobsResponse> ListJobs(Session& session) {
  v1::ListJobsResponse all;
  v1::ListJobsRequest request;
  do {
    InterruptibleCall call;
    v1::ListJobsResponse page;
    RF_RETURN_IF_ERROR(cluster::FromGrpc(
        session.stub().ListJobs(call.context(), request, &page)));
    all.mutable_jobs()->MergeFrom(page.jobs());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::Status RunJobs(const JobOptions& options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(options.session));
  const absl::StatusOr<v1::ListJobsResponse> response = ListJobs(*session);
  return session->Finish(response.status(), invocation, [&] {
    if (options.json) {
      Json list = Json::array();
      for (const v1::JobInfo& job : response->jobs()) {
        list.push_back(ToJson(job));
      }
      return PrintJson(list);
    }
    Table table({{.name = "id"},
                 {.name = "kind"},
                 {.name = "state"},
                 {.name = "time", .right = true},
                 {.name = "prompt", .right = true},
                 {.name = "tokens", .right = true},
                 {.name = "remark"}});
    for (const v1::JobInfo& job : response->jobs()) {
      table.Add(
          {job.id(), KindName(job.kind()), StateName(job), AgeOf(job),
           absl::StrCat(job.prompt_n()),
           absl::StrCat(job.kind() == v1::JOB_KIND_SCORE ? job.scored_n()
                                                         : job.predicted_n()),
           RemarkOf(job)});
    }
    return PrintText(table.empty() ? "no jobs\n" : table.text());
  });
}

absl::StatusOr<v1::GetJobResponse> GetJob(const JobOptions& options,
                                          Session& session) {
  InterruptibleCall call;
  v1::GetJobRequest request;
  request.set_id(options.id);
  v1::GetJobResponse response;
  RF_RETURN_IF_ERROR(cluster::FromGrpc(
      session.stub().GetJob(call.context(), request, &response)));
  return response;
}

// The result as `submit --json` has it.
Json ResultOf(const v1::GetJobResponse& response) {
  Generated generated;
  generated.accepted.set_id(response.job().id());
  *generated.accepted.mutable_prompt_ids() = response.prompt_ids();
  generated.ids = JsonArray(response.ids());
  generated.logprobs = JsonArray(response.logprobs());
  generated.text = response.text();
  generated.reasoning = response.reasoning();
  generated.finished.set_reason(response.reason());
  *generated.finished.mutable_timings() = response.timings();
  return ToJson(generated, /*with_id=*/true);
}

// Streams the text of a job until it ends.
absl::Status Follow(const JobOptions& options, Session& session) {
  InterruptibleCall call;
  v1::WatchJobRequest request;
  request.set_id(options.id);
  const std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader =
      session.stub().WatchJob(call.context(), request);
  const bool prints = !options.json && !options.output;
  return ReadEvents(call, *reader, prints ? PrintPiece : nullptr).status();
}

Json DetailsOf(const v1::BatchInfo& batch) {
  Json errors = Json::array();
  for (const v1::BatchInfo::LineError& error : batch.errors()) {
    errors.push_back(
        {{"line", error.line() == 0 ? Json() : Json(error.line())},
         {"code", error.code()},
         {"param", error.param().empty() ? Json() : Json(error.param())},
         {"message", error.message()}});
  }
  return {{"priority", batch.priority()},
          {"expires", batch.expires_unix_ms() == 0
                          ? Json()
                          : Json(batch.expires_unix_ms() / 1000)},
          {"in_flight", batch.in_flight()},
          {"lines_per_second", batch.lines_per_second()},
          {"cached_n", batch.cached_tokens()},
          {"input_file", batch.input_file()},
          {"output_file", batch.output_file()},
          {"error_file", batch.error_file()},
          {"errors", errors}};
}

// Prints the results of a batch that were asked for.
absl::Status PrintResults(const JobOptions& options, Session& session,
                          const v1::JobInfo& job) {
  if (options.errors) {
    const Json details = DetailsOf(job.batch());
    for (const Json& error : details["errors"]) {
      RF_RETURN_IF_ERROR(PrintJson(error));
    }
  }
  ResultOptions results;
  results.id = options.id;
  results.unordered = options.unordered;
  results.completed = !options.errors;
  results.failed = !options.output || options.errors;
  results.follow = options.follow;
  const bool prints = options.output || options.errors;
  return ReadResults(session, results, [prints](absl::string_view line) {
    return prints ? PrintText(line) : absl::OkStatus();
  });
}

absl::Status PrintState(const JobOptions& options,
                        const v1::GetJobResponse& response) {
  const v1::JobInfo& job = response.job();
  if (options.output) return PrintJson(ResultOf(response));
  if (options.errors) {
    return job.error().empty()
               ? absl::OkStatus()
               : PrintJson({{"id", job.id()}, {"error", job.error()}});
  }
  if (options.json) {
    Json document = ToJson(job);
    document["waits_for"] = job.waits_for();
    document["error"] = job.error();
    document["prompt_n"] = job.prompt_n();
    document["predicted_n"] = job.predicted_n();
    document["scored_n"] = job.scored_n();
    if (job.has_batch()) document.update(DetailsOf(job.batch()));
    return PrintJson(document);
  }
  if (options.follow && !job.has_batch()) return absl::OkStatus();
  const std::string remark = RemarkOf(job);
  const std::string state = absl::StrCat(
      "job ", job.id(), ": ", KindName(job.kind()), ", ", StateName(job),
      job.ended_unix_ms() == 0 ? " for " : " after ", AgeOf(job), ", prompt ",
      job.prompt_n(), " tokens, ", job.predicted_n(), " generated");
  return PrintText(absl::StrCat(
      OneLine(state), remark.empty() ? "" : "\n", OneLine(remark), "\n",
      ExpiryOf(job),
      job.batch().errors().empty() ? "" : "--errors shows them\n"));
}

// Shows a batch of which `response` is the state so far.
absl::Status ShowBatch(const JobOptions& options, Session& session,
                       v1::GetJobResponse response, Invocation& invocation) {
  absl::Status status;
  const bool prints = options.output || options.errors;
  if (prints || options.follow) {
    status = PrintResults(options, session, response.job());
  }
  if (status.ok() && options.follow) {
    auto ended = GetJob(options, session);
    status = ended.status();
    if (ended.ok()) response = *std::move(ended);
  }
  return session.Finish(status, invocation, [&] {
    if (!prints) RF_RETURN_IF_ERROR(PrintState(options, response));
    invocation.json = false;
    // A batch that did not run to its end is an error to who waits for it.
    return options.follow ? ErrorOf(response.job()) : absl::OkStatus();
  });
}

absl::Status RunShow(const JobOptions& options, Invocation& invocation) {
  if (options.unordered && !options.output && !options.errors) {
    return absl::InvalidArgumentError(
        "usage: --unordered without --output or --errors, want one of them");
  }
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(options.session));
  absl::StatusOr<v1::GetJobResponse> response = GetJob(options, *session);
  if (response.ok() && response->job().has_batch()) {
    return ShowBatch(options, *session, *std::move(response), invocation);
  }
  absl::Status status = response.status();
  if (status.ok() && options.unordered) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "usage: --unordered with job ", options.id, ", want it with a batch"));
  }
  if (status.ok() && options.follow) {
    status = Follow(options, *session);
    if (status.ok()) {
      response = GetJob(options, *session);
      status = response.status();
    }
  }
  // The result of a job that failed is its error.
  if (status.ok() && options.output) status = ErrorOf(response->job());
  return session->Finish(status, invocation,
                         [&] { return PrintState(options, *response); });
}

absl::Status RunCancel(const JobOptions& options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(options.session));
  InterruptibleCall call;
  v1::CancelJobRequest request;
  request.set_id(options.id);
  v1::CancelJobResponse response;
  const absl::Status status = cluster::FromGrpc(
      session->stub().CancelJob(call.context(), request, &response));
  return session->Finish(status, invocation, [&] {
    return options.json ? PrintJson({{"id", options.id}}) : absl::OkStatus();
  });
}

// Adds a verb of the group "Jobs" with the options that all of them have.
CLI::App* AddJobVerb(CLI::App& app, const char* name, const char* description,
                     const char* footer,
                     const std::shared_ptr<JobOptions>& options,
                     absl::Status (*run)(const JobOptions&, Invocation&),
                     Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->group("Jobs");
  verb->footer(footer);
  options->session.runs_jobs = false;
  options->session.local = 0;
  AddFleetChoice(*verb, options->session.fleet);
  verb->add_flag("--json", options->json, "One JSON document on stdout");
  verb->callback([options, run, &invocation] {
    invocation.json = options->json;
    invocation.run = [options, run, &invocation] {
      return run(*options, invocation);
    };
  });
  return verb;
}

void AddIdOption(CLI::App& verb, JobOptions& options) {
  verb.add_option("ID", options.id, "Id of the job")
      ->required()
      ->check(Utf8Text());
}

}  // namespace

void RegisterJobs(CLI::App& app, Invocation& invocation) {
  AddJobVerb(app, "jobs", "List a fleet's jobs", kJobsFooter,
             std::make_shared<JobOptions>(), RunJobs, invocation);
}

void RegisterShow(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<JobOptions>();
  CLI::App* verb = AddJobVerb(app, "show", "Show a job and its result",
                              kShowFooter, options, RunShow, invocation);
  AddIdOption(*verb, *options);
  auto* output = verb->add_flag("--output", options->output,
                                "Print the results, each a line of JSON");
  verb->add_flag("--errors", options->errors,
                 "Print the errors, each a line of JSON")
      ->excludes(output);
  verb->add_flag("--unordered", options->unordered,
                 "Of a batch: as the results come, not in the input's order");
  verb->add_flag("--follow", options->follow, "Wait for the job's end");
}

void RegisterCancel(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<JobOptions>();
  CLI::App* verb = AddJobVerb(app, "cancel", "End a job", kCancelFooter,
                              options, RunCancel, invocation);
  AddIdOption(*verb, *options);
}

}  // namespace ringfleet::coordinator::cli
