// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/host_read.h"

#include <thread>
#include <utility>
#include <vector>

#include "cluster/process/status_macros.h"
#include "coordinator/fleet/barrier.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

// Slices of Worker.MeasureMemory: nearly a second in all, each much longer than
// the time between the workers' starts.
constexpr uint32_t kSliceMs = 100;
constexpr uint32_t kSlices = 8;
constexpr absl::Duration kMeasureTimeout = absl::Seconds(60);

}  // namespace

absl::StatusOr<double> MeasureHostRead(FleetEpoch& epoch) {
  const std::vector<Member>& members = epoch.members();
  const Deadline deadline = Deadline::After(kMeasureTimeout);
  std::vector<absl::StatusOr<v1::MeasureMemoryResponse>> measured(
      members.size(), absl::UnknownError("not asked"));
  Barrier ready(members.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      v1::MeasureMemoryRequest request;
      request.set_ranks_on_host(RanksOnMachine(members, rank));
      request.set_slice_ms(kSliceMs);
      request.set_slices(kSlices);
      measured[rank] = epoch.client(static_cast<int>(rank))
                           .MeasureMemory(request, deadline,
                                          [&ready] { ready.AwaitOthers(); });
      if (!measured[rank].ok()) ready.Fail();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The mean of all slices, because a repetition is a mean over its time too.
  double bytes = 0;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    RF_RETURN_IF_ERROR(
        Annotate(measured[rank].status(), members[rank].Description()));
    for (const uint64_t slice : measured[rank]->slice_bytes()) {
      bytes += static_cast<double>(slice);
    }
  }
  return bytes / (kSlices * kSliceMs * 1e-3) / CountMachines(members) * 1e-9;
}

}  // namespace ringfleet::coordinator
