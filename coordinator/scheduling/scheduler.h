// SPDX-License-Identifier: Apache-2.0
// Plans each step of one epoch: which waiting requests enter free slots, how
// much of their prompts is evaluated, which sequences get a token.
//
// Plans are made ahead of results: two may be in flight, so that the workers
// never wait for the coordinator. A plan therefore assumes that every running
// sequence goes on. Workers skip a sequence that has ended. Results that still
// arrive for a cancelled sequence are dropped. Its slot is released with the
// first plan that is made after its end is known. Prompts are evaluated in
// chunks beside the decodes of the running sequences (arXiv:2308.16369), so
// that a long prompt delays the decodes by a bounded amount.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_SCHEDULER_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/process/deadline.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/scheduling/request_queue.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// New prompt tokens in one step, over all slots of a data group. A step then
// reads the weights for many rows at once, and running sequences wait for one
// chunk only.
inline constexpr uint32_t kPrefillChunk = 512;

// Most plans that are sent and not yet answered.
inline constexpr int kMaxPlansInFlight = 2;
// Most jobs that may wait. Each job holds a thread of its call.
inline constexpr size_t kMaxWaiting = 1024;
// A plan of this size admits no further request: workers receive messages of
// 8 MiB, and one prompt of the longest context is under 1 MiB.
inline constexpr size_t kMaxPlanBytes = size_t{4} << 20;

// An event for the owner of a request.
struct RequestUpdate {
  struct Token {
    uint32_t id;
    float logprob;
  };
  struct Finished {
    v1::FinishReason reason;
    RequestTimings timings;
  };
  std::shared_ptr<const Request> request;
  std::variant<Token, v1::ScoreResult, Finished, absl::Status> what;

  // Calls the corresponding event.
  void Deliver() const;
};

// Pure logic, not thread-safe. Never calls RequestEvents itself: TakeUpdates()
// returns the updates to deliver, in order.
class Scheduler {
 public:
  using Now = std::function<cluster::Deadline::Clock::time_point()>;

  struct Options {
    uint64_t epoch = 0;
    uint32_t groups = 1;   // Data groups, which work side by side.
    uint32_t slots = 1;    // Per group; slots of group g begin at g * slots.
    uint32_t context = 1;  // Positions per slot.
  };

  Scheduler(Options options, Now now);

  // Queues a request. A prompt may fill the context; then one token can still
  // be drawn. A sequence ends with LENGTH after max_tokens or context - prompt
  // + 1 tokens, whichever is less.
  //
  // Errors: INVALID_ARGUMENT: an empty prompt, or one longer than the context.
  absl::Status Submit(std::shared_ptr<const Request> request);

  // Ends a request with CANCELLED. NOT_FOUND: the request neither waits nor
  // runs.
  absl::Status Cancel(absl::string_view id);

  // Ends all requests with `status`. No plan follows.
  void FailAll(const absl::Status& status);

  // Returns the next step's plan, or nothing if there is nothing to do or
  // kMaxPlansInFlight plans are in flight.
  std::optional<v1::StepPlan> NextPlan();

  // Returns a plan without work, or nothing if kMaxPlansInFlight plans are in
  // flight.
  std::optional<v1::StepPlan> EmptyPlan();

  // Takes the merged result of the oldest plan in flight.
  //
  // Errors: INTERNAL: the result of another step, or of a slot that the plan
  // does not name.
  absl::Status OnResult(const v1::StepResult& result);

  std::vector<RequestUpdate> TakeUpdates();

  // Holds admissions, or lets them go on. No waiting request enters a slot
  // while they are held.
  void Hold(bool held) { held_ = held; }
  // Removes all waiting requests and returns them in order.
  std::vector<std::shared_ptr<const Request>> TakeWaiting();

  // Returns true if no plan is in flight and no slot is taken.
  bool quiet() const { return order_.empty() && in_flight_.empty(); }
  // Continues behind `last_step`, the last step that a benchmark has planned.
  // Requires quiet().
  void ContinueAfter(uint64_t last_step) { last_step_ = last_step; }

  size_t running() const;
  size_t waiting() const { return queue_.size(); }
  uint64_t last_step() const { return last_step_; }

 private:
  // One request in a slot. The plans in flight that name a sequence share it,
  // and may outlive its stay in the slot.
  struct Sequence {
    std::shared_ptr<const Request> request;
    uint32_t slot = 0;
    uint32_t prompt_planned = 0;  // Prompt tokens in plans so far.
    uint64_t tokens_planned = 0;  // Tokens that the plans so far draw.
    uint32_t tokens_seen = 0;
    bool ended = false;  // Finished, failed or cancelled.
    cluster::Deadline::Clock::time_point admitted;
    cluster::Deadline::Clock::time_point first_token;
    cluster::Deadline::Clock::time_point last_token;

    uint32_t prompt_n() const {
      return static_cast<uint32_t>(request->prompt_ids.size());
    }
  };

  struct PlanInFlight {
    uint64_t step = 0;
    // `sequences` have a prefill or a decode. The plan ends the prompt of
    // `evaluated`.
    std::vector<std::shared_ptr<Sequence>> sequences;
    std::vector<std::shared_ptr<Sequence>> evaluated;
  };

  // Numbers a plan and counts it as in flight.
  v1::StepPlan Send(v1::StepPlan plan, PlanInFlight flight);
  void Release(v1::StepPlan* plan);
  void Admit(v1::StepPlan* plan);
  // Returns a free slot in the group with the fewest taken slots, or nothing if
  // none is free.
  std::optional<uint32_t> FreeSlot() const;
  void PlanPrefills(v1::StepPlan* plan, PlanInFlight* flight);
  void PlanDecodes(const std::vector<uint32_t>& slots, v1::StepPlan* plan,
                   PlanInFlight* flight);
  // Returns true if one more token may be drawn after `tokens` tokens.
  bool MayGoOn(const Sequence& sequence, uint64_t tokens) const;
  void Take(const v1::SlotResult& result, Sequence& sequence);
  void Finish(v1::FinishReason reason, Sequence& sequence);

  const Options options_;
  const Now now_;
  uint64_t last_step_ = 0;
  bool held_ = false;
  RequestQueue queue_;
  std::vector<std::shared_ptr<Sequence>> slots_;  // Null: free.
  // Slots with a sequence, in the order of admission.
  std::vector<uint32_t> order_;
  std::deque<PlanInFlight> in_flight_;
  std::vector<RequestUpdate> updates_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_SCHEDULER_H_
