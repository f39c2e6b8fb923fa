// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batch_runner.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/batch/batch_lines.h"
#include "coordinator/http/json_text.h"

namespace ringfleet::coordinator {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kLook{500};  // Between looks at the store.
constexpr std::chrono::milliseconds kEndPoll{2};
constexpr int64_t kFetch = 256;
constexpr size_t kPaceCommits = 200;
// Lines that end in one transaction. Others wait for it.
constexpr int64_t kEndedLines = 1000;

// Logs a failure to read the store or a batch, unless it is the last one told.
void NoteProblem(const absl::Status& status, absl::Status* last) {
  if (!status.ok() && status != *last) {
    RF_LOG(kError, "batches: ", status.message());
  }
  *last = status;
}

// Returns the line of an output or error file. `response`: JSON, or "null".
std::string OutputLine(const std::string& custom_id,
                       const std::string& response, absl::string_view code,
                       absl::string_view message) {
  std::string text =
      absl::StrCat("{\"id\":\"", NewId("batch_req_"), "\",\"custom_id\":");
  AppendJsonString(custom_id, &text);
  absl::StrAppend(&text, ",\"response\":", response, ",\"error\":");
  if (code.empty()) {
    text += "null}\n";
    return text;
  }
  text += "{\"code\":";
  AppendJsonString(code, &text);
  text += ",\"message\":";
  AppendJsonString(message, &text);
  text += "}}\n";
  return text;
}

// Returns a string at a path of objects; empty: there is none.
std::string TextAt(const Json& json, const char* first, const char* second) {
  if (!json.is_object()) return "";
  const auto object = json.find(first);
  if (object == json.end() || !object->is_object()) return "";
  const auto text = object->find(second);
  return text != object->end() && text->is_string() ? text->get<std::string>()
                                                    : "";
}

int64_t NumberAt(const Json& json, const char* name) {
  const auto number = json.find(name);
  return number != json.end() && number->is_number() ? number->get<int64_t>()
                                                     : 0;
}

BatchUsage UsageOf(const Json& body) {
  BatchUsage usage;
  const auto told = body.is_object() ? body.find("usage") : body.end();
  if (!body.is_object() || told == body.end() || !told->is_object()) {
    return usage;
  }
  usage.prompt_tokens = NumberAt(*told, "prompt_tokens");
  usage.completion_tokens = NumberAt(*told, "completion_tokens");
  const auto detail = [&told](const char* list, const char* name) {
    const auto details = told->find(list);
    return details != told->end() && details->is_object()
               ? NumberAt(*details, name)
               : 0;
  };
  usage.cached_tokens = detail("prompt_tokens_details", "cached_tokens");
  usage.reasoning_tokens =
      detail("completion_tokens_details", "reasoning_tokens");
  return usage;
}

absl::StatusOr<std::string> ReadBytes(int file, const LineRecord& line) {
  std::string text(static_cast<size_t>(line.length), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = pread(file, text.data() + done, text.size() - done,
                              line.begin + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cluster::FileError("the batch's input", errno);
    if (got == 0) return absl::DataLossError("the batch's input is cut");
    done += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace

class BatchRunner::Loop final : public HttpLoop {
 public:
  Loop() : pool_(/*threads=*/1, std::numeric_limits<size_t>::max()) {}
  void Post(std::function<void()> function) override {
    pool_.Post(std::move(function));
  }

 private:
  WorkPool pool_;
};

class BatchRunner::LineJobs final : public JobSource {
 public:
  explicit LineJobs(JobSource* jobs) : jobs_(jobs) {}

  absl::StatusOr<std::shared_ptr<Job>> Start(Request request,
                                             TextRules rules) override {
    request.listed = false;
    return jobs_->Start(std::move(request), std::move(rules));
  }
  void Leave(const Job& job) override { jobs_->Leave(job); }
  absl::Status ready() const override { return jobs_->ready(); }
  uint32_t context() const override { return jobs_->context(); }
  v1::ClusterState state() const override { return jobs_->state(); }

 private:
  JobSource* const jobs_;
};

BatchRunner::BatchRunner(const BatchRunnerOptions& options,
                         std::function<void()> on_change)
    : options_(options),
      on_change_(std::move(on_change)),
      line_jobs_(std::make_unique<LineJobs>(options.jobs)),
      loop_(std::make_unique<Loop>()),
      pool_(std::make_unique<WorkPool>(/*threads=*/1, options.window + 1)) {
  host_.model = options_.model;
  host_.jobs = line_jobs_.get();
  host_.loop = loop_.get();
  host_.pool = pool_.get();
  host_.metrics = &metrics_;
  host_.served_name = options_.served_name;
  host_.default_max_tokens = options_.default_max_tokens;
  host_.most_jobs = std::numeric_limits<size_t>::max() / 2;
  thread_ = std::thread([this] { Main(); });
}

BatchRunner::~BatchRunner() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  {
    MutexLock lock(&mu_);
    for (auto& [id, batch] : batches_) Leave(batch);
  }
  // Answers that were to start have started behind this.
  std::promise<void> started;
  loop_->Post([&started] { started.set_value(); });
  started.get_future().wait();
  while (host_.answers > 0) std::this_thread::sleep_for(kEndPoll);
  pool_.reset();
  loop_.reset();
  MutexLock lock(&mu_);
  for (auto& [id, batch] : batches_) {
    if (batch.input >= 0) close(batch.input);
  }
}

void BatchRunner::Wake() {
  MutexLock lock(&mu_);
  woken_ = true;
  changed_.NotifyAll();
}

BatchPace BatchRunner::PaceOf(const std::string& id) const {
  MutexLock lock(&mu_);
  BatchPace pace;
  const auto it = batches_.find(id);
  if (it == batches_.end()) return pace;
  const Batch& batch = it->second;
  pace.in_flight = static_cast<int64_t>(batch.in_flight.size());
  if (batch.commits.size() < 2) return pace;
  const std::chrono::duration<double> span =
      Clock::now() - batch.commits.front();
  pace.lines_per_second =
      static_cast<double>(batch.commits.size() - 1) / span.count();
  return pace;
}

void BatchRunner::Main() {
  auto look = Clock::now();
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!stopping_ && !woken_ && changed_.WaitUntil(&mu_, look)) {
      }
      if (stopping_) return;
      woken_ = false;
      look = Clock::now() + kLook;
      const absl::Status status = Refresh();
      NoteProblem(status, &problem_);
      if (!status.ok()) continue;
    }
    EndBatches();
    if (options_.store->trouble().ok()) StartLines();
  }
}

