// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/measure_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "kernels/aligned_buffer.h"
#include "kernels/read_bandwidth.h"
#include "kernels/thread_pool.h"
#include "worker/loading/host.h"

namespace ringfleet::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLeastTestBytes = uint64_t{512} << 20;
// Bytes of one read between two looks at the clock. It takes a few
// milliseconds, much less than a slice.
constexpr size_t kPassBytes = size_t{64} << 20;
constexpr size_t kReadPieceBytes = size_t{1} << 20;
constexpr uint64_t kLongestMs = 60'000;

double ToSeconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

absl::Status CheckTimes(const v1::MeasureMemoryRequest& request) {
  const uint64_t total_ms = uint64_t{request.slice_ms()} * request.slices();
  if (request.slice_ms() == 0 || request.slices() == 0 ||
      total_ms > kLongestMs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory: ", request.slices(), " slices of ", request.slice_ms(),
        " ms, want 1 or more of 1 ms or more, ", kLongestMs,
        " ms in all at most"));
  }
  return absl::OkStatus();
}

}  // namespace

void TimeSlices::Add(double begin, double end, double bytes) {
  const double length = end - begin;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const double from = std::max(begin, slice_ * static_cast<double>(i));
    const double to = std::min(end, slice_ * static_cast<double>(i + 1));
    if (to > from) bytes_[i] += bytes * (to - from) / length;
  }
}

uint64_t MemoryTestBytes(uint64_t cache_bytes) {
  return std::max(kLeastTestBytes, 4 * cache_bytes);
}

absl::StatusOr<v1::MeasureMemoryResponse> MeasureMemory(
    const v1::MeasureMemoryRequest& request, int threads,
    absl::FunctionRef<bool()> await_start,
    absl::FunctionRef<bool()> cancelled) {
  RF_RETURN_IF_ERROR(CheckTimes(request));
  const uint64_t neighbours = std::max<uint32_t>(request.ranks_on_host(), 1);
  uint64_t bytes = request.bytes();
  if (bytes == 0) bytes = MemoryTestBytes(LastLevelCacheBytes()) / neighbours;
  if (bytes > AvailableMemoryBytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: a buffer of ", bytes >> 20, " MiB, the host has ",
                     AvailableMemoryBytes() >> 20, " MiB available"));
  }
  const size_t pieces = std::max<size_t>(bytes / kReadPieceBytes, 1);
  RF_ASSIGN_OR_RETURN(
      kernels::AlignedBuffer buffer,
      kernels::AlignedBuffer::Allocate(pieces * kReadPieceBytes));
  kernels::ThreadPool pool(threads);
  // Pages become resident on the nodes of the threads that read them.
  pool.ParallelFor(pieces, 1, [&buffer](size_t begin, size_t end) {
    std::memset(buffer.data() + begin * kReadPieceBytes, 1,
                (end - begin) * kReadPieceBytes);
  });

  const absl::Status left =
      absl::CancelledError("memory: the caller went away");
  if (!await_start()) return left;
  const auto slice = std::chrono::milliseconds(request.slice_ms());
  const Clock::time_point start = Clock::now() + slice;
  TimeSlices slices(request.slice_ms() * 1e-3,
                    static_cast<int>(request.slices()));
  std::atomic<uint64_t> sum{0};  // Read for its own sake.
  size_t next = 0;
  const size_t pass = std::min(pieces, kPassBytes / kReadPieceBytes);
  // Reads from before the first slice until after the last one, so that no
  // other worker has the memory to itself in any slice.
  while (true) {
    const Clock::time_point begun = Clock::now();
    if (ToSeconds(begun - start - slice) > slices.end()) break;
    if (cancelled()) return left;
    pool.ParallelFor(pass, 1, [&](size_t begin, size_t end) {
      uint64_t part = 0;
      for (size_t i = begin; i < end; ++i) {
        part += kernels::SumWords(
            reinterpret_cast<const uint64_t*>(
                buffer.data() + (next + i) % pieces * kReadPieceBytes),
            kReadPieceBytes / sizeof(uint64_t));
      }
      sum.fetch_add(part, std::memory_order_relaxed);
    });
    next = (next + pass) % pieces;
    slices.Add(ToSeconds(begun - start), ToSeconds(Clock::now() - start),
               static_cast<double>(pass * kReadPieceBytes));
  }
  v1::MeasureMemoryResponse response;
  for (const double read : slices.bytes()) {
    response.add_slice_bytes(static_cast<uint64_t>(read));
  }
  response.set_threads(static_cast<uint32_t>(pool.threads()));
  return response;
}

}  // namespace ringfleet::worker
