// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/doctor/doctor_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/session.h"
#include "coordinator/fleet/barrier.h"
#include "coordinator/fleet/clock_offset.h"
#include "coordinator/fleet/worker_client.h"
#include "coordinator/membership/membership.h"
#include "protos/host.grpc.pb.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr absl::Duration kReplyTime = absl::Seconds(30);
constexpr absl::Duration kInterruptLook = absl::Milliseconds(10);
// Deadline for one host's kernels and disk: up to 10 s for each of four parts.
constexpr absl::Duration kHostTime = absl::Seconds(90);
// Reads of memory in slices much longer than what workers start apart.
constexpr uint32_t kReadSliceMs = 100;
constexpr uint64_t kLargeBytes = 8 << 20;
// A vector of one token of R1, in float32.
constexpr uint64_t kTokenBytes = 28 << 10;
// A quick examination keeps no rate.
constexpr uint32_t kQuickMs = 1;
constexpr uint32_t kQuickExchangeMs = 100;

// Makes one call to each worker, all at the same time. Returns the first
// failure by rank. `cancel` ends running calls after an interrupt.
absl::Status AskAll(size_t count,
                    const std::function<absl::Status(size_t)>& ask,
                    const std::function<void()>& cancel,
                    const BenchWorkers& workers) {
  std::vector<absl::Status> statuses(count);
  std::atomic<size_t> ended{0};
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = ask(rank);
      ++ended;
    });
  }
  while (ended < count) {
    if (Interrupt::Get().requested()) cancel();
    absl::SleepFor(kInterruptLook);
  }
  for (std::thread& thread : threads) thread.join();
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  for (size_t rank = 0; rank < count; ++rank) {
    RF_RETURN_IF_ERROR(Annotate(
        statuses[rank],
        absl::StrCat("worker ", rank, " (", workers.addresses[rank], ")")));
  }
  return absl::OkStatus();
}

// How many workers share the machine of one.
uint32_t RanksOnMachine(const BenchWorkers& workers, size_t rank) {
  const std::vector<std::string>& machines = workers.machines;
  return static_cast<uint32_t>(
      std::count(machines.begin(), machines.end(), machines[rank]));
}

absl::Status MeasureHost(const BenchWorkers& workers, size_t rank,
                         const DoctorOptions& options,
                         WorkerFindings* findings) {
  const auto stub = v1::Host::NewStub(ConnectChannel(workers.addresses[rank]));
  v1::MeasureHostRequest request;
  request.set_time_ms(options.quick ? kQuickMs : options.time_ms);
  request.set_path(options.disk_path);
  request.set_ranks_on_host(RanksOnMachine(workers, rank));
  request.set_memory_bytes(findings->memory_share_bytes);
  for (const std::string& folder : options.folders) {
    request.add_folders(folder);
  }
  if (!options.state_dir.empty() &&
      workers.addresses[rank] == options.state_address) {
    request.add_folders(options.state_dir);
  }
  InterruptibleCall call;
  call.context()->set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(absl::ToInt64Milliseconds(kHostTime)));
  return cluster::FromGrpc(
      stub->Measure(call.context(), request, &findings->report));
}

absl::Status CompareClock(const std::string& address,
                          WorkerFindings* findings) {
  const auto stub = v1::Host::NewStub(ConnectChannel(address));
  const auto theirs = [&stub]() -> absl::StatusOr<int64_t> {
    InterruptibleCall call;
    call.context()->set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::milliseconds(absl::ToInt64Milliseconds(kReplyTime)));
    v1::ClockReading reading;
    RF_RETURN_IF_ERROR(cluster::FromGrpc(
        stub->ReadClock(call.context(), v1::ReadClockRequest(), &reading)));
    return reading.unix_ns();
  };
  RF_ASSIGN_OR_RETURN(
      const ClockOffset clock,
      MeasureClockOffset([] { return absl::GetCurrentTimeNanos(); }, theirs));
  findings->clock_skew_ms = static_cast<double>(clock.offset_ns) * 1e-6;
  findings->clock_uncertain_ms = static_cast<double>(clock.error_ns) * 1e-6;
  return absl::OkStatus();
}

