// SPDX-License-Identifier: Apache-2.0
// Plans the steps of a fleet: which waiting requests enter free slots, how much
// of their prompts is evaluated, which sequences get a token.
//
// Plans are made ahead of results: two may be in flight, so that the workers
// never wait for the coordinator. A plan therefore assumes that every running
// sequence goes on. Workers skip a sequence that has ended. Results that still
// arrive for a sequence that has left are dropped. Its slot is released with
// the first plan that is made after its end is known.
//
// Prompts are evaluated in chunks beside the decodes of the running sequences
// (arXiv:2308.16369). A chunk has kPrefillChunk tokens, or is the rest of its
// prompt. Beside decodes, a step has no more rows of prompts than fit the
// epoch's step time by the measured pace, and cuts chunks to keep it, but those
// of a text that is scored alone. The prompts with the least left come first.
// When they have passed the one that entered first for some steps, they leave
// it half of the rows, so that a long one comes, too, and holds no newcomer up.
//
// The scheduler outlives epochs. When an epoch ends, its requests wait again,
// in the order of their arrival, with the tokens that they have committed. In
// the next epoch each position is evaluated in the form that it had: prompts in
// the same chunks, committed tokens as decodes. So on an equal layout the text
// goes on with the same bits.
//
// The cache of a data group is a pool of blocks. A request enters a slot when
// the pool has blocks for its prompt, for its committed tokens, and one more
// for each sequence that may still grow. A sequence takes further blocks as it
// grows. When none is left, the sequence that entered last in the lowest
// priority waits again, and is replayed later. A lone sequence always has its
// context.
//
// Requests of a priority above 0 are batches. Alone they run without limits.
// While interactive sequences run, a step has as many rows of batches as
// BatchBudget allows. A batch that is left out keeps its blocks. It leaves its
// slot and its blocks only to an interactive request that has no room without.
//
// Requests with one prompt that come together evaluate it once: the others
// wait, with a slot in reserve, until the rows of the first one are planned.
//
// Blocks of sequences that have left are kept while nobody needs the room. A
// request whose ids begin like those of another, up to any token, begins with
// the other's rows. Rows of an answer, and rows behind a prompt's first chunk,
// may have been evaluated in another form than the request alone would take.
// The request keeps the forms for its replays. Texts that are scored alone
// leave nothing: they would push out what people come back to.
//
// A step may commit several tokens of a sequence: one, and the drafts that the
// workers accept. Plans are made for the most; results give back the rest.
//
// A request is a suspect after kSuspectFailures epochs that failed while the
// same position of it was in flight, without progress between them. Suspects
// run alone, one at a time, before all others. The one with which kMostFailures
// epochs have failed ends with the cause.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_SCHEDULER_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_SCHEDULER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "coordinator/scheduling/batch_budget.h"
#include "coordinator/scheduling/block_cache.h"
#include "coordinator/scheduling/evaluated_spans.h"
#include "coordinator/scheduling/request.h"
#include "coordinator/scheduling/request_queue.h"
#include "coordinator/scheduling/score_windows.h"
#include "coordinator/scheduling/step_pace.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// Tokens of a chunk of a prompt. Large enough that weights are read for many
// rows at once, small enough that running sequences wait for one chunk only.
inline constexpr uint32_t kPrefillChunk = 512;
// Most prompt tokens in one step, over all slots of a data group. Leaves room
// for a short prompt beside a long one's chunk.
inline constexpr uint32_t kMaxPrefillRows = 768;
// Most committed tokens that one step replays in a data group. The exchanges of
// such a step stay as small as those of decodes.
inline constexpr uint32_t kMaxReplayRows = 32;

// Most plans that are sent and not yet answered.
inline constexpr int kMaxPlansInFlight = 2;
// Most requests that may wait.
inline constexpr size_t kMaxWaiting = 1024;
// A plan of this size admits no further request: workers receive messages of
// 8 MiB, and one prompt of the longest context is under 1 MiB.
inline constexpr size_t kMaxPlanBytes = size_t{4} << 20;

