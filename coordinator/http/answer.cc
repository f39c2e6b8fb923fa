// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/process/deadline.h"
#include "coordinator/http/json_text.h"

namespace ringfleet::coordinator {
namespace {

// Some clients take lines of a stream up to 64 KiB only. A byte of text becomes
// up to six in JSON, a token of 128 bytes beside twenty of these 15 KiB.
constexpr size_t kEventText = size_t{8} << 10;
constexpr size_t kEventTokens = 4;

// Returns the bytes of the text's first characters: `most` at most, and one
// character at least.
size_t WholeCharacters(absl::string_view text, size_t most) {
  const auto splits = [text](size_t at) {
    return at < text.size() && (text[at] & 0xC0) == 0x80;
  };
  size_t size = std::min(text.size(), most);
  while (size > 0 && splits(size)) --size;
  if (size > 0) return size;
  while (splits(++size)) {
  }
  return size;
}

}  // namespace

Answer::Answer(AnswerHost* host, bool chat,
               std::shared_ptr<HttpExchange> exchange)
    : host_(host),
      exchange_(std::move(exchange)),
      owner_(exchange_->log().key_name) {
  request_.chat = chat;
  ++host_->answers;
}

Answer::~Answer() {
  for (Choice& choice : choices_) Leave(choice);
  --host_->answers;
}

void Answer::Start(AnswerHost* host, bool chat,
                   std::shared_ptr<HttpExchange> exchange) {
  const std::shared_ptr<Answer> answer(
      new Answer(host, chat, std::move(exchange)));
  answer->exchange_->SetListener(answer);
  if (!host->pool->Post([answer] { answer->Prepare(); })) {
    answer->Fail({.status = 429,
                  .message = "too many requests arrive at a time; try again "
                             "later",
                  .code = kRateLimit,
                  .retry_after_s = 1});
  }
}

void Answer::Prepare() {
  if (!gone_) {
    const GenerationContext context = {host_->model, host_->positions,
                                       host_->default_max_tokens,
                                       host_->served_name};
    problem_ = ReadGenerationRequest(exchange_->request().body, request_.chat,
                                     context, &request_);
  }
  if (!problem_.has_value() && !gone_) problem_ = StartJobs();
  host_->loop->Post([self = shared_from_this()] { self->Begin(); });
}

std::optional<ApiError> Answer::StartJobs() {
  const size_t count = request_.prompts.size() * request_.n;
  if (host_->running_jobs + count > host_->most_jobs) {
    return ApiError{
        .status = 429,
        .message = absl::StrCat(
            "the limit of ", host_->most_jobs,
            " choices that wait or run is reached; try again later"),
        .code = kRateLimit,
        .retry_after_s = 1};
  }
  choices_.reserve(count);
  const absl::Duration timeout =
      std::min(request_.timeout, host_->request_timeout);
  const auto deadline = cluster::Deadline::After(
      timeout == absl::InfiniteDuration() ? timeout
                                          : timeout - exchange_->age());
  for (size_t i = 0; i < count; ++i) {
    const size_t prompt = i / request_.n;
    Request request;
    request.prompt_ids = request_.prompts[prompt];
    request.sampling = request_.sampling;
    request.sampling.set_sample(static_cast<uint32_t>(i % request_.n));
    request.stop_ids = request_.stop_ids;
    request.max_tokens = request_.max_tokens[prompt];
    request.priority = request_.priority;
    request.owner = owner_;
    request.cache_salt = request_.cache_salt;
    request.top_logprobs = request_.top_logprobs;
    request.deadline = deadline;
    const bool echoes = request_.echo && request_.logprobs;
    if (echoes || request_.prompt_logprobs.has_value()) {
      request.score.emplace();
      request.score->set_prompt_top(
          std::max(echoes ? request_.top_logprobs : 0,
                   request_.prompt_logprobs.value_or(0)));
    }
    const uint64_t load = LoadOf(request);
    if (auto refusal = host_->key_loads.Add(owner_, load, host_->key_limits)) {
      return refusal;
    }
    ++host_->running_jobs;  // Before anybody can see the job.
    auto job = host_->jobs->Start(std::move(request), request_.text_rules);
    if (!job.ok()) {
      --host_->running_jobs;
      host_->key_loads.Remove(owner_, load);
      return ErrorOf(job.status());
    }
    choices_.emplace_back(*std::move(job), request_.chat);
  }
  return std::nullopt;
}

void Answer::Begin() {
  if (gone_) return;  // The last owner ends the jobs.
  begun_ = true;
  self_ = shared_from_this();
  if (problem_.has_value()) return Fail(*std::move(problem_));
  for (const std::vector<uint32_t>& prompt : request_.prompts) {
    usage_.prompt_tokens += prompt.size();
  }
  host_->metrics->OnPrompt(usage_.prompt_tokens);
  exchange_->log().prompt_tokens = static_cast<uint32_t>(usage_.prompt_tokens);
  text_.emplace(request_.chat, request_.usage_chunk,
                absl::StrCat(request_.chat ? "chatcmpl-" : "cmpl-",
                             choices_.front().job->id()),
                absl::ToUnixSeconds(absl::Now()), host_->served_name);
  for (const Choice& choice : choices_) choice.job->Observe(weak_from_this());
  Advance();  // They may have changed before.
}

void Answer::OnJobChange() {
  if (advance_posted_.exchange(true)) return;
  host_->loop->Post([self = shared_from_this()] {
    self->advance_posted_ = false;
    self->Advance();
  });
}

void Answer::OnGone() {
  gone_ = true;
  if (!begun_) return;  // Begin ends the jobs.
  for (const Choice& choice : choices_) {
    if (!choice.end.has_value()) {
      Count(choice, "abort");
    }
  }
  End();
}

void Answer::OnSilence() {
  if (!begun_ || !request_.stream) return;
  if (!stream_open_) return OpenStream();
  exchange_->Write(": waiting\n\n");
}

void Answer::Advance() {
  if (self_ == nullptr) return;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (choice.end.has_value()) continue;
    // Read before the tokens: an end that is seen has all of them.
    const JobProgress progress = choice.job->progress();
    for (const DrawnToken& token : choice.job->TokensFrom(choice.tokens)) {
      TakeToken(i, token);
      if (choice.end.has_value()) break;
    }
    if (choice.end.has_value()) continue;
    if (!progress.error.ok()) return Fail(ErrorOf(progress.error));
    if (!progress.has_ended()) continue;
    TellPrompt(i);
    const size_t reasoned = choice.text.reasoning_tokens();
    AnswerPiece rest = choice.text.Finish();
    usage_.reasoning_tokens += choice.text.reasoning_tokens() - reasoned;
    Tell(i, std::move(rest));
    EndChoice(i, progress.reason);
  }
  if (ended_choices_ == choices_.size()) Complete();
}