// Each worker's part of the slice in which its machine reads most.
absl::Status MeasureReads(const BenchWorkers& workers,
                          const DoctorOptions& options,
                          std::vector<WorkerFindings>* findings) {
  const size_t count = workers.addresses.size();
  const uint32_t slices = std::max<uint32_t>(options.time_ms / kReadSliceMs, 1);
  std::vector<std::vector<double>> bytes(count,
                                         std::vector<double>(slices, 0.0));
  Barrier line(count);
  std::vector<std::unique_ptr<WorkerClient>> clients;
  for (const std::string& address : workers.addresses) {
    clients.push_back(std::make_unique<WorkerClient>(address));
  }
  RF_RETURN_IF_ERROR(AskAll(
      count,
      [&](size_t rank) -> absl::Status {
        v1::MeasureMemoryRequest request;
        request.set_ranks_on_host(RanksOnMachine(workers, rank));
        request.set_slice_ms(kReadSliceMs);
        request.set_slices(slices);
        const auto measured = clients[rank]->MeasureMemory(
            request, cluster::Deadline::After(kReplyTime),
            [&line] { line.AwaitOthers(); });
        if (!measured.ok()) {
          line.Fail();
          return measured.status();
        }
        for (uint32_t i = 0;
             i < slices &&
             i < static_cast<uint32_t>(measured->slice_bytes_size());
             ++i) {
          bytes[rank][i] = static_cast<double>(measured->slice_bytes(i));
        }
        return absl::OkStatus();
      },
      [&clients] {
        for (const auto& client : clients) client->Cancel();
      },
      workers));
  std::map<std::string, std::vector<double>> sums;
  for (size_t rank = 0; rank < count; ++rank) {
    std::vector<double>& sum = sums[workers.machines[rank]];
    sum.resize(slices);
    for (uint32_t i = 0; i < slices; ++i) sum[i] += bytes[rank][i];
  }
  for (size_t rank = 0; rank < count; ++rank) {
    const std::vector<double>& sum = sums[workers.machines[rank]];
    const size_t best = std::max_element(sum.begin(), sum.end()) - sum.begin();
    (*findings)[rank].read_bytes_per_second =
        bytes[rank][best] / (kReadSliceMs * 1e-3);
  }
  return absl::OkStatus();
}