absl::Status BatchRunner::Refresh() {
  std::vector<BatchRecord> open;
  const absl::Status status = options_.store->Read([&open](Database& database) {
    auto found = ListOpenBatches(database);
    if (found.ok()) open = *std::move(found);
    return found.status();
  });
  if (!status.ok()) return status;
  std::map<std::string, Batch> kept;
  for (BatchRecord& record : open) {
    // A batch of another model waits until that one is served again.
    const bool waits = record.state == kBatchValidating ||
                       (record.state == kBatchInProgress &&
                        record.model != options_.served_name);
    const bool expired =
        record.expires_ms > 0 && record.expires_ms <= options_.store->now_ms();
    if (waits && !expired) continue;
    auto node = batches_.extract(record.id);
    Batch batch = node.empty() ? Batch() : std::move(node.mapped());
    const std::string id = record.id;
    batch.record = std::move(record);
    batch.expired |= expired;
    kept.emplace(id, std::move(batch));
  }
  // The others have ended. Their lines in flight, which have lost against the
  // end, are left.
  for (auto& [id, batch] : batches_) {
    if (!batch.in_flight.empty()) {
      Leave(batch);
      in_flight_ -= batch.in_flight.size();
    }
    if (batch.input >= 0) close(batch.input);
  }
  batches_ = std::move(kept);
  return absl::OkStatus();
}

void BatchRunner::Leave(Batch& batch) {
  if (std::exchange(batch.left, true)) return;
  for (const auto& [number, exchange] : batch.in_flight) {
    if (exchange == nullptr) continue;  // Only its commit is missing.
    loop_->Post([exchange = exchange] { exchange->Leave(); });
  }
}