void Answer::TellPrompt(size_t index) {
  Choice& choice = choices_[index];
  if (std::exchange(choice.prompt_told, true)) return;
  const std::vector<uint32_t>& ids = choice.job->request().prompt_ids;
  const Tokenizer* const tokenizer = request_.text_rules.tokenizer;
  const v1::ScoreResult score = choice.job->score();
  if (request_.prompt_logprobs.has_value()) {
    choice.prompt_logprobs = PromptLogprobsJson(ids, score, tokenizer);
  }
  if (!request_.echo) return;
  if (request_.stream) OpenStream();
  TextStream prompt({.tokenizer = tokenizer});
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t offset = prompt.decoded_bytes();
    text += prompt.Add(ids[i]).text;
    if (!request_.logprobs) continue;
    DrawnToken token = {.id = ids[i], .logprob = 0, .top = {}};
    const int at = static_cast<int>(i) - 1;
    const bool scored = at >= 0 && at < score.logprobs_size();
    if (scored) token.logprob = score.logprobs(at);
    if (scored && at < score.prompt_top_size()) {
      const v1::TopLogprobs& top = score.prompt_top(at);
      const int count =
          std::min(top.ids_size(), static_cast<int>(request_.top_logprobs));
      for (int j = 0; j < count; ++j) {
        token.top.push_back({.id = top.ids(j), .logprob = top.logprobs(j)});
      }
    }
    choice.logprobs.Add(token, offset, scored);
  }
  text += prompt.Finish().text;
  choice.prompt_bytes = text.size();
  Tell(index, {.reasoning = "", .text = std::move(text)}, /*bulk=*/true);
}

