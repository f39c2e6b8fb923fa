// SPDX-License-Identifier: Apache-2.0
// Requests that wait for a slot: by priority, fairly among owners, and those of
// an owner in the order of their first arrival.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_QUEUE_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "cluster/process/deadline.h"
#include "coordinator/scheduling/evaluated_spans.h"
#include "coordinator/scheduling/request.h"

namespace ringfleet::coordinator {

// A request with what it keeps when it leaves a slot before its end.
struct Run {
  using Time = cluster::Deadline::Clock::time_point;

  std::shared_ptr<const Request> request;
  uint64_t arrival = 0;  // Number in the order of submission.
  // Tokens drawn so far. They are replayed when the request enters a slot
  // again.
  std::vector<uint32_t> committed;
  // Forms in which positions of the prompt, or its window, and of committed
  // tokens were evaluated. A later stay repeats them.
  EvaluatedSpans spans;
  // Score of the windows that are done, and where the next one begins.
  v1::ScoreResult score;
  size_t window_begin = 0;
  bool scored = false;  // The score of the whole text has been told.
  // Failed epochs in a row that the request may have ended: it made no progress
  // (no token, no scored span), and the steps in flight had one position of it
  // each time, which lies in [failed_begin, failed_end).
  uint32_t failures = 0;
  uint64_t failed_begin = 0;
  uint64_t failed_end = 0;
  uint32_t group = 0;      // Data group of the first stay.
  uint64_t evaluated = 0;  // Positions that the last stay had in the cache.
  uint32_t cached_n = 0;   // Prompt tokens that the first stay found there.
  Time submitted;
  // Time without an epoch and without a load, since the last epoch.
  cluster::Deadline::Clock::duration waited{0};
  Time admitted;  // First of all times; the epoch of the clock before it.
  Time first_token;
  Time last_token;

  // Counts an epoch that failed with positions [begin, end) in flight.
  void AddFailure(uint64_t begin, uint64_t end);
  // True if the request may be what makes epochs fail.
  bool suspect() const { return failures >= kSuspectFailures; }
  static constexpr uint32_t kSuspectFailures = 2;
  // The last three of these are a suspect's, alone: hosts that are lost for
  // another reason seldom meet one request so often at one position.
  static constexpr uint32_t kMostFailures = 5;
};

// Owners share a priority by tokens: the next run is that of the owner who was
// charged the fewest (start-time fair queuing, Goyal, Vin, Cheng: SIGCOMM
// 1996). An owner who comes back after a pause is charged no less than the
// others, so that a pause saves nothing up. Not thread-safe.
class RequestQueue {
 public:
  // Puts `run` behind all of a higher priority, and behind those of its own
  // that arrived before it.
  void Push(std::shared_ptr<Run> run);

  // Returns the run that comes next among those for which `holds` returns
  // false. It stays. Null: there is none.
  std::shared_ptr<Run> Next(absl::FunctionRef<bool(const Run&)> holds) const;

  // Takes the first run by priority and arrival. Null: none waits.
  std::shared_ptr<Run> Pop();

  // Charges the owner of `run` for tokens of a prompt or an answer.
  void Charge(const Run& run, uint64_t tokens);

  // Takes the first run for which `matches` returns true. Null: there is none.
  std::shared_ptr<Run> Take(absl::FunctionRef<bool(const Run&)> matches);

  const std::deque<std::shared_ptr<Run>>& runs() const { return waiting_; }
  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }

 private:
  std::deque<std::shared_ptr<Run>> waiting_;  // By priority and arrival.
  // Tokens by owner, of those who wait or were charged since all had left.
  std::map<std::string, uint64_t> charged_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_REQUEST_QUEUE_H_
