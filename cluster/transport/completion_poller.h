// SPDX-License-Identifier: Apache-2.0
// One completion queue and the question of who polls it. gRPC does all its
// work (reads, writes, answers to pings) inside the thread that polls, so the
// thread that waits for a collective polls itself: a hand-over between threads
// costs more than a small collective. When that thread computes for long, a
// background thread looks at the queue now and then, so that peers see a living
// process. It does not wait there: whoever needs the role next would have to
// wake it first, and be woken by it.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_COMPLETION_POLLER_H_
#define RINGFLEET_CLUSTER_TRANSPORT_COMPLETION_POLLER_H_

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "cluster/process/deadline.h"
#include "cluster/transport/spinning.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {

// The target of a tag of the queue. Runs in the polling thread, which has the
// role of the poller.
class Completion {
 public:
  virtual void OnComplete(bool ok) = 0;

 protected:
  ~Completion() = default;
};

// All state that completions touch is guarded by a role, not by a lock: one
// thread at a time has it, and taking it over orders memory between threads
// (the queue itself is not instrumented for ThreadSanitizer). Thread-safe.
class CompletionPoller {
 public:
  // `housekeeping` runs in the role at least every kTick while someone polls.
  CompletionPoller(std::unique_ptr<grpc::ServerCompletionQueue> queue,
                   Spinning spinning, std::function<void()> housekeeping);
  // Requires that Drain has returned.
  ~CompletionPoller();

  static constexpr absl::Duration kTick = absl::Milliseconds(50);

  // Starts the background thread.
  void Start();

  // Has the role while in scope. The background thread yields it at the next
  // completion, any other holder when its own wait ends. Not re-entrant.
  class Role {
   public:
    explicit Role(CompletionPoller* poller) : poller_(poller) {
      poller_->Acquire();
    }
    ~Role() { poller_->Release(); }
    Role(const Role&) = delete;
    Role& operator=(const Role&) = delete;

   private:
    CompletionPoller* const poller_;
  };

  // Requires the role. Runs completions until done() holds, which is what it
  // returns, or until the deadline. `slice` bounds the time between two
  // looks at done() when no completion arrives.
  bool PollUntil(absl::FunctionRef<bool()> done, Deadline deadline,
                 absl::Duration slice = kTick);
  // Blocks at once instead of asking first: other threads can use the core.
  bool BlockUntil(absl::FunctionRef<bool()> done, Deadline deadline);

  // Requires the role. Runs a completion that the queue has at hand, if there
  // is one.
  bool RunReady();

  // Work for the time when the queue has nothing at hand, before anybody waits
  // for the queue or asks it again.
  class Deferred {
   public:
    virtual void RunDeferred() = 0;

   protected:
    ~Deferred() = default;
  };
  // Require the role. Each is deferred at most once at a time.
  void Defer(std::shared_ptr<Deferred> deferred);
  void Withdraw(const Deferred* deferred);

  // Requires the role.
  void set_spinning(Spinning spinning) { spinning_ = spinning; }

  // Messages that reach this process past the queue. They are polled first
  // and slept for; the queue is still looked at, less often when it carries
  // nothing that anybody waits for.
  class Bypass {
   public:
    // [role] Moves what can be moved, without waiting. True if anything did.
    virtual bool Poll() = 0;
    // [role] Waits until Poll can move something, for Wake, or for `timeout`.
    virtual void Sleep(absl::Duration timeout) = 0;
    // From any thread: ends a Sleep, or the next one.
    virtual void Wake() = 0;
    // [role] Whether the queue carries no frames.
    virtual bool exclusive() const = 0;

   protected:
    ~Bypass() = default;
  };
  // Requires the role. Null: there is none.
  void set_bypass(Bypass* bypass);

  // Makes the thread that polls look at its condition, from any thread.
  void Wake();

  // Requires the role to start operations on it, and !closed().
  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }
  // Set by Drain; no operation may be started afterwards.
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // Joins the background thread, shuts the queue down and runs what is left in
  // it. Requires that the server of the queue is shut down. Idempotent.
  void Drain();

 private:
  class AlarmCompletion : public Completion {
   public:
    explicit AlarmCompletion(CompletionPoller* poller) : poller_(poller) {}
    void OnComplete(bool ok) override;

   private:
    CompletionPoller* const poller_;
  };

  void Acquire();
  void Release();
  bool TryAcquire() { return !taken_.exchange(true); }
  // Takes the role when nobody has used it for `unused`.
  bool AcquireInBackground(absl::Duration unused);
  void RunBackground();
  void RunHousekeeping(Deadline::Clock::time_point now);
  bool Poll(absl::FunctionRef<bool()> done, Deadline deadline,
            absl::Duration slice, Spinning spinning);
  // Looks up to `looks` times. True when something came and done() holds.
  bool LookAtBypass(absl::FunctionRef<bool()> done, int looks);
  // Runs one completion. kShutdown: there will be no more.
  enum class Next { kEvent, kNone, kShutdown };
  Next RunNext(gpr_timespec until);
  // Returns true when there was anything to run.
  bool RunDeferred();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  Spinning spinning_;  // Guarded by the role, as the next four.
  std::vector<std::shared_ptr<Deferred>> deferred_;
  Deadline::Clock::time_point next_tick_;
  Deadline::Clock::time_point next_look_;  // At the queue, beside a bypass.
  uint32_t quick_looks_ = 0;  // Waits that began with looks at a bypass alone.
  const std::function<void()> housekeeping_;
  std::thread background_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> closed_{false};

  // Taking and giving up the role where nobody else wants it costs a swap each.
  // Whoever must wait says so first and then looks once more, under the lock;
  // whoever gives the role up looks for waiters afterwards.
  std::atomic<bool> taken_{false};
  std::atomic<int> wanted_{0};     // Threads that wait for the role.
  std::atomic<uint64_t> uses_{0};  // Times a caller took the role.
  Mutex mu_;
  CondVar changed_;

  Mutex wake_mu_;  // Never held while a completion runs.
  AlarmCompletion alarm_completion_{this};
  grpc::Alarm alarm_ ABSL_GUARDED_BY(wake_mu_);
  bool alarm_pending_ ABSL_GUARDED_BY(wake_mu_) = false;
  // Written in the role and under the lock, so that either is enough to read.
  Bypass* bypass_ = nullptr;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_COMPLETION_POLLER_H_