void Answer::TakeToken(size_t index, const DrawnToken& token) {
  TellPrompt(index);
  Choice& choice = choices_[index];
  const absl::Duration age = exchange_->age();
  if (choice.tokens++ == 0) {
    choice.first_token = age;
    host_->metrics->OnFirstToken(age);
    auto& first = exchange_->log().first_token;
    if (!first.has_value()) first = age;
  } else {
    host_->metrics->OnNextToken(age - choice.last_token);
  }
  choice.last_token = age;
  choice.last_id = token.id;
  exchange_->log().completion_tokens =
      static_cast<uint32_t>(++usage_.completion_tokens);
  if (request_.stream) OpenStream();
  const size_t offset = choice.prompt_bytes + choice.text.decoded_bytes();
  const size_t reasoned = choice.text.reasoning_tokens();
  AnswerPiece piece = choice.text.Add(token.id);
  usage_.reasoning_tokens += choice.text.reasoning_tokens() - reasoned;
  if (request_.logprobs) choice.logprobs.Add(token, offset);
  Tell(index, std::move(piece));
  if (choice.text.stop().has_value()) EndChoice(index, v1::FINISH_REASON_STOP);
}

void Answer::Tell(size_t index, AnswerPiece piece, bool bulk) {
  Choice& choice = choices_[index];
  const size_t end = ToldBytes(choice);
  if (!request_.tells_reasoning) {
    piece.reasoning.clear();
    choice.logprobs.Take(end - piece.text.size(), "");  // Forgets them.
  }
  if (!request_.stream) {
    choice.told.reasoning += piece.reasoning;
    choice.told.text += piece.text;
    return;
  }
  const std::string events =
      absl::StrCat(TextEvents(index, /*reasoning=*/true,
                              end - piece.text.size(), piece.reasoning),
                   TextEvents(index, /*reasoning=*/false, end, piece.text));
  if (events.empty()) return;
  if (bulk) {
    exchange_->WriteBulk(events);
  } else {
    exchange_->Write(events);
  }
}

std::string Answer::TextEvents(size_t index, bool reasoning, size_t end,
                               absl::string_view text) {
  Choice& choice = choices_[index];
  const AnswerUsage* const usage = ChunkUsage();
  size_t told = end - text.size();
  std::string events;
  while (!text.empty()) {
    size_t most = kEventText;
    if (request_.logprobs) {
      most = std::min(most, choice.logprobs.EndOf(kEventTokens, told) - told);
    }
    const size_t size = WholeCharacters(text, most);
    absl::string_view part = text.substr(0, size);
    text.remove_prefix(size);
    told += size;
    do {
      events += text_->TextEvent(
          index, reasoning, part,
          request_.logprobs ? choice.logprobs.Take(told, part, kEventTokens)
                            : "null",
          usage);
      part = "";
    } while (request_.logprobs && choice.logprobs.Waits(told));
  }
  return events;
}