void BatchRunner::EndBatches() {
  struct End {
    std::string id;
    const char* state;
    const char* code;
    const char* message;
  };
  std::vector<End> ends;
  {
    MutexLock lock(&mu_);
    for (auto& [id, batch] : batches_) {
      const BatchRecord& record = batch.record;
      if (record.state == kBatchCancelling) {
        Leave(batch);
        ends.push_back({id, kBatchCancelled, "batch_cancelled",
                        "the batch was cancelled before this line ended"});
      } else if (batch.expired) {
        Leave(batch);
        ends.push_back({id, kBatchExpired, "batch_expired",
                        "the batch expired before this line ended"});
      } else if (batch.input_lost) {
        ends.push_back({id, kBatchFailed, "input_lost",
                        "the input was deleted before this line ran"});
      } else if (record.completed + record.failed >= record.total) {
        ends.push_back({id, kBatchCompleted, "", ""});
      }
    }
  }
  for (const End& end : ends) Finish(end.id, end.state, end.code, end.message);
}

void BatchRunner::Finish(const std::string& id, const char* state,
                         const char* code, const char* message) {
  int64_t open = 0;
  absl::Status status = options_.store->Read([&](Database& database) {
    RF_ASSIGN_OR_RETURN(open, FirstOpenLine(database, id));
    return absl::OkStatus();
  });
  if (status.ok() && open > 0) {
    status = options_.store->WriteNow([id, code, message](Database& database) {
      return FailOpenLines(
          database, id, kEndedLines, [code, message](const LineRecord& line) {
            return OutputLine(line.custom_id, "null", code, message);
          });
    });
    if (status.ok()) on_change_();
  } else if (status.ok()) {
    const int64_t now_ms = options_.store->now_ms();
    status = options_.store->WriteNow(
        [id, state, now_ms](Database& database) {
          return FinishBatch(database, id, state, now_ms);
        },
        [this, id, state](const absl::Status& ended) {
          if (!ended.ok()) return;
          unlink(options_.store->FilePath(id).c_str());
          RF_LOG(kInfo, "batch ", id, ": ", state);
          on_change_();
        });
  }
  if (status.ok()) return Wake();
  RF_LOG(kWarning, "batch ", id, " cannot end: ", status.message());
}

BatchRunner::Batch* BatchRunner::NextBatch() {
  // The least number runs first; equal ones take turns.
  Batch* best = nullptr;
  bool best_is_behind = false;
  for (auto& [id, batch] : batches_) {
    if (batch.record.state != kBatchInProgress || batch.left) continue;
    if (batch.next.empty() && !batch.fetched_all) {
      const absl::Status status = Fetch(batch);
      NoteProblem(status, &batch.problem);
      if (!status.ok()) continue;
    }
    if (batch.next.empty()) continue;
    const bool behind = id > last_started_;
    const bool better = best == nullptr ||
                        batch.record.priority < best->record.priority ||
                        (batch.record.priority == best->record.priority &&
                         behind && !best_is_behind);
    if (!better) continue;
    best = &batch;
    best_is_behind = behind;
  }
  return best;
}

absl::Status BatchRunner::Fetch(Batch& batch) {
  if (batch.input < 0) {
    const std::string path = options_.store->FilePath(batch.record.id);
    batch.input = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (batch.input < 0) {
      batch.input_lost = errno == ENOENT;
      if (batch.input_lost) woken_ = true;
      return cluster::FileError(path, errno);
    }
  }
  const absl::Status status =
      options_.store->Read([&batch](Database& database) {
        auto lines = ListOpenLines(database, batch.record.id, batch.last_place,
                                   batch.last_number, kFetch);
        if (lines.ok()) {
          batch.next.assign(lines->begin(), lines->end());
        }
        return lines.status();
      });
  if (!status.ok()) return status;
  batch.fetched_all = batch.next.empty();
  if (!batch.next.empty()) {
    batch.last_place = batch.next.back().place;
    batch.last_number = batch.next.back().number;
  }
  return absl::OkStatus();
}

void BatchRunner::StartLines() {
  const uint32_t positions = options_.jobs->context();
  if (positions > 0) host_.positions = positions;
  if (host_.positions == 0 || !options_.jobs->ready().ok()) return;
  while (true) {
    LineRecord line;
    std::string id;
    int input = -1;
    {
      MutexLock lock(&mu_);
      if (stopping_ || in_flight_ >= options_.window ||
          Clock::now() < pause_until_) {
        return;
      }
      Batch* const batch = NextBatch();
      if (batch == nullptr) return;
      id = batch->record.id;
      input = batch->input;
      line = std::move(batch->next.front());
      batch->next.pop_front();
      last_started_ = id;
    }
    Start(id, input, line);
  }
}

