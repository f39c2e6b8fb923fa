// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/epoch_trace.h"

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "cluster/process/status_macros.h"
#include "cluster/recording/trace_recorder.h"
#include "coordinator/fleet/clock_offset.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

constexpr absl::Duration kClockTimeout = absl::Seconds(10);

// Messages between a trace's own thread and the threads of its workers.
class TraceGate {
 public:
  explicit TraceGate(size_t workers) : missing_(workers) {}

  // A worker records. Waits for the end; false when nobody wants the events.
  bool Recording() {
    MutexLock lock(&mu_);
    --missing_;
    changed_.NotifyAll();
    while (!ended_) changed_.Wait(&mu_);
    return wanted_;
  }
  // A worker's part has failed.
  void Fail() {
    MutexLock lock(&mu_);
    failed_ = true;
    changed_.NotifyAll();
  }

  // Waits until all workers record; false when one does not.
  bool AwaitRecording() {
    MutexLock lock(&mu_);
    while (missing_ > 0 && !failed_) changed_.Wait(&mu_);
    return !failed_;
  }
  void End(bool wanted) {
    MutexLock lock(&mu_);
    ended_ = true;
    wanted_ = wanted;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t missing_ ABSL_GUARDED_BY(mu_);
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
};

absl::StatusOr<ClockOffset> CompareSteadyClock(WorkerClient& client) {
  return MeasureClockOffset(
      [] { return cluster::TraceNow(); },
      [&client]() -> absl::StatusOr<int64_t> {
        RF_ASSIGN_OR_RETURN(const v1::ClockReading reading,
                            client.ReadClock(Deadline::After(kClockTimeout)));
        return reading.steady_ns();
      });
}

void ClockToProto(const ClockOffset& clock, v1::TraceProgress::Clock* out) {
  out->set_offset_ns(clock.offset_ns);
  out->set_error_ns(clock.error_ns);
}

// One worker's part. `write` may be called by several threads at a time.
absl::Status TraceWorker(
    const Member& member, WorkerClient& client, const v1::TraceRequest& request,
    int64_t begun_ns, TraceGate& gate,
    const std::function<void(const v1::TraceProgress&)>& write) {
  RF_ASSIGN_OR_RETURN(const ClockOffset before, CompareSteadyClock(client));
  ClockOffset after;
  bool first = true;
  return client.Trace(
      request, [&gate] { return gate.Recording(); },
      [&](v1::TraceChunk chunk) -> absl::Status {
        v1::TraceProgress progress;
        if (std::exchange(first, false)) {
          RF_ASSIGN_OR_RETURN(after, CompareSteadyClock(client));
          v1::TraceProgress::Rank* rank = progress.mutable_rank();
          rank->set_rank(static_cast<uint32_t>(member.rank));
          rank->set_host(member.host);
          rank->set_address(member.address);
          rank->set_pid(member.pid);
          rank->set_dropped(chunk.dropped());
          ClockToProto(before, rank->mutable_began());
          ClockToProto(after, rank->mutable_ended());
          write(progress);
        }
        for (v1::TraceEvent& event : *chunk.mutable_events()) {
          // Both ends, so that what lies within another event still does.
          const auto duration_ns = static_cast<int64_t>(event.duration_ns());
          const int64_t end =
              ToOurClock(event.begin_ns() + duration_ns, before, after);
          const int64_t begin = ToOurClock(event.begin_ns(), before, after);
          event.set_begin_ns(begin - begun_ns);
          event.set_duration_ns(static_cast<uint64_t>(end - begin));
        }
        progress.mutable_events()->set_rank(static_cast<uint32_t>(member.rank));
        *progress.mutable_events()->mutable_chunk() = std::move(chunk);
        write(progress);
        return absl::OkStatus();
      });
}

}  // namespace

absl::Status TraceEpoch(
    FleetEpoch& epoch, const v1::TraceRequest& request,
    const std::function<bool()>& await_end,
    const std::function<void(const v1::TraceProgress&)>& on_progress) {
  v1::TraceProgress progress;
  progress.mutable_started()->set_unix_ms(absl::ToUnixMillis(absl::Now()));
  const int64_t begun_ns = cluster::TraceNow();
  progress.mutable_started()->set_steady_ns(begun_ns);
  const std::vector<Member>& members = epoch.members();
  TraceGate gate(members.size());
  Mutex write_mu;
  const auto write = [&](const v1::TraceProgress& part) {
    MutexLock lock(&write_mu);
    on_progress(part);
  };
  std::vector<absl::Status> statuses(members.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, rank = static_cast<int>(i)] {
      statuses[rank] = TraceWorker(members[rank], epoch.client(rank), request,
                                   begun_ns, gate, write);
      if (!statuses[rank].ok()) gate.Fail();
    });
  }
  bool wanted = gate.AwaitRecording();
  if (wanted) {
    write(progress);
    wanted = await_end();
  }
  gate.End(wanted);
  for (std::thread& thread : threads) thread.join();
  // A worker that gave up first tells more than those that were given up.
  absl::Status first;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const absl::Status& status = statuses[rank];
    if (status.ok() || (!first.ok() && absl::IsCancelled(status))) continue;
    if (first.ok() || absl::IsCancelled(first)) {
      first = Annotate(status, members[rank].Description());
    }
  }
  return first;
}

}  // namespace ringfleet::coordinator
