// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/batch_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output_file.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/cli/value_checks.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kStandardStream[] = "-";  // Stands for stdin or stdout.
constexpr size_t kPartBytes = size_t{1} << 20;
// A coordinator that comes back does so within this time.
constexpr std::chrono::minutes kLongestAway{10};
constexpr std::chrono::minutes kLongestTry{1};
constexpr std::chrono::milliseconds kRetry{500};
constexpr std::chrono::milliseconds kSleepLook{50};
constexpr std::chrono::seconds kProgressTime{1};
constexpr std::chrono::seconds kStateTimeout{5};

absl::StatusOr<v1::GetJobResponse> StateOf(Session& session,
                                           const std::string& id) {
  InterruptibleCall call;
  call.context()->set_deadline(std::chrono::system_clock::now() +
                               kStateTimeout);
  v1::GetJobRequest request;
  request.set_id(id);
  v1::GetJobResponse response;
  RF_RETURN_IF_ERROR(cluster::FromGrpc(
      session.stub().GetJob(call.context(), request, &response)));
  return response;
}

// Reads the next bytes of a file, or of stdin. Empty: its end.
absl::StatusOr<std::string> ReadPart(const std::string& name, std::FILE* file) {
  if (name == kStandardStream) return ReadStdinPart();
  std::string part(kPartBytes, '\0');
  part.resize(std::fread(part.data(), 1, part.size(), file));
  if (part.empty() && std::ferror(file) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("file ", name, ": cannot be read"));
  }
  return part;
}

// Sends the file. Shows how much of it has gone.
absl::StatusOr<v1::GetJobResponse> Send(Session& session,
                                        const BatchOptions& options,
                                        const JobSettings& job) {
  RF_ASSIGN_OR_RETURN(const uint32_t timeout_ms, TimeoutMs(job.timeout));
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(nullptr, &std::fclose);
  uint64_t total = 0;
  if (options.file != kStandardStream) {
    file.reset(std::fopen(options.file.c_str(), "rbe"));
    if (file == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("file ", options.file, ": ", std::strerror(errno)));
    }
    std::fseek(file.get(), 0, SEEK_END);
    total = static_cast<uint64_t>(std::max(std::ftell(file.get()), 0L));
    std::rewind(file.get());
  }
  InterruptibleCall call;
  v1::GetJobResponse response;
  const auto writer = session.stub().SubmitBatch(call.context(), &response);
  v1::SubmitBatchRequest message;
  v1::SubmitBatchRequest::NewBatch& batch = *message.mutable_batch();
  batch.set_name(options.name);
  batch.set_endpoint(options.endpoint);
  batch.set_key(options.key);
  batch.set_priority(job.priority);
  batch.set_timeout_ms(timeout_ms);
  // A file may have any name.
  AppendLossy(options.file.substr(options.file.find_last_of('/') + 1),
              batch.mutable_file_name());
  Progress progress;
  if (total == 0) progress.Phase("sending");
  absl::StatusOr<std::string> part = "";
  uint64_t sent = 0;
  // The server ends the call early if it refuses the file.
  for (bool open = writer->Write(message); open;) {
    part = ReadPart(options.file, file.get());
    if (!part.ok() || part->empty()) break;
    sent += part->size();
    message.set_data(*std::move(part));
    open = writer->Write(message);
    if (total > 0) progress.Bytes("sending", sent, std::max(total, sent));
  }
  if (!part.ok()) {
    call.context()->TryCancel();
    writer->Finish();
    return part.status();
  }
  progress.Phase("checking the lines");
  writer->WritesDone();
  RF_RETURN_IF_ERROR(cluster::FromGrpc(writer->Finish()));
  return response;
}

// Prints the errors of a batch's lines, and returns the one of the batch.
absl::Status LineErrorsOf(const std::string& file, const v1::JobInfo& job) {
  const auto& errors = job.batch().errors();
  const auto lines = std::count_if(
      errors.begin(), errors.end(),
      [](const v1::BatchInfo::LineError& error) { return error.line() > 0; });
  if (lines == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ", errors.empty() ? job.error() : errors.at(0).message()));
  }
  for (const v1::BatchInfo::LineError& error : errors) {
    const std::string place =
        error.line() == 0 ? file : absl::StrCat(file, ":", error.line());
    std::fprintf(stderr, "%s\n",
                 OneLine(absl::StrCat(place, ": ", error.message())).c_str());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      file, ": ", lines, lines == 1 ? " line has" : " lines have", " errors",
      errors.size() < kMostCheckErrors ? "" : ", and the rest was not checked",
      ", nothing was run"));
}

