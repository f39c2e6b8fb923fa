// SPDX-License-Identifier: Apache-2.0
// A rank's trace as messages.
#ifndef RINGFLEET_WORKER_EXECUTION_TRACE_CHUNKS_H_
#define RINGFLEET_WORKER_EXECUTION_TRACE_CHUNKS_H_

#include "absl/functional/function_ref.h"
#include "cluster/recording/trace_recorder.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Events of one chunk: some hundred kilobytes, where gRPC takes 4 MiB.
inline constexpr size_t kEventsPerChunk = 8192;

// Calls `write` for each chunk, at least for one, until it returns false.
void SendTrace(const cluster::TraceRecorder::Trace& trace,
               absl::FunctionRef<bool(const v1::TraceChunk&)> write);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_TRACE_CHUNKS_H_