void Answer::EndChoice(size_t index, v1::FinishReason reason) {
  Choice& choice = choices_[index];
  choice.end.emplace();
  choice.end->finish_reason =
      reason == v1::FINISH_REASON_STOP ? "stop" : "length";
  const auto& ids = request_.user_stop_ids;
  if (choice.text.stop().has_value()) {
    choice.end->stop_reason.clear();
    AppendJsonString(*choice.text.stop(), &choice.end->stop_reason);
  } else if (reason == v1::FINISH_REASON_STOP &&
             std::find(ids.begin(), ids.end(), choice.last_id) != ids.end()) {
    choice.end->stop_reason = absl::StrCat(choice.last_id);
  }
  Count(choice, choice.end->finish_reason);
  ++ended_choices_;
  if (index % request_.n == 0) {
    usage_.cached_tokens += choice.job->progress().timings.cached_n;
  }
  Leave(choice);
  if (!request_.stream) return;
  OpenStream();
  std::string logprobs = "null";
  if (request_.logprobs) {
    const size_t told = LogprobEnd(choice);
    while (choice.logprobs.size() > kEventTokens &&
           choice.logprobs.Waits(told)) {
      exchange_->Write(text_->TextEvent(
          index, /*reasoning=*/false, "",
          choice.logprobs.Take(told, "", kEventTokens), ChunkUsage()));
    }
    logprobs = choice.logprobs.Take(told, "");
  }
  exchange_->Write(text_->EndEvent(index, *choice.end, logprobs, ChunkUsage()));
}

void Answer::Count(const Choice& choice, absl::string_view reason) {
  HttpMetrics::EndedChoice ended = {
      .reason = reason,
      .prompt_tokens = choice.job->request().prompt_ids.size(),
      .completion_tokens = choice.tokens,
      .max_tokens = choice.job->request().max_tokens,
      .n = request_.n};
  if (choice.tokens > 0) {
    const absl::Time started = choice.job->progress().started;
    const absl::Time arrived = absl::Now() - exchange_->age();
    ended.queue = started - choice.job->created();
    ended.prefill = arrived + choice.first_token - started;
    ended.decode = choice.last_token - choice.first_token;
  }
  host_->metrics->OnChoiceEnd(ended);
}

void Answer::OpenStream() {
  if (std::exchange(stream_open_, true)) return;
  HttpResponse head;
  head.content_type = kEventStreamType;
  // Proxies must pass the events on as they come.
  head.headers.push_back({"Cache-Control", "no-cache"});
  head.headers.push_back({"X-Accel-Buffering", "no"});
  exchange_->BeginStream(std::move(head));
  if (!request_.chat) return;
  for (size_t i = 0; i < choices_.size(); ++i) {
    exchange_->Write(text_->RoleEvent(i, ChunkUsage()));
  }
}

const AnswerUsage* Answer::ChunkUsage() const {
  return request_.usage_in_each ? &usage_ : nullptr;
}

void Answer::Complete() {
  host_->metrics->OnAnswerEnd(exchange_->age());
  if (request_.stream) {
    if (request_.usage_chunk) exchange_->Write(text_->UsageEvent(usage_));
    exchange_->Write("data: [DONE]\n\n");
    exchange_->EndStream();
    return End();
  }
  std::vector<AnswerText::Choice> choices;
  for (Choice& choice : choices_) {
    std::string logprobs =
        request_.logprobs
            ? choice.logprobs.Take(LogprobEnd(choice), choice.told.text)
            : "null";
    choices.push_back({std::move(choice.told), std::move(logprobs),
                       *std::move(choice.end),
                       std::move(choice.prompt_logprobs)});
  }
  HttpResponse response;
  response.body = text_->Whole(choices, usage_);
  exchange_->Respond(std::move(response));
  End();
}

void Answer::Fail(ApiError error) {
  if (text_.has_value()) {
    for (const Choice& choice : choices_) {
      if (!choice.end.has_value()) {
        Count(choice, "error");
      }
    }
  }
  if (stream_open_) {
    exchange_->Write(absl::StrCat("data: ", ErrorJson(error), "\n\n"));
    exchange_->EndStream();
  } else {
    exchange_->Respond(ErrorResponse(error));
  }
  End();
}

void Answer::Leave(Choice& choice) {
  if (choice.job == nullptr) return;
  host_->jobs->Leave(*choice.job);
  host_->key_loads.Remove(owner_, LoadOf(choice.job->request()));
  choice.job.reset();
  --host_->running_jobs;
}

void Answer::End() {
  for (Choice& choice : choices_) Leave(choice);
  self_.reset();  // May be the last owner.
}

}  // namespace ringfleet::coordinator