bool IsPrompt(absl::string_view option) {
  return option == "--prompt" || option == "--file" || option == "--prompt-ids";
}

// Returns what to do about an option that has no meaning beside a file.
const char* AdviceOn(const std::string& option) {
  if (IsPrompt(option)) return "want one of them";
  if (option == "--detach") return "a batch is always detached";
  if (option == "--trace") return "want it beside a prompt";
  return "want it in the lines themselves";
}

// Waits for another try. CANCELLED: an interrupt.
absl::Status Sleep(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    std::this_thread::sleep_for(kSleepLook);
  }
  return absl::OkStatus();
}

// Returns two digits, or all of a number that has more before its point.
std::string RateText(double rate) {
  return rate < 10 ? absl::StrFormat("%.2g", rate)
                   : absl::StrFormat("%.0f", rate);
}

// Returns "12 of 400 lines, 2 failed, 3.1 lines/s, 2m left" and what the batch
// waits for.
std::string CountsOf(const v1::JobInfo& job) {
  const v1::BatchInfo& batch = job.batch();
  std::vector<std::string> parts;
  if (batch.total() > 0) {
    parts.push_back(absl::StrCat(batch.completed() + batch.failed(), " of ",
                                 batch.total(),
                                 batch.total() == 1 ? " line" : " lines"));
  }
  if (batch.failed() > 0) {
    parts.push_back(absl::StrCat(batch.failed(), " failed"));
  }
  const int64_t left = batch.total() - batch.completed() - batch.failed();
  const bool runs = job.ended_unix_ms() == 0 && job.waits_for().empty();
  if (runs && left > 0 && batch.lines_per_second() > 0) {
    const auto seconds = static_cast<double>(left) / batch.lines_per_second();
    parts.push_back(absl::StrFormat(
        "%s lines/s, %s left", RateText(batch.lines_per_second()),
        absl::FormatDuration(
            absl::Ceil(absl::Seconds(seconds), absl::Seconds(1)))));
  }
  if (!job.waits_for().empty()) parts.push_back(job.waits_for());
  return absl::StrJoin(parts, ", ");
}

// Asks for a batch's state in a thread of its own, and shows it. Tells whether
// the coordinator is away where there is no terminal, too.
class ShownProgress {
 public:
  ShownProgress(Session& session, std::string id)
      : thread_([this, &session, id = std::move(id)] { Loop(session, id); }) {}
  ~ShownProgress() {
    ending_ = true;
    thread_.join();
  }

  // Calls `print` while nothing is shown.
  absl::Status Print(absl::FunctionRef<absl::Status()> print) {
    const std::lock_guard<std::mutex> lock(mu_);
    progress_.Hide();
    const absl::Status status = print();
    progress_.Show();
    return status;
  }
  // The coordinator has answered.
  void NoteAnswer() {
    const std::lock_guard<std::mutex> lock(mu_);
    SetAway(false);
  }

 private:
  void Loop(Session& session, const std::string& id) {
    while (!ending_) {
      Draw(StateOf(session, id));
      const auto next = Clock::now() + kProgressTime;
      while (!ending_ && Clock::now() < next) {
        std::this_thread::sleep_for(kSleepLook);
      }
    }
  }
  void Draw(const absl::StatusOr<v1::GetJobResponse>& state) {
    const std::lock_guard<std::mutex> lock(mu_);
    if (ending_) return;
    if (!state.ok()) {
      if (absl::IsUnavailable(state.status()) ||
          absl::IsDeadlineExceeded(state.status())) {
        SetAway(true);
      }
      return;
    }
    SetAway(false);
    const v1::JobInfo& job = state->job();
    const v1::BatchInfo& batch = job.batch();
    if (batch.state() != "in_progress" || batch.total() <= 0) {
      progress_.Phase(BatchSummary(job));
      return;
    }
    progress_.Share(static_cast<uint64_t>(batch.completed() + batch.failed()),
                    static_cast<uint64_t>(batch.total()), CountsOf(job));
  }
  void SetAway(bool away) {
    if (std::exchange(away_, away) == away) return;
    if (away) progress_.Phase("waiting for the coordinator");
    if (progress_.on_terminal()) return;
    std::fputs(away ? "the coordinator is away: waiting for it\n"
                    : "the coordinator is back\n",
               stderr);
  }

