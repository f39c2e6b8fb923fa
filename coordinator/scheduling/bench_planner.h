// SPDX-License-Identifier: Apache-2.0
// The steps of one benchmark test, planned through the same workers and with
// as many plans ahead as ordinary work, so that its figures are what requests
// get.
//
//   admit, fill to the depth | warm up, go back | [timed | go back] ... | free
//
// Before and after each timed part it rests: nothing is in flight, so that the
// machines can be measured. The clock starts when nothing is in flight and the
// first timed plan is made, and stops with the last timed result. Repetitions
// go back to the depth instead of filling the cache again.
#ifndef RINGFLEET_COORDINATOR_SCHEDULING_BENCH_PLANNER_H_
#define RINGFLEET_COORDINATOR_SCHEDULING_BENCH_PLANNER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "cluster/process/deadline.h"
#include "kernels/mutex.h"
#include "protos/coordinator.pb.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator {

// What a test tells whoever asked for it, from the fleet's thread to that of
// the call. Thread-safe.
class BenchEvents {
 public:
  struct Owned {};  // The fleet does nothing else; the planner waits for Start.
  struct Rests {};  // Before the first and after each Sample; so it does here.
  struct Sample {
    uint32_t repetition = 0;
    uint64_t time_ns = 0;
    uint64_t bytes_read = 0;
  };
  // Owned, Rests, Samples with Rests, then one status: how the test ended.
  using Event = std::variant<Owned, Rests, Sample, absl::Status>;

  void Push(Event event);
  // Nothing when none comes before the deadline.
  std::optional<Event> Pop(cluster::Deadline deadline);

 private:
  Mutex mu_;
  CondVar arrived_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
};

// A test with its sizes worked out, for each of its sequences.
struct BenchShape {
  explicit BenchShape(const v1::BenchTest& test);

  uint32_t fill_n = 0;     // Positions filled before the clock starts.
  uint32_t prompt_n = 0;   // These, and the test's own prompt.
  uint64_t positions = 0;  // That the whole test takes.
};

// Errors: INVALID_ARGUMENT: `test` does nothing, or takes more slots or
// positions than there are.
absl::Status CheckBenchTest(const v1::BenchTest& test, uint32_t slots,
                            uint32_t context);

// Pure logic; not thread-safe but for events().
class BenchPlanner {
 public:
  using Now = std::function<cluster::Deadline::Clock::time_point()>;

  struct Options {
    v1::BenchTest test;
    uint32_t repetitions = 1;
    bool warmup = true;
    uint32_t vocab_size = 1;
    uint32_t bos_id = 0;  // First of every sequence; the others are random.
  };

  // Requires a test that CheckBenchTest finds in order.
  BenchPlanner(Options options, Now now);

  // Takes the fleet over: nothing is in flight and no slot is taken. Plans
  // continue behind `last_step`. Sequences go to one of `groups` data groups
  // after the other, whose slots begin at multiples of `group_slots`.
  void Own(uint64_t epoch, uint64_t last_step, uint32_t groups,
           uint32_t group_slots);
  bool owns() const { return phase_ != Phase::kWaiting; }
  // Lets it plan, once it owns the fleet, and when it rests.
  void Start();
  // Plans no more work; frees what was taken.
  void Cancel(const absl::Status& cause);
  // The epoch has ended: nothing is left to free.
  void Fail(const absl::Status& cause);
  // Nothing is in flight, and no slot is taken: the fleet is given back. The
  // status has been pushed.
  bool done() const { return phase_ == Phase::kDone; }
  uint64_t last_step() const { return last_step_; }
  bool cancelled() const { return !verdict_.ok(); }
  uint32_t sequences() const { return options_.test.n_parallel(); }

  // As a StepSource.
  std::optional<v1::StepPlan> NextPlan();
  absl::Status OnResult(const v1::StepResult& merged);

  BenchEvents& events() { return events_; }

 private:
  enum class Phase {
    kWaiting,  // For the fleet.
    kOwning,   // Waits for Start.
    kFilling,
    kWarming,
    kResting,  // Waits for Start.
    kTiming,
    kFreeing,
    kDone,
  };

  struct Sequence {
    uint32_t length = 0;  // Positions in plans so far.
    bool admitted = false;
    uint32_t decodes = 0;  // Planned since the last return to the depth.
  };

  // The id of a sequence's position, prompt and generated alike.
  uint32_t IdAt(uint32_t sequence, uint32_t position) const;
  uint32_t SlotOf(size_t sequence) const;
  void Admit(uint32_t sequence, v1::StepPlan* plan) const;
  // Adds prompt tokens up to `limit` positions of each sequence and one chunk
  // for each data group, admitting sequences as they are reached; whether
  // anything was added.
  bool PlanPrompts(uint32_t limit, v1::StepPlan* plan);
  bool PlanDecodes(uint32_t count, v1::StepPlan* plan);
  void PlanRewinds(v1::StepPlan* plan);
  bool PlanReleases(v1::StepPlan* plan);
  // Work of the phase; false when all of it has been planned.
  bool PlanPhase(v1::StepPlan* plan);
  bool WaitsForStart() const {
    return phase_ == Phase::kOwning || phase_ == Phase::kResting;
  }
  // Nothing is in flight and nothing is left to plan in this phase.
  void EndPhase();
  void Enter(Phase phase);

  const Options options_;
  const BenchShape shape_;
  const Now now_;
  BenchEvents events_;

  Phase phase_ = Phase::kWaiting;
  absl::Status verdict_;
  uint64_t epoch_ = 0;
  uint32_t groups_ = 1;
  uint32_t group_slots_ = 0;
  uint64_t last_step_ = 0;
  std::deque<uint64_t> in_flight_;
  std::vector<Sequence> sequences_;
  bool rewind_ = false;  // With the next plan.
  bool warmed_ = false;  // The warm-up's one plan is made.
  uint32_t repetition_ = 0;
  bool clock_runs_ = false;
  cluster::Deadline::Clock::time_point begun_;
  uint64_t bytes_read_ = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_BENCH_PLANNER_H_