// An event for the owner of a request.
struct RequestUpdate {
  struct Running {
    uint32_t cached_n;
  };
  struct Waiting {
    std::string why;
  };
  struct Progress {
    uint32_t scored;
  };
  struct Finished {
    v1::FinishReason reason;
    RequestTimings timings;
  };
  std::shared_ptr<const Request> request;
  std::variant<Running, Waiting, DrawnToken, Progress, v1::ScoreResult,
               Finished, absl::Status>
      what;

  // Calls the corresponding event.
  void Deliver() const;
};

// Pure logic, not thread-safe. Never calls RequestEvents itself: TakeUpdates()
// returns the updates to deliver, in order.
class Scheduler {
 public:
  using Now = std::function<cluster::Deadline::Clock::time_point()>;

  // Whose cached rows a request reuses.
  enum class Reuse { kNobodys, kOwners, kAll };

  struct Epoch {
    uint64_t id = 0;
    uint32_t groups = 1;   // Data groups, which work side by side.
    uint32_t slots = 1;    // Per group; slots of group g begin at g * slots.
    uint32_t context = 1;  // Most positions of a sequence.
    uint32_t blocks = 1;   // In each group's cache; they hold `context`.
    uint32_t drafts = 0;   // Most drafts that a step evaluates of a sequence.
    Reuse reuse = Reuse::kNobodys;
    // Attention of all rows has one form.
    bool reproducible = false;
    // Time of a step with decodes that rows of prompts must keep. 0: none.
    StepPace::Duration step_time{0};
    // See BatchBudget::SetLimit.
    std::optional<StepPace::Duration> batch_step_time;
  };

  // Counters since the beginning, but for the blocks.
  struct CacheUse {
    uint64_t blocks_total = 0;  // In all groups of the epoch.
    uint64_t blocks_used = 0;   // By sequences.
    uint64_t blocks_kept = 0;   // By none, but their rows may be reused.
    uint64_t preemptions = 0;
    uint64_t recomputed_positions = 0;
    uint64_t prefix_queries = 0;  // Prompt tokens that were looked up.
    uint64_t prefix_hits = 0;     // Those of them that were found.
  };

  explicit Scheduler(Now now) : now_(std::move(now)) {}

  // Begins an epoch. Requires that none runs.
  void OpenEpoch(const Epoch& epoch);

  // Ends the epoch, if one runs: requests in slots wait again. `failed`: the
  // end counts against requests in flight without progress. It may end a
  // suspect with `cause`.
  void CloseEpoch(const absl::Status& cause, bool failed);

  // Tells all waiting requests what the fleet waits for, if that has changed.
  // Does nothing while an epoch runs.
  void TellWaiting(const std::string& why);

  // Queues a request. A prompt may fill the context; then one token can still
  // be drawn. A sequence ends with LENGTH when all of its positions are taken:
  // after max_tokens or context - prompt + 1 tokens, whichever is less.
  //
  // Errors: INVALID_ARGUMENT: an empty prompt, or one longer than the context
  // of the last epoch; before the first epoch the request fails with it later.
  // RESOURCE_EXHAUSTED: kMaxWaiting requests wait.
  absl::Status Submit(std::shared_ptr<const Request> request);

  // Ends a request with CANCELLED. NOT_FOUND: the request neither waits nor
  // runs.
  absl::Status Cancel(absl::string_view id);

  // Ends requests whose deadline has passed with DEADLINE_EXCEEDED. While no
  // epoch runs, also ends those that have waited for `longest_wait` with `why`.
  // Counts the time since the last call, unless the fleet is `loading`.
  void Expire(bool loading, absl::Duration longest_wait,
              const absl::Status& why);

  // Ends all requests with `status`, and the epoch. No plan follows.
  void FailAll(const absl::Status& status);

  // The next five functions require an epoch.