  std::atomic<bool> ending_{false};
  std::mutex mu_;  // Guards progress_ and away_.
  Progress progress_;
  bool away_ = false;
  std::thread thread_;
};

}  // namespace

std::string BatchSummary(const v1::JobInfo& job) {
  const std::string counts = CountsOf(job);
  return absl::StrCat(job.batch().state(), counts.empty() ? "" : ", ", counts);
}

std::string BatchRemark(const v1::JobInfo& job) {
  const v1::BatchInfo& batch = job.batch();
  const std::string name =
      batch.name().empty() ? "" : absl::StrCat(batch.name(), ": ");
  if (job.error().empty()) return name + BatchSummary(job);
  // All lines have a result then, which may be the end of the batch.
  const std::string counts =
      batch.total() == 0
          ? ""
          : absl::StrCat(batch.completed(), " of ", batch.total(),
                         batch.total() == 1 ? " line" : " lines",
                         " completed, ");
  return absl::StrCat(name, counts, job.error());
}

void AddBatchOptions(CLI::App& app, const std::vector<std::string>& shared,
                     BatchOptions& options) {
  for (const CLI::Option* const option : app.get_options()) {
    const std::string name = option->get_name();
    if (std::find(shared.begin(), shared.end(), name) == shared.end()) {
      options.others.push_back(option);
    }
  }
  app.add_option(
      "FILE", options.file,
      "A batch: one request a line, in the form of OpenAI's batches, or "
      "{\"prompt\": ...} or {\"messages\": ...} with the fields of the API; "
      "- reads stdin");
  options.own = {
      app.add_option("--name", options.name, "Name of the batch, for people")
          ->check(Utf8Text()),
      app.add_option("--key", options.key,
                     "The same key again returns the same batch, so that a "
                     "submission can be repeated")
          ->check(Utf8Text()),
      app.add_option("--endpoint", options.endpoint,
                     "Endpoint of all lines: /v1/chat/completions or "
                     "/v1/completions [each line's own]")
          ->check(Utf8Text()),
      app.add_flag("--follow", options.follow,
                   "Wait, and print the results in the order of the input"),
      app.add_option("-o,--output", options.output,
                     "Wait, and write the results to this file; - prints "
                     "them, as --follow does")};
  CLI::Option* const priority = app.get_option("--priority");
  priority->description(absl::StrCat(priority->get_description(),
                                     ". A batch has 100 unless told otherwise, "
                                     "and at least 1"));
  options.priority = priority;
}

absl::Status CheckBatchOptions(const BatchOptions& options) {
  if (options.file.empty()) {
    for (const CLI::Option* const own : options.own) {
      if (own->count() == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "usage: ", own->get_name(), " without FILE, want a file of lines"));
    }
    const bool prompts =
        std::any_of(options.others.begin(), options.others.end(),
                    [](const CLI::Option* other) {
                      return IsPrompt(other->get_name()) && other->count() > 0;
                    });
    return prompts ? absl::OkStatus()
                   : absl::InvalidArgumentError(
                         "usage: give a prompt (-p, -f or --prompt-ids) or a "
                         "FILE of them");
  }
  std::error_code error;
  if (options.output != kStandardStream &&
      std::filesystem::is_regular_file(options.output, error) &&
      std::filesystem::equivalent(
          options.file == kStandardStream ? "/dev/stdin" : options.file,
          options.output, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --output ", options.output,
                     " is FILE itself, want another file"));
  }
  for (const CLI::Option* const other : options.others) {
    if (other->count() == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("usage: ", other->get_name(), " beside ", options.file,
                     ", ", AdviceOn(other->get_name())));
  }
  if (options.priority->count() > 0 && options.priority->as<int32_t>() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("usage: --priority ", options.priority->as<int32_t>(),
                     " beside ", options.file, ", want at least 1"));
  }
  return absl::OkStatus();
}