// All-reduces of vectors of these sizes, each for `time_ms`.
v1::MeasureCollectivesRequest AllReduces(const std::vector<uint64_t>& sizes,
                                         uint32_t time_ms,
                                         const DoctorOptions& options) {
  v1::MeasureCollectivesRequest request;
  request.set_timeout_ms(10'000);
  request.set_collective_timeout_ms(10'000);
  request.set_algorithm_table(cluster::AlgorithmTable::Default().ToJson());
  request.set_case_ms(time_ms);
  request.set_transport(options.transport);
  for (const uint64_t bytes : sizes) {
    v1::CollectiveCase* one = request.add_cases();
    one->set_operation(v1::COLLECTIVE_OPERATION_ALL_REDUCE);
    one->set_wire(v1::WIRE_DTYPE_F32);
    one->set_bytes(bytes);
  }
  return request;
}

absl::StatusOr<ExchangeFindings> MeasureExchange(const BenchWorkers& workers,
                                                 const DoctorOptions& options) {
  RF_ASSIGN_OR_RETURN(
      const std::vector<v1::CollectiveFigures> figures,
      RunCollectives(workers,
                     AllReduces({kTokenBytes}, kQuickExchangeMs, options),
                     [](const v1::CollectiveFigures&) {}));
  if (figures.size() != 1) {
    return absl::InternalError("doctor: the exchange was not measured");
  }
  return ExchangeFindings{.ranks = static_cast<int>(workers.addresses.size()),
                          .bytes = kTokenBytes,
                          .p50_us = figures[0].p50_us(),
                          .wrong = figures[0].wrong(),
                          .transport = figures[0].transport()};
}

absl::StatusOr<PairFindings> MeasurePair(const BenchWorkers& workers, int first,
                                         int second,
                                         const DoctorOptions& options) {
  const BenchWorkers pair = {
      {workers.addresses[first], workers.addresses[second]},
      {workers.machines[first], workers.machines[second]}};
  RF_ASSIGN_OR_RETURN(
      const std::vector<v1::CollectiveFigures> figures,
      RunCollectives(pair,
                     AllReduces({4, kLargeBytes}, options.time_ms, options),
                     [](const v1::CollectiveFigures&) {}));
  if (figures.size() != 2) {
    return absl::InternalError("doctor: not all exchanges were measured");
  }
  // Between two ranks each sends as many bytes as the vector has.
  return PairFindings{.first = first,
                      .second = second,
                      .small_us = figures[0].p50_us(),
                      .gbit = 8e-3 * kLargeBytes / figures[1].p50_us(),
                      .transport = figures[0].transport()};
}

// The workers that can be reached, with their ranks, and the others. Machines
// have the names of the caller.
struct Reached {
  BenchWorkers workers;
  std::vector<int> ranks;
  std::vector<AbsentWorker> absent;
};

Reached Reach(const BenchWorkers& workers) {
  Reached reached;
  for (size_t i = 0; i < workers.addresses.size(); ++i) {
    const auto rank = static_cast<int>(i);
    if (Interrupt::Get().requested() ||
        (!workers.addresses[i].empty() &&
         cluster::AwaitConnection(
             *cluster::OpenChannel(workers.addresses[i])))) {
      reached.workers.addresses.push_back(workers.addresses[i]);
      reached.workers.machines.push_back(workers.machines[i]);
      reached.ranks.push_back(rank);
    } else {
      reached.absent.push_back({rank, workers.addresses[i]});
    }
  }
  return reached;
}

// Examines workers that can all be reached. Their ranks are their positions.
absl::StatusOr<DoctorFindings> ExamineAll(const BenchWorkers& workers,
                                          const DoctorOptions& options) {
  const size_t count = workers.addresses.size();
  DoctorFindings findings;
  findings.workers.resize(count);
  const std::vector<uint64_t> shares = MemoryShares(workers);
  RF_RETURN_IF_ERROR(AskAll(
      count,
      [&](size_t rank) {
        findings.workers[rank].host = workers.machines[rank];
        findings.workers[rank].machine = workers.machines[rank];
        findings.workers[rank].address = workers.addresses[rank];
        findings.workers[rank].memory_share_bytes = shares[rank];
        return MeasureHost(workers, rank, options, &findings.workers[rank]);
      },
      /*cancel=*/[] {},  // Its call is interruptible.
      workers));
  for (size_t rank = 0; rank < count; ++rank) {  // Alone: threads would wait.
    RF_RETURN_IF_ERROR(
        CompareClock(workers.addresses[rank], &findings.workers[rank]));
    RF_RETURN_IF_ERROR(Interrupt::Get().status());
  }
  const auto skip = [&findings](const absl::Status& connected) {
    findings.pairs.clear();
    findings.pairs_skipped = absl::StrCat(
        connected.message(), "; stop the fleet's coordinator first");
    return findings;
  };
  findings.quick = options.quick;
  if (options.quick) {
    if (count < 2) return findings;
    const auto exchange = MeasureExchange(workers, options);
    if (absl::IsFailedPrecondition(exchange.status())) {
      return skip(exchange.status());
    }
    RF_RETURN_IF_ERROR(exchange.status());
    findings.exchange = *exchange;
    return findings;
  }
  RF_RETURN_IF_ERROR(MeasureReads(workers, options, &findings.workers));
  for (size_t first = 0; first < count; ++first) {
    for (size_t second = first + 1; second < count; ++second) {
      absl::StatusOr<PairFindings> pair = MeasurePair(
          workers, static_cast<int>(first), static_cast<int>(second), options);
      if (absl::IsFailedPrecondition(pair.status())) {
        return skip(pair.status());
      }
      RF_RETURN_IF_ERROR(pair.status());
      findings.pairs.push_back(*std::move(pair));
    }
  }
  return findings;
}

}  // namespace

std::vector<uint64_t> MemoryShares(const BenchWorkers& workers) {
  std::vector<Member> members(workers.addresses.size());
  for (size_t rank = 0; rank < members.size(); ++rank) {
    members[rank].machine = workers.machines[rank];
    if (rank < workers.memory.size()) {
      members[rank].memory = workers.memory[rank];
    }
  }
  std::vector<uint64_t> shares;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    shares.push_back(ShareOf(members, rank, &Member::memory));
  }
  return shares;
}

absl::StatusOr<DoctorFindings> ExamineWorkers(const BenchWorkers& workers,
                                              const DoctorOptions& options) {
  Reached reached = Reach(workers);
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (reached.ranks.empty()) return ExamineAll(workers, options);
  const std::vector<std::string> hosts = reached.workers.machines;
  RF_RETURN_IF_ERROR(FindMachines(&reached.workers));
  RF_ASSIGN_OR_RETURN(DoctorFindings findings,
                      ExamineAll(reached.workers, options));
  findings.absent = std::move(reached.absent);
  for (size_t i = 0; i < findings.workers.size(); ++i) {
    findings.workers[i].rank = reached.ranks[i];
    findings.workers[i].host = hosts[i];
  }
  for (PairFindings& pair : findings.pairs) {
    pair.first = reached.ranks[pair.first];
    pair.second = reached.ranks[pair.second];
  }
  return findings;
}

}  // namespace ringfleet::coordinator::cli
