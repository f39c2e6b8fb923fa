// SPDX-License-Identifier: Apache-2.0
// Plans the steps of one benchmark test. As many plans are in flight as for
// requests, so requests get the measured speed.
//
//   admit, fill to the depth | warm up, go back | [timed | go back] ... | free
//
// The planner rests before and after each timed part. Nothing is in flight
// then, so that the machines can be measured. The clock starts with the first
// timed plan, when nothing is in flight, and stops with the last timed result.
// Repetitions go back to the depth instead of filling the cache again. The
// scheduler of requests never rests, never goes back, and decodes beside
// prompts.
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

// Carries the events of a test from the fleet's thread to the thread of its
// call. Thread-safe.
class BenchEvents {
 public:
  // The fleet does nothing else. The planner waits for Start.
  struct Owned {};
  // Comes before the first and after each Sample. The planner waits for Start.
  struct Rests {};
  struct Sample {
    uint32_t repetition = 0;
    uint64_t time_ns = 0;
    uint64_t bytes_read = 0;
  };
  // Owned, Rests, Samples with Rests, then one status: the test's end.
  using Event = std::variant<Owned, Rests, Sample, absl::Status>;

  void Push(Event event);
  // Returns the next event, or nothing if none comes before the deadline.
  std::optional<Event> Pop(cluster::Deadline deadline);

 private:
  Mutex mu_;
  CondVar arrived_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
};

// Sizes of a test for each sequence.
struct BenchShape {
  explicit BenchShape(const v1::BenchTest& test);

  uint32_t fill_n = 0;     // Positions filled before the clock starts.
  uint32_t prompt_n = 0;   // fill_n and the test's own prompt.
  uint64_t positions = 0;  // Positions that the whole test takes.
};

// The part of a fleet that a test may take.
struct BenchRoom {
  uint32_t slots = 1;    // In all data groups.
  uint32_t groups = 1;   // Data groups, which get sequences in turn.
  uint32_t context = 1;  // Most positions of a sequence.
  uint32_t blocks = 1;   // Cache blocks of a data group.
};

// Errors: INVALID_ARGUMENT: `test` does nothing, or takes more than `room` has.
absl::Status CheckBenchTest(const v1::BenchTest& test, const BenchRoom& room);

// Pure logic. Only events() is thread-safe.
class BenchPlanner {
 public:
  using Now = std::function<cluster::Deadline::Clock::time_point()>;

  struct Options {
    v1::BenchTest test;
    uint32_t repetitions = 1;
    bool warmup = true;
    uint32_t vocab_size = 1;
    uint32_t bos_id = 0;  // First id of a sequence; the others are random.
  };

  // Requires a test that CheckBenchTest accepts.
  BenchPlanner(Options options, Now now);

  // Takes the fleet over. Requires that nothing is in flight and no slot is
  // taken. Plans continue behind `last_step`. Sequences go to the `groups` data
  // groups in turn. The slots of a group begin at a multiple of `group_slots`.
  void Own(uint64_t epoch, uint64_t last_step, uint32_t groups,
           uint32_t group_slots);
  bool owns() const { return phase_ != Phase::kWaiting; }
  // Lets the planner go on: once when it owns the fleet, then at each rest.
  void Start();
  // Plans no more work, and frees its slots.
  void Cancel(const absl::Status& cause);
  // Ends the test with its epoch. No slot is left to free.
  void Fail(const absl::Status& cause);
  // Returns true once nothing is in flight, no slot is taken, and the status
  // has been pushed.
  bool done() const { return phase_ == Phase::kDone; }
  uint64_t last_step() const { return last_step_; }
  bool cancelled() const { return !verdict_.ok(); }
  uint32_t sequences() const { return options_.test.n_parallel(); }

  // The thread that runs the epoch's steps calls these functions.
  std::optional<v1::StepPlan> NextPlan();
  absl::Status OnResult(const v1::StepResult& merged);

  BenchEvents& events() { return events_; }

 private:
  enum class Phase {
    kWaiting,  // Waits for the fleet.
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

  // Returns the id of a sequence's position, in prompt and generation alike.
  uint32_t IdAt(uint32_t sequence, uint32_t position) const;
  uint32_t SlotOf(size_t sequence) const;
  void Admit(uint32_t sequence, v1::StepPlan* plan) const;
  // Returns the positions of a sequence that workers make up.
  uint32_t SyntheticN() const;
  // Adds prompt tokens, up to `limit` positions of each sequence and one chunk
  // for each data group. Admits sequences as it reaches them. Returns whether
  // anything was added.
  bool PlanPrompts(uint32_t limit, v1::StepPlan* plan);
  bool PlanDecodes(uint32_t count, v1::StepPlan* plan);
  void PlanRewinds(v1::StepPlan* plan);
  bool PlanReleases(v1::StepPlan* plan);
  // Plans work of the phase. Returns false if all of it has been planned.
  bool PlanPhase(v1::StepPlan* plan);
  bool WaitsForStart() const {
    return phase_ == Phase::kOwning || phase_ == Phase::kResting;
  }
  // Ends a phase without plans in flight or left to make.
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
  bool rewind_ = false;  // The next plan goes back to the depth.
  bool warmed_ = false;  // The warm-up's one plan is made.
  uint32_t repetition_ = 0;
  bool clock_runs_ = false;
  cluster::Deadline::Clock::time_point begun_;
  uint64_t bytes_read_ = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SCHEDULING_BENCH_PLANNER_H_