absl::Status ReadResults(
    Session& session, const ResultOptions& options,
    const std::function<absl::Status(absl::string_view line)>& take) {
  std::unique_ptr<ShownProgress> shown;
  if (options.follow) {
    shown = std::make_unique<ShownProgress>(session, options.id);
  }
  v1::StreamResultsRequest request;
  request.set_id(options.id);
  request.set_order(options.unordered ? v1::StreamResultsRequest::ORDER_COMMITS
                                      : v1::StreamResultsRequest::ORDER_INPUT);
  request.set_completed(options.completed);
  request.set_failed(options.failed);
  request.set_follow(options.follow);
  auto away_since = Clock::time_point::max();  // That: it is there.
  while (true) {
    const auto begun = Clock::now();
    InterruptibleCall call;
    const auto reader = session.stub().StreamResults(call.context(), request);
    v1::StreamResultsResponse response;
    absl::Status taken;
    while (taken.ok() && reader->Read(&response)) {
      away_since = Clock::time_point::max();
      const auto take_all = [&] {
        for (const auto& result : response.results()) {
          RF_RETURN_IF_ERROR(take(result.text()));
          request.set_after(options.unordered ? result.sequence()
                                              : result.line());
        }
        return absl::OkStatus();
      };
      if (shown != nullptr) shown->NoteAnswer();
      taken = shown != nullptr ? shown->Print(take_all) : take_all();
    }
    if (!taken.ok()) call.context()->TryCancel();
    const absl::Status status = cluster::FromGrpc(reader->Finish());
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
    RF_RETURN_IF_ERROR(taken);
    if (status.ok() && shown != nullptr) shown->NoteAnswer();
    if (!absl::IsUnavailable(status)) return status;
    // A call that lived for a while had a coordinator.
    const auto now = Clock::now();
    if (away_since > now || now > begun + kLongestTry) away_since = now;
    if (now > away_since + kLongestAway) return status;
    if (session.AwaitConnection(absl::FromChrono(kRetry))) {
      RF_RETURN_IF_ERROR(Sleep(kRetry));  // It is there, and refuses.
    }
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
  }
}

absl::Status RunBatchFile(SessionOptions session_options,
                          const BatchOptions& options,
                          const JobSettings& settings, Invocation& invocation) {
  std::unique_ptr<OutputFile> file;
  const bool writes =
      !options.output.empty() && options.output != kStandardStream;
  if (writes) RF_RETURN_IF_ERROR(OutputFile::Check(options.output));
  session_options.runs_jobs = false;  // Lines are checked without workers.
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(session_options));
  absl::StatusOr<v1::GetJobResponse> made = Send(*session, options, settings);
  if (!made.ok()) return session->Finish(made.status());
  v1::JobInfo& job = *made->mutable_job();
  const auto print = [&job] {
    return PrintJson({{"id", job.id()},
                      {"state", job.batch().state()},
                      {"total", job.batch().total()}});
  };
  if (job.state() == v1::JOB_STATE_FAILED) {
    return session->Finish(
        WithJobId(LineErrorsOf(options.file, job), job.id()));
  }
  const bool waits = options.follow || !options.output.empty();
  if (!waits) return session->Finish(absl::OkStatus(), invocation, print);
  const auto lines = static_cast<long long>(job.batch().total());
  std::fprintf(stderr, "batch %s: %lld line%s\n", OneLine(job.id()).c_str(),
               lines, lines == 1 ? "" : "s");
  if (writes) {
    auto opened = OutputFile::Open(options.output);
    if (!opened.ok()) return session->Finish(opened.status());
    file = *std::move(opened);
  }
  ResultOptions results;
  results.id = job.id();
  results.follow = true;
  absl::Status status =
      ReadResults(*session, results, [&file](absl::string_view line) {
        if (file == nullptr) return PrintText(line);
        file->Write(line);
        return file->status();
      });
  if (!status.ok() && Interrupt::Get().requested()) {
    const std::string id = OneLine(job.id());
    std::fprintf(
        stderr,
        "batch %s goes on: `ringfleet show %s --output --follow` waits "
        "for its results, `ringfleet cancel %s` ends it\n",
        id.c_str(), id.c_str(), id.c_str());
  }
  if (status.ok() && file != nullptr) status = file->Finish();
  if (status.ok()) {
    const auto ended = StateOf(*session, job.id());
    if (ended.ok()) {
      job = ended->job();
      std::fprintf(stderr, "batch %s: %s\n", OneLine(job.id()).c_str(),
                   OneLine(BatchSummary(job)).c_str());
      if (job.error_code() != 0) {
        status = WithJobId(
            absl::Status(static_cast<absl::StatusCode>(job.error_code()),
                         job.error()),
            job.id());
      }
    }
  }
  // Results on stdout are its only content.
  if (file == nullptr || !invocation.json) return session->Finish(status);
  return session->Finish(status, invocation, print);
}

}  // namespace ringfleet::coordinator::cli
