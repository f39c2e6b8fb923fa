// SPDX-License-Identifier: Apache-2.0
// Polls one completion queue and decides which thread polls. gRPC does all its
// work (reads, writes, answers to pings) inside the thread that polls. The
// thread that waits for a collective polls itself, because a hand-over between
// threads costs more than a small collective. While no thread polls, a
// background thread looks at the queue now and then, so that peers see a living
// process. The background thread never blocks on the queue. Otherwise a thread
// that needs the queue would have to wake the background thread and wait for
// it.
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

// A tag of the queue. OnComplete runs in the polling thread, which has the
// poller's role.
class Completion {
 public:
  virtual void OnComplete(bool ok) = 0;

 protected:
  ~Completion() = default;
};

// A role guards all state that completions touch; there is no lock. One thread
// at a time has the role. Acquiring the role orders memory between threads; the
// queue itself is not instrumented for ThreadSanitizer. Thread-safe.
class CompletionPoller {
 public:
  // `housekeeping` runs in the role, at least every kTick while a thread polls.
  CompletionPoller(std::unique_ptr<grpc::ServerCompletionQueue> queue,
                   Spinning spinning, std::function<void()> housekeeping);
  // Drain must have returned.
  ~CompletionPoller();

  static constexpr absl::Duration kTick = absl::Milliseconds(50);

  // Starts the background thread.
  void Start();

  // Holds the role while in scope. The constructor waits for the role: the
  // background thread gives it up at the next completion, another holder at the
  // end of its scope. Not re-entrant.
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

  // Requires the role. Runs completions until done() is true or the deadline
  // has passed. Returns the last done(). Calls done() at least every `slice`,
  // even if no completion arrives.
  bool PollUntil(absl::FunctionRef<bool()> done, Deadline deadline,
                 absl::Duration slice = kTick);
  // Does as PollUntil, but blocks at once without spinning, so that other
  // threads can use the core.
  bool BlockUntil(absl::FunctionRef<bool()> done, Deadline deadline);

  // Requires the role. Runs one completion if the queue has one. Returns true
  // if it ran one.
  bool RunReady();

  // Work that runs once the queue is found empty, before a thread waits for the
  // queue or looks at it again.
  class Deferred {
   public:
    virtual void RunDeferred() = 0;

   protected:
    ~Deferred() = default;
  };
  // Require the role. An object may be deferred only once at a time. Withdraw
  // removes it.
  void Defer(std::shared_ptr<Deferred> deferred);
  void Withdraw(const Deferred* deferred);

  // Requires the role.
  void set_spinning(Spinning spinning) { spinning_ = spinning; }

  // A source of messages besides the queue, such as shared memory. The poller
  // polls the bypass first and sleeps on it. It looks at the queue from time to
  // time, and less often if the bypass is exclusive.
  class Bypass {
   public:
    // [role] Moves all bytes that can be moved without waiting. Returns true if
    // it moved any.
    virtual bool Poll() = 0;
    // [role] Waits until Poll can move bytes, Wake is called or `timeout` has
    // passed.
    virtual void Sleep(absl::Duration timeout) = 0;
    // Ends the running Sleep, or the next one. Thread-safe.
    virtual void Wake() = 0;
    // [role] Returns true if the queue carries no frames.
    virtual bool exclusive() const = 0;

   protected:
    ~Bypass() = default;
  };
  // Requires the role. Null removes the bypass.
  void set_bypass(Bypass* bypass);

  // Makes the polling thread call done(). Thread-safe.
  void Wake();

  // Starting an operation on the queue requires the role and !closed().
  grpc::ServerCompletionQueue* queue() const { return queue_.get(); }
  // Returns true once Drain was called. No operation may start then.
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // Joins the background thread, shuts the queue down and runs the completions
  // that are left. The server of the queue must have been shut down.
  // Idempotent.
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
  // Takes the role if no thread has used it for `unused`. Returns true if it
  // did.
  bool AcquireInBackground(absl::Duration unused);
  void RunBackground();
  void RunHousekeeping(Deadline::Clock::time_point now);
  bool Poll(absl::FunctionRef<bool()> done, Deadline deadline,
            absl::Duration slice, Spinning spinning);
  // Polls the bypass up to `looks` times. Returns true if a message came and
  // done() is true.
  bool LookAtBypass(absl::FunctionRef<bool()> done, int looks);
  // Runs one completion. kShutdown: the queue has no more completions.
  enum class Next { kEvent, kNone, kShutdown };
  Next RunNext(gpr_timespec until);
  // Returns true if it ran any deferred work.
  bool RunDeferred();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  Spinning spinning_;  // The role guards it and the next four.
  std::vector<std::shared_ptr<Deferred>> deferred_;
  Deadline::Clock::time_point next_tick_;
  Deadline::Clock::time_point next_look_;  // At the queue, with a bypass.
  uint32_t quick_looks_ = 0;  // Polls that began with the bypass alone.
  const std::function<void()> housekeeping_;
  std::thread background_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> closed_{false};

  // True while a thread has the role. Taking or giving up the role costs one
  // swap if no other thread wants it. A thread that must wait first increments
  // wanted_, then tries again under the lock. A thread that gives the role up
  // reads wanted_ afterwards. So no wake-up is missed.
  std::atomic<bool> taken_{false};
  std::atomic<int> wanted_{0};     // Threads that wait for the role.
  std::atomic<uint64_t> uses_{0};  // Number of Acquire calls.
  Mutex mu_;
  CondVar changed_;

  Mutex wake_mu_;  // Never held while a completion runs.
  AlarmCompletion alarm_completion_{this};
  grpc::Alarm alarm_ ABSL_GUARDED_BY(wake_mu_);
  bool alarm_pending_ ABSL_GUARDED_BY(wake_mu_) = false;
  // Written with both the role and wake_mu_, so a reader needs only one of
  // them.
  Bypass* bypass_ = nullptr;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_COMPLETION_POLLER_H_