  // Returns the next step's plan. Nothing: there is nothing to do,
  // kMaxPlansInFlight plans are in flight, or the plan is held back.
  std::optional<v1::StepPlan> NextPlan();

  // Returns the time to which NextPlan holds the plan behind a step with rows
  // of prompts back: shortly before the step's end by the measured pace. What
  // arrives meanwhile takes part in that plan. Nothing: no plan is held back.
  std::optional<cluster::Deadline::Clock::time_point> held_until() const;

  // Returns a plan without work. Nothing: kMaxPlansInFlight plans are in
  // flight.
  std::optional<v1::StepPlan> EmptyPlan();

  // Takes the merged result of the oldest plan in flight.
  //
  // Errors: INTERNAL: the result of another step, or of a slot that the plan
  // does not name.
  absl::Status OnResult(const v1::StepResult& result);

  // Continues behind `last_step`, up to which a benchmark has planned, with an
  // empty cache. Requires quiet().
  void ContinueAfter(uint64_t last_step);

  std::vector<RequestUpdate> TakeUpdates();

  // Holds admissions and tells waiting requests `why`; "" lets admissions go
  // on. No waiting request enters a slot while they are held. Requires an
  // epoch, whose end lets go too.
  void Hold(const std::string& why);

  // True: no plan is in flight, and no slot is taken.
  bool quiet() const { return order_.empty() && in_flight_.empty(); }

  bool open() const { return epoch_.has_value(); }
  uint64_t epoch() const { return epoch_.has_value() ? epoch_->id : 0; }
  size_t running() const;
  CacheUse cache_use() const;
  size_t waiting() const { return queue_.size(); }
  uint64_t last_step() const { return last_step_; }  // In this epoch.

 private:
  // One run in a slot. The plans in flight that name it share it, and may
  // outlive its stay in the slot.
  struct Sequence {
    std::shared_ptr<Run> run;
    uint32_t slot = 0;
    size_t begin = 0;       // Prompt of the stay: ids [begin, end).
    size_t end = 0;         //
    uint32_t replay_n = 0;  // Committed tokens on admission.
    // Positions of the prompt and these tokens that the plans so far have
    // evaluated, behind those that were in the cache.
    uint32_t planned = 0;
    // Tokens that the plans so far can have committed or replayed at most.
    uint64_t tokens_planned = 0;
    uint64_t last_planned = 0;  // Step of the last plan with a row.
    // Rows that passed the prompt while it was the oldest, up to half of each
    // step, less its own.
    uint32_t owed = 0;
    BlockCache::Table table;
    bool left = false;  // Finished, failed, cancelled, or waiting again.
    bool progressed = false;
    v1::ScoreResult score;  // This window so far.

    const Request& request() const { return *run->request; }
    uint32_t prompt_n() const { return static_cast<uint32_t>(end - begin); }
    uint32_t known_n() const { return prompt_n() + replay_n; }
    // The next position is one of the prompt, or of the committed tokens.
    bool knows_next() const { return planned < known_n(); }
    // The next position was evaluated as a decode.
    bool replays() const {
      return knows_next() && (planned >= prompt_n() ||
                              (planned < run->spans.size() &&
                               run->spans.From(planned).form.decode()));
    }
    bool evaluates() const { return knows_next() && !replays(); }
    // Positions that are in the cache after the plans so far.
    uint64_t cached() const {
      return std::max<uint64_t>(
          planned, tokens_planned > 0 ? prompt_n() + tokens_planned - 1 : 0);
    }
    uint32_t IdAt(uint32_t position) const {
      return position < prompt_n() ? request().prompt_ids[begin + position]
                                   : run->committed[position - prompt_n()];
    }
  };

