// SPDX-License-Identifier: Apache-2.0
// The answer to one /v1/completions or /v1/chat/completions: jobs on one side,
// a connection on the other.
#ifndef RINGFLEET_COORDINATOR_HTTP_ANSWER_H_
#define RINGFLEET_COORDINATOR_HTTP_ANSWER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/fleet/served_model.h"
#include "coordinator/http/answer_text.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/generation_request.h"
#include "coordinator/http/http_exchange.h"
#include "coordinator/http/http_metrics.h"
#include "coordinator/http/job_source.h"
#include "coordinator/http/key_loads.h"
#include "coordinator/http/work_pool.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/text_stream.h"

namespace ringfleet::coordinator {

// State that all answers share.
struct AnswerHost {
  const ServedModel* model = nullptr;
  JobSource* jobs = nullptr;
  HttpLoop* loop = nullptr;
  WorkPool* pool = nullptr;
  HttpMetrics* metrics = nullptr;
  std::string served_name;
  uint32_t default_max_tokens = 0;
  size_t most_jobs = 0;
  KeyLimits key_limits;
  absl::Duration request_timeout = absl::InfiniteDuration();

  // Positions per sequence of the last epoch; 0 before the first one.
  std::atomic<uint32_t> positions{0};
  std::atomic<bool> draining{false};
  std::atomic<size_t> answers{0};  // Begun and not ended.
  std::atomic<size_t> running_jobs{0};
  KeyLoads key_loads;
};

// Reads the request on a thread of the pool; the rest runs on the I/O thread.
// The jobs end with their client.
class Answer final : public HttpExchangeListener,
                     public JobObserver,
                     public std::enable_shared_from_this<Answer> {
 public:
  // `host` must outlive all answers.
  static void Start(AnswerHost* host, bool chat,
                    std::shared_ptr<HttpExchange> exchange);
  ~Answer() override;

  void OnSilence() override;
  void OnGone() override;
  void OnJobChange() override;  // On any thread.

 private:
  struct Choice {
    Choice(std::shared_ptr<Job> of, bool chat)
        : job(std::move(of)),
          text(job->text_rules()),
          logprobs(chat, job->text_rules().tokenizer) {}

    std::shared_ptr<Job> job;  // Null: left.
    TextStream text;
    LogprobList logprobs;
    size_t tokens = 0;  // Seen.
    uint32_t last_id = 0;
    absl::Duration first_token;  // Age of the exchange.
    absl::Duration last_token;   // Age of the exchange.
    AnswerPiece told;            // Text so far, unless streamed.
    bool prompt_told = false;
    size_t prompt_bytes = 0;      // The prompt in the text.
    std::string prompt_logprobs;  // JSON.
    std::optional<AnswerEnd> end;
  };

  Answer(AnswerHost* host, bool chat, std::shared_ptr<HttpExchange> exchange);

  void Prepare();  // On a thread of the pool.
  std::optional<ApiError> StartJobs();
  void Begin();
  void Advance();
  // Tells the prompt's part of a choice, once.
  void TellPrompt(size_t index);
  void TakeToken(size_t index, const DrawnToken& token);
  // Appends to a choice's text. `bulk`: however long the piece is.
  void Tell(size_t index, AnswerPiece piece, bool bulk = false);
  // Returns the events of a text, each of a bounded length. `end`: the bytes of
  // the choice's text with this one.
  std::string TextEvents(size_t index, bool reasoning, size_t end,
                         absl::string_view text);
  // Returns the bytes of a choice's text that were told.
  static size_t ToldBytes(const Choice& choice) {
    return choice.prompt_bytes + choice.text.told_bytes();
  }
  // Returns where the text of the told probabilities ends. A completion has
  // that of a stop token, too, which has no text; a chat has not.
  size_t LogprobEnd(const Choice& choice) const {
    return request_.chat ? ToldBytes(choice) : LogprobList::kAll;
  }
  void EndChoice(size_t index, v1::FinishReason reason);
  // Counts the end of a choice. `reason` is as in HttpMetrics.
  void Count(const Choice& choice, absl::string_view reason);
  void OpenStream();
  const AnswerUsage* ChunkUsage() const;
  void Complete();
  void Fail(ApiError error);
  void Leave(Choice& choice);
  // Returns the tokens that a choice has in flight at most.
  static uint64_t LoadOf(const Request& request) {
    return request.prompt_ids.size() + request.max_tokens;
  }
  void End();

  AnswerHost* const host_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::string owner_;       // Name of the API key.
  std::shared_ptr<Answer> self_;  // From Begin to End.
  std::atomic<bool> gone_{false};
  std::atomic<bool> advance_posted_{false};

  // Written by Prepare, before Begin.
  GenerationRequest request_;
  std::optional<ApiError> problem_;
  std::vector<Choice> choices_;

  bool begun_ = false;
  bool stream_open_ = false;
  size_t ended_choices_ = 0;
  AnswerUsage usage_;
  std::optional<AnswerText> text_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_ANSWER_H_
