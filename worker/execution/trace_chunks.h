// SPDX-License-Identifier: Apache-2.0
// Splits a rank's trace into messages.
#ifndef RINGFLEET_WORKER_EXECUTION_TRACE_CHUNKS_H_
#define RINGFLEET_WORKER_EXECUTION_TRACE_CHUNKS_H_

#include "absl/functional/function_ref.h"
#include "cluster/recording/trace_recorder.h"
#include "protos/worker.pb.h"

namespace ringfleet::worker {

// Largest number of events in one message. A message then has some hundred
// kilobytes, below gRPC's limit of 4 MiB.
inline constexpr size_t kEventsPerChunk = 8192;

// Calls `write` with each message of a trace. Stops if `write` returns false. A
// trace without events has one message.
void SendTrace(const cluster::TraceRecorder::Trace& trace,
               absl::FunctionRef<bool(const v1::TraceChunk&)> write);

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_EXECUTION_TRACE_CHUNKS_H_
