// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/trace_chunks.h"

#include <algorithm>

#include "absl/types/span.h"

namespace ringfleet::worker {
namespace {

using cluster::TraceEvent;

v1::TraceEvent::Kind TraceKindToProto(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::kStep:
      return v1::TraceEvent::KIND_STEP;
    case TraceEvent::Kind::kLayer:
      return v1::TraceEvent::KIND_LAYER;
    case TraceEvent::Kind::kCompute:
      return v1::TraceEvent::KIND_COMPUTE;
    case TraceEvent::Kind::kCollective:
      return v1::TraceEvent::KIND_COLLECTIVE;
    case TraceEvent::Kind::kSend:
      return v1::TraceEvent::KIND_SEND;
    case TraceEvent::Kind::kReceive:
      return v1::TraceEvent::KIND_RECEIVE;
    case TraceEvent::Kind::kWait:
      return v1::TraceEvent::KIND_WAIT;
  }
  return v1::TraceEvent::KIND_UNSPECIFIED;
}

uint32_t NameIndex(absl::string_view name, v1::TraceChunk* chunk) {
  const auto& names = chunk->names();
  const auto known = std::find(names.begin(), names.end(), name);
  const auto index = static_cast<uint32_t>(known - names.begin());
  if (known == names.end()) chunk->add_names(std::string(name));
  return index;
}

void AddEvent(const TraceEvent& event, v1::TraceChunk* chunk) {
  const uint32_t name = NameIndex(event.name, chunk);
  v1::TraceEvent* out = chunk->add_events();
  out->set_name(name);
  out->set_kind(TraceKindToProto(event.kind));
  out->set_thread(event.thread == TraceEvent::Thread::kExecutor
                      ? v1::TraceEvent::THREAD_EXECUTOR
                      : v1::TraceEvent::THREAD_COMMUNICATION);
  out->set_step(event.step);
  if (event.layer >= 0) out->set_layer(static_cast<uint32_t>(event.layer));
  if (event.peer >= 0) out->set_peer(static_cast<uint32_t>(event.peer));
  out->set_bytes(event.bytes);
  out->set_begin_ns(event.begin_ns);
  out->set_duration_ns(static_cast<uint64_t>(event.end_ns - event.begin_ns));
}

}  // namespace

void SendTrace(const cluster::TraceRecorder::Trace& trace,
               absl::FunctionRef<bool(const v1::TraceChunk&)> write) {
  absl::Span<const TraceEvent> left = trace.events;
  bool wanted = true;
  do {
    v1::TraceChunk chunk;
    chunk.set_dropped(trace.dropped);
    const auto now = left.subspan(0, kEventsPerChunk);
    for (const TraceEvent& event : now) AddEvent(event, &chunk);
    left.remove_prefix(now.size());
    wanted = write(chunk);
  } while (wanted && !left.empty());
}

}  // namespace ringfleet::worker
