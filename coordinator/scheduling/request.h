// SPDX-License-Identifier: Apache-2.0
// A request to evaluate a prompt and to draw tokens behind it, and the receiver
// of its results.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/deadline.h"
#include "protos/types.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// A token with its probability, and what else was likely. Log probabilities are
// natural logarithms of the probabilities that the model itself gives.
struct DrawnToken {
  struct Likely {
    uint32_t id = 0;
    float logprob = 0;
  };
  uint32_t id = 0;
  float logprob = 0;
  std::vector<Likely> top;  // Request.top_logprobs ids, likeliest first.
};

struct RequestTimings {
  uint32_t prompt_n = 0;
  // From the first admission to the first token, or to the last span.
  double prompt_ms = 0;
  uint32_t predicted_n = 0;
  double predicted_ms = 0;  // From the first to the last token.
  uint32_t cached_n = 0;    // Prompt tokens whose rows were in the cache.
};

// Receives the events of one request, in order. The last one is OnFinished or
// OnFailed. One thread at a time makes the calls. They must not block it, and
// must not call the scheduler's owner.
class RequestEvents {
 public:
  virtual ~RequestEvents() = default;
  // The request entered a slot. The first time, `cached_n` of its prompt's rows
  // were in the cache. Later calls repeat the number.
  virtual void OnRunning(uint32_t cached_n) = 0;
  // The request waits because no epoch runs. `why` says what the fleet waits
  // for; empty: an epoch runs, and the request waits for a slot. Tokens that
  // were told stay valid.
  virtual void OnWaiting(const std::string& why) = 0;
  virtual void OnToken(DrawnToken token) = 0;
  // `scored` ids of a text have their probabilities. A failed epoch takes some
  // back.
  virtual void OnProgress(uint32_t scored) = 0;
  // Receives the score of the whole text, once: before OnFinished, and before
  // the first token.
  virtual void OnScore(v1::ScoreResult score) = 0;
  virtual void OnFinished(v1::FinishReason reason,
                          const RequestTimings& timings) = 0;
  virtual void OnFailed(const absl::Status& status) = 0;
  // Returns whether the request should end at once, without more tokens.
  virtual bool has_enough() const { return false; }
};

// No limit but the context.
inline constexpr uint32_t kUnlimitedTokens =
    std::numeric_limits<uint32_t>::max();

// A status with this payload ends a request that has ended each epoch in which
// it ran alone. To try it again elsewhere would do harm.
inline constexpr char kFailedAlonePayload[] = "ringfleet/failed-alone";
// A status with this payload says why the fleet has failed, whatever its code.
// Another fleet, or this one when it is mended, takes the request.
inline constexpr char kFleetFailedPayload[] = "ringfleet/fleet-failed";

// Immutable once submitted.
struct Request {
  std::string id;  // Unique among requests that wait or run.
  std::vector<uint32_t> prompt_ids;
  v1::SamplingParams sampling;
  uint32_t max_tokens = 0;  // 0: only evaluate the prompt.
  // Requests with lower numbers come first. Above 0: a batch, which leaves
  // others their place and their pace.
  int32_t priority = 0;
  // Owners take turns within a priority. Empty: the owner of all that name
  // none.
  std::string owner;
  // Requests reuse the cached rows only of others with an equal salt.
  std::string cache_salt;
  std::vector<uint32_t> stop_ids;
  // Tokens that an earlier coordinator has drawn. They are replayed, and the
  // next one is drawn behind them. Fewer than max_tokens.
  std::vector<uint32_t> drawn;
  uint32_t usable_vocab = 0;  // 0: all.
  uint32_t top_logprobs = 0;  // Likeliest ids to tell with each token.
  std::optional<v1::ScoreOptions> score;
  // With `score` and without tokens: the ids may exceed the context, and are
  // then scored in windows.
  bool windows = false;
  // The request fails with DEADLINE_EXCEEDED when this has passed.
  cluster::Deadline deadline = cluster::Deadline::Infinite();
  RequestEvents* events = nullptr;  // Lives as long as the request.
  // False: a line of a batch, which is listed as a whole.
  bool listed = true;

  // False: somebody waits for the request, which is interactive.
  bool batch() const { return priority > 0; }
};

// Returns the error of a prompt that exceeds the context.
inline absl::Status PromptTooLong(size_t prompt_n, uint32_t context) {
  return absl::InvalidArgumentError(absl::StrCat("prompt: ", prompt_n,
                                                 " tokens, want at most ",
                                                 context, " (the context)"));
}

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_H_
