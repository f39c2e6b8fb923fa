// SPDX-License-Identifier: Apache-2.0
// A job of the scheduler, and the receiver of its results.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "protos/types.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

struct RequestTimings {
  uint32_t prompt_n = 0;
  double prompt_ms = 0;  // From admission to the first token or the last span.
  uint32_t predicted_n = 0;
  double predicted_ms = 0;  // From the first to the last token.
};

// Receives the events of one request, in order: any number of OnToken and
// OnScore, then exactly one of OnFinished and OnFailed. The fleet's thread
// makes all calls. They must not block it.
class RequestEvents {
 public:
  virtual ~RequestEvents() = default;
  virtual void OnToken(uint32_t id, float logprob) = 0;
  // Receives the part of one span. Parts come in ascending order of position.
  virtual void OnScore(const v1::ScoreResult& part) = 0;
  virtual void OnFinished(v1::FinishReason reason,
                          const RequestTimings& timings) = 0;
  virtual void OnFailed(const absl::Status& status) = 0;
};

// Immutable once submitted.
struct Request {
  std::string id;  // Unique among requests that wait or run.
  std::vector<uint32_t> prompt_ids;
  v1::SamplingParams sampling;
  uint32_t max_tokens = 0;  // 0: only evaluate the prompt.
  std::vector<uint32_t> stop_ids;
  uint32_t usable_vocab = 0;  // 0: all.
  std::optional<v1::ScoreOptions> score;
  std::shared_ptr<RequestEvents> events;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_H_