void BatchRunner::Start(const std::string& id, int input,
                        const LineRecord& line) {
  BatchLine read;
  std::optional<LineError> error;
  const absl::StatusOr<std::string> text = ReadBytes(input, line);
  std::string endpoint, owner;
  int64_t priority = 0;
  {
    MutexLock lock(&mu_);
    const BatchRecord& record = batches_.at(id).record;
    endpoint = record.endpoint;
    owner = record.owner;
    priority = record.priority;
  }
  if (!text.ok()) {
    error = LineError{.code = "input_lost",
                      .message = std::string(text.status().message()),
                      .param = "",
                      .number = line.number};
  } else {
    error = ReadBatchLine(*text, line.number, endpoint, &read);
  }
  if (error.has_value()) {
    {
      MutexLock lock(&mu_);
      batches_.at(id).in_flight[line.number] = nullptr;
      ++in_flight_;
    }
    return Commit(id,
                  {.sequence = 0,
                   .number = line.number,
                   .failed = true,
                   .text = OutputLine(line.custom_id, "null", error->code,
                                      error->message)},
                  BatchUsage());
  }
  if (line.seed.has_value()) read.body["seed"] = *line.seed;
  read.body["priority"] = priority;
  HttpRequest request;
  request.method = "POST";
  request.path = read.chat ? kChatEndpoint : kCompletionEndpoint;
  request.body = read.body.dump();
  request.id = NewId("req_");
  const std::string request_id = request.id;
  const auto exchange = std::make_shared<LineExchange>(
      std::move(request),
      [this, id, line, request_id](const HttpResponse& response) {
        OnResponse(id, line, request_id, response);
      });
  exchange->log().key_name = owner;
  {
    MutexLock lock(&mu_);
    batches_.at(id).in_flight[line.number] = exchange;
    ++in_flight_;
  }
  loop_->Post([this, chat = read.chat, exchange] {
    Answer::Start(&host_, chat, exchange);
  });
}

void BatchRunner::OnResponse(const std::string& id, const LineRecord& line,
                             const std::string& request_id,
                             const HttpResponse& response) {
  const bool failed = response.status != 200;
  const Json body = Json::parse(response.body, nullptr, /*exceptions=*/false);
  // The fleet is full, not there, or has failed.
  if (response.status == 503 || response.status == 429) {
    return TryAgain(id, line);
  }
  std::string code, message;
  if (failed) {
    code = TextAt(body, "error", "code");
    if (code.empty()) code = TextAt(body, "error", "type");
    if (code.empty()) code = absl::StrCat(response.status);
    message = TextAt(body, "error", "message");
  }
  const std::string told =
      absl::StrCat("{\"status_code\":", response.status, ",\"request_id\":\"",
                   request_id, "\",\"body\":", response.body, "}");
  Commit(id,
         {.sequence = 0,
          .number = line.number,
          .failed = failed,
          .text = OutputLine(line.custom_id, told, code, message)},
         UsageOf(body));
}

void BatchRunner::TryAgain(const std::string& id, const LineRecord& line) {
  MutexLock lock(&mu_);
  const auto it = batches_.find(id);
  if (it == batches_.end()) return;
  if (it->second.in_flight.erase(line.number) > 0) --in_flight_;
  it->second.next.push_front(line);
  pause_until_ = Clock::now() + absl::ToChronoNanoseconds(options_.pause);
}

void BatchRunner::Commit(const std::string& id, OutputRecord output,
                         const BatchUsage& usage) {
  const int64_t number = output.number;
  options_.store->Write(
      [id, output = std::move(output), usage](Database& database) {
        return InsertOutput(database, id, output, usage);
      },
      [this, id, number](const absl::Status& status) {
        {
          MutexLock lock(&mu_);
          const auto it = batches_.find(id);
          if (it != batches_.end()) {
            Batch& batch = it->second;
            if (batch.in_flight.erase(number) > 0) --in_flight_;
            batch.commits.push_back(Clock::now());
            if (batch.commits.size() > kPaceCommits) batch.commits.pop_front();
          }
          woken_ = true;
          changed_.NotifyAll();
        }
        if (status.ok()) on_change_();
      });
}

}  // namespace ringfleet::coordinator
