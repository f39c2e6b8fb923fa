// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_FUSED_GATHER_H_
#define RINGFLEET_WORKER_FUSED_GATHER_H_

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cluster/process/status_macros.h"
#include "worker/fused/grow.h"
#include "worker/fused/timed_communicator.h"

namespace ringfleet::worker {

// All-gathers records. Every rank contributes equally many, and `all` becomes
// the records of all ranks in rank order. `all` keeps its memory from call to
// call. T is plain data.
// Errors: those of Communicator::AllGather.
template <typename T>
absl::Status GatherRecords(TimedCommunicator& communicator,
                           absl::Span<const T> own, std::vector<T>* all) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<uint64_t>& offsets = communicator.gather_offsets();
  offsets.resize(communicator.size() + 1);
  for (size_t rank = 0; rank < offsets.size(); ++rank) {
    offsets[rank] = rank * own.size() * sizeof(T);
  }
  char* const buffer = Grow(communicator.gather_buffer(), offsets.back());
  if (!own.empty()) {
    std::memcpy(buffer + offsets[communicator.rank()], own.data(),
                own.size() * sizeof(T));
  }
  RF_RETURN_IF_ERROR(
      communicator.AllGather(absl::MakeSpan(buffer, offsets.back()), offsets));
  all->resize(communicator.size() * own.size());
  if (!all->empty()) std::memcpy(all->data(), buffer, offsets.back());
  return absl::OkStatus();
}

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_FUSED_GATHER_H_