  struct PlannedWork {
    std::shared_ptr<Sequence> sequence;
    uint32_t tokens = 0;  // Most that the plan commits.
    // Positions that the plan evaluates.
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  struct PlanInFlight {
    uint64_t step = 0;
    cluster::Deadline::Clock::time_point sent;
    uint32_t prompt_rows = 0;  // The most of a data group.
    bool replays = false;
    bool limits_batch = false;  // `rows` are set.
    BatchBudget::Rows rows;
    std::vector<std::shared_ptr<Sequence>> admitted;
    std::vector<PlannedWork> work;
    // The plan ends the prompts of these.
    std::vector<std::shared_ptr<Sequence>> evaluated;
  };

  // Rows of batches that a plan may still have, by data group. They are
  // unlimited while no interactive sequence runs.
  using BatchRows = std::vector<uint32_t>;
  static constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

  // A decode that a plan will have.
  struct NextDecode {
    uint32_t slot = 0;
    uint32_t tokens = 1;  // Most that it commits.
  };

  // Numbers a plan and counts it as in flight.
  v1::StepPlan Send(v1::StepPlan plan, PlanInFlight flight);
  // Counts a failed epoch against the requests in flight without progress.
  void CountFailure();
  // Makes room for a suspect: others leave their slots and wait again.
  void YieldToSuspects();
  void Release(v1::StepPlan* plan);
  // Frees a slot with its blocks. Its sequence has left.
  void FreeSlot(uint32_t slot, v1::StepPlan* plan);
  // Returns whether a sequence in a slot is interactive.
  bool InteractiveRuns() const;
  // Returns slots with a sequence by priority and order of admission.
  std::vector<uint32_t> SlotsByPriority() const;
  // Returns how many tokens the next decode of a sequence can commit. 0: the
  // next plan has none.
  uint32_t TokensOfDecode(const Sequence& sequence) const;
  // Sets what `flight` has of interactive sequences, and returns what it may
  // have of batches.
  BatchRows LimitBatch(PlanInFlight* flight) const;
  // Returns how many tokens the decodes of the next plan can commit, by slot.
  std::map<uint32_t, uint32_t> ShareDecodes(BatchRows* batch_rows) const;
  // Returns the decodes of the sequences that go on. Gives them the blocks that
  // they need, which may take the blocks and the slots of others.
  std::vector<NextDecode> GrowDecodes(BatchRows* batch_rows,
                                      v1::StepPlan* plan);
  // Gives `slot` blocks for `positions`. False: the pool has too few, and the
  // slot none more.
  bool Grant(uint32_t slot, uint64_t positions, v1::StepPlan* plan);
  // Returns the slot of the sequence in `group` that is the first to give its
  // blocks up.
  uint32_t Victim(uint32_t group) const;
  void Preempt(uint32_t slot, const std::string& why, v1::StepPlan* plan);
  // Takes the slot and the blocks of one batch, if an interactive sequence of
  // `positions` has room where no batch runs. False: none was in its way.
  bool MakeRoom(uint64_t positions, v1::StepPlan* plan);
  void Admit(v1::StepPlan* plan);
  // Returns the run that may enter a slot next, which stays in the queue, but
  // for those for which `holds` returns true. Null: none may.
  std::shared_ptr<Run> Next(absl::FunctionRef<bool(const Run&)> holds) const;
  struct Place {
    uint32_t slot = 0;
    BlockCache::Prefix prefix;
    uint64_t blocks = 0;  // To take.
    // Most of the prefix that is missing is being evaluated for another
    // sequence of the group.
    bool waits = false;
  };

  // Slots and blocks of a group for runs that wait for a prefix.
  struct Reserved {
    uint32_t slots = 0;
    uint64_t blocks = 0;
  };

  // Returns the place for a sequence with room for `positions` where its first
  // token comes soonest. A sequence that goes on stays in its first group, if
  // there is room. Nothing: no group has a free slot and room beside what is
  // reserved.
  std::optional<Place> FindPlace(const Sequence& sequence, uint64_t positions,
                                 const std::vector<Reserved>& reserved) const;
  // Returns how many positions the sequence has in common with a prompt of
  // `group` that is evaluated, and has not reached their end.
  uint32_t ComingPrefix(const Sequence& sequence, uint32_t group) const;
  // Returns the rows of `group` that the sequence can reuse.
  BlockCache::Prefix FindPrefix(const Sequence& sequence, uint32_t group) const;
  // Returns whether the sequence may need more blocks than it has.
  bool MayGrow(const Sequence& sequence) const;
  bool Reuses(const Request& request) const;
  std::string SaltOf(const Request& request) const;
  void Enter(std::shared_ptr<Sequence> sequence, const Place& place,
             v1::StepPlan* plan);
  // Makes the sequence's rows of positions below `end` known to later requests.
  void Index(Sequence& sequence, uint64_t end);
  uint32_t GroupOf(uint32_t slot) const { return slot / epoch_->slots; }
  // Returns the form of a span of a prompt that is evaluated for the first
  // time, and the form of decodes.
  SpanForm FormOfPrompt(uint32_t begin, uint32_t count) const;
  SpanForm FormOfDecodes() const;
  // Returns the slots of prompts to evaluate, in the order of their turns.
  std::vector<uint32_t> PromptsInTurn() const;
  // The interactive prompt that entered a data group first, and the rows of the
  // next step that others leave to it.
  struct OldestPrompt {
    std::optional<uint32_t> slot;
    uint32_t planned = 0;  // Positions before the step.
    uint32_t rows = 0;
  };

  // Returns the oldest prompt of each group, for steps of `most` rows of
  // prompts. `cuts`: chunks are cut to keep them.
  std::vector<OldestPrompt> OldestPrompts(bool cuts, uint32_t most) const;
  // Returns the most rows of prompts in a step of a data group.
  uint32_t MostPromptRows(bool beside_decodes) const;
  void PlanPrefills(bool beside_decodes, BatchRows* batch_rows,
                    v1::StepPlan* plan, PlanInFlight* flight);
  // Returns whether the next plan has replays, for which prompts wait.
  bool ReplaysNext(const BatchRows& batch_rows) const;
  void PlanReplays(BatchRows* batch_rows, v1::StepPlan* plan,
                   PlanInFlight* flight);
  void PlanDecodes(const std::vector<NextDecode>& decodes, v1::StepPlan* plan,
                   PlanInFlight* flight);
  // Returns how many tokens may be drawn after `tokens` of them.
  uint64_t TokensLeft(const Sequence& sequence, uint64_t tokens) const;
  void Take(const v1::SlotResult& result, Sequence& sequence);
  void TakeScore(const v1::ScoreResult& part, Sequence& sequence);
  // The sequence's prompt, or its window, is evaluated and nothing is drawn.
  void EndEvaluation(Sequence& sequence);
  // Queues the run of a sequence again.
  void WaitAgain(Sequence& sequence);
  void Finish(v1::FinishReason reason, Run& run);
  void Fail(const absl::Status& status, const Run& run);

  const Now now_;
  std::optional<Epoch> epoch_;  // While it runs.
  uint32_t context_ = 0;        // The last epoch's; 0 before the first.
  uint64_t arrivals_ = 0;
  uint64_t preemptions_ = 0;
  uint64_t recomputed_ = 0;
  uint64_t prefix_queries_ = 0;
  uint64_t prefix_hits_ = 0;
  std::vector<BlockCache> caches_;  // By group of the epoch.
  StepPace pace_;
  BatchBudget batch_budget_;
  cluster::Deadline::Clock::time_point last_result_;
  uint64_t last_step_ = 0;
  std::string held_for_;     // Why admissions are held; "": they are not.
  std::string waiting_for_;  // Last told; empty while an epoch runs.
  Run::Time counted_ = {};   // Time until which waits are counted.
  RequestQueue queue_;
  std::vector<std::shared_ptr<Sequence>> slots_;  // Null: free.
  // Slots with a sequence, in the order of admission.
  std::vector<uint32_t> order_;
  std::deque<PlanInFlight> in_flight_;
  std::vector<RequestUpdate> updates_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_SCHEDULER_H_
