// SPDX-License-Identifier: Apache-2.0
#include "cluster/collectives/exchange.h"

#include <array>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/process/status_macros.h"
#include "cluster/wire/crc32c.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

std::string OperationName(const FrameHeader& h) {
  return absl::StrCat(DescriptorName(h.op_descriptor), " #", h.sequence, " of ",
                      h.count, " elements in group ", h.group);
}

Operation OperationOf(const FrameHeader& h) {
  return static_cast<Operation>(h.op_descriptor & 0xff);
}

// Operations in parts run beside the product that they are fused with.
TraceEvent::Thread ThreadOf(Operation operation) {
  return IsFused(operation) ? TraceEvent::Thread::kCommunication
                            : TraceEvent::Thread::kExecutor;
}

// For a frame, and for rows that another thread computes.
constexpr absl::string_view kWaitForFrame = "wait";
constexpr absl::string_view kWaitForRows = "wait for rows";

// Names of events by lane.
absl::string_view SendText(Lane lane) {
  return lane == Lane::kDirect  ? "send"
         : lane == Lane::kRight ? "send right"
                                : "send left";
}
absl::string_view ReceiveText(Lane lane) {
  return lane == Lane::kDirect  ? "receive"
         : lane == Lane::kRight ? "receive right"
                                : "receive left";
}

// Names the subject of an operation's `check`.
absl::string_view CheckedText(Operation operation) {
  if (IsFused(operation) || operation == Operation::kReduceScatter) {
    return "shares or experts";
  }
  return operation == Operation::kAllReduce   ? "experts"
         : operation == Operation::kBroadcast ? "roots"
                                              : "shares";
}

uint32_t PayloadCrc(absl::Span<const char> payload) {
  return ExtendCrc32c(0, payload.data(), payload.size());
}

}  // namespace

Group WorldGroup(int world_size) {
  Group group;
  group.ranks.resize(world_size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

Exchange::Exchange(Transport* transport, const Group* group, int rank,
                   FrameHeader head, uint64_t bytes, Deadline deadline,
                   SendArena* arena, FlightRecorder* recorder,
                   TraceRecorder* trace)
    : transport_(transport),
      group_(group),
      rank_(rank),
      head_(head),
      deadline_(deadline),
      arena_(arena),
      recorder_(recorder),
      trace_(trace != nullptr && trace->on() ? trace : nullptr),
      thread_(ThreadOf(OperationOf(head))),
      operation_(trace_, Event(OperationText(OperationOf(head)),
                               TraceEvent::Kind::kCollective, -1, bytes)) {
  head_.source = static_cast<uint32_t>(transport->rank());
  head_.epoch = transport->epoch();
}

TraceEvent Exchange::Event(absl::string_view name, TraceEvent::Kind kind,
                           int peer, uint64_t bytes) const {
  return {.name = name,
          .kind = kind,
          .thread = thread_,
          .peer = peer < 0 ? -1 : group_->ranks[peer],
          .bytes = bytes};
}

void Exchange::TraceReceived(TraceEvent wait, const ReceivedFrame& frame,
                             absl::Span<const Incoming> sources, size_t index) {
  wait.end_ns = TraceNow();
  if (frame != nullptr) {
    const Incoming& source = sources[index];
    receive_ = Event(ReceiveText(source.lane), TraceEvent::Kind::kReceive,
                     source.from, frame->payload_bytes);
    receive_.begin_ns = wait.end_ns;
    wait.peer = receive_.peer;
    wait.bytes = frame->payload_bytes;
  }
  trace_->Add(wait);
}

void Exchange::EndReceive() {
  if (receive_.name.empty()) return;
  receive_.end_ns = TraceNow();
  trace_->Add(receive_);
  receive_.name = {};
}

absl::StatusOr<SendArena::Block*> Exchange::NextBlock(size_t bytes) {
  EndReceive();
  const TraceScope scope(trace_,
                         Event("memory", TraceEvent::Kind::kWait, -1, bytes));
  absl::StatusOr<SendArena::Block*> block =
      arena_->Next(*transport_, bytes, deadline_);
  if (!block.ok()) return NameOperation(block.status());
  return block;
}

absl::Status Exchange::AwaitCallerMemory() {
  EndReceive();
  const TraceScope scope(trace_,
                         Event("memory", TraceEvent::Kind::kWait, -1, 0));
  return NameOperation(transport_->AwaitReleased(arena_->caller(), deadline_));
}

FrameHeader Exchange::Seal(Lane lane, Place place, uint32_t payload_crc,
                           size_t payload_bytes) const {
  FrameHeader header = head_;
  header.op_descriptor = WithLane(head_.op_descriptor, lane);
  header.step = place.step;
  header.offset_bytes = place.offset;
  header.crc32c = FrameCrc(header, payload_crc, payload_bytes);
  return header;
}

absl::Status Exchange::Send(int to, Lane lane, Place place,
                            absl::Span<const char> payload,
                            PayloadLedger& ledger) {
  const TraceScope scope(trace_, Event(SendText(lane), TraceEvent::Kind::kSend,
                                       to, payload.size()));
  if (recorder_ != nullptr) recorder_->Sent(payload.size());
  return transport_->Send(
      group_->ranks[to], lane,
      Seal(lane, place, PayloadCrc(payload), payload.size()), payload, ledger);
}

absl::Status Exchange::SendToOthers(Place place, absl::Span<const char> payload,
                                    PayloadLedger& ledger) {
  const FrameHeader header =
      Seal(Lane::kDirect, place, PayloadCrc(payload), payload.size());
  for (int distance = 1; distance < size(); ++distance) {
    const int to = Wrap(rank_ + distance);
    const TraceScope scope(
        trace_, Event(SendText(Lane::kDirect), TraceEvent::Kind::kSend, to,
                      payload.size()));
    if (recorder_ != nullptr) recorder_->Sent(payload.size());
    RF_RETURN_IF_ERROR(transport_->Send(group_->ranks[to], Lane::kDirect,
                                        header, payload, ledger));
  }
  return absl::OkStatus();
}

absl::Status Exchange::Forward(int to, Lane lane, uint32_t step,
                               const FrameBody& frame) {
  const TraceScope scope(trace_, Event(SendText(lane), TraceEvent::Kind::kSend,
                                       to, frame.payload_bytes));
  if (recorder_ != nullptr) recorder_->Sent(frame.payload_bytes);
  return transport_->Forward(group_->ranks[to], lane,
                             Seal(lane, {step, frame.header.offset_bytes},
                                  frame.payload_crc, frame.payload_bytes),
                             frame);
}

absl::StatusOr<ReceivedFrame> Exchange::Receive(int from, Lane lane,
                                                Place place, uint64_t bytes) {
  const Incoming source{from, lane};
  size_t index = 0;
  absl::StatusOr<ReceivedFrame> frame =
      ReceiveAny(absl::MakeConstSpan(&source, 1), &index);
  if (!frame.ok()) return frame;
  RF_RETURN_IF_ERROR(CheckPlace(**frame, from, place, bytes));
  return frame;
}

absl::StatusOr<ReceivedFrame> Exchange::ReceiveAny(
    absl::Span<const Incoming> sources, size_t* index) {
  RF_CHECK(!sources.empty());
  if (!beside_compute_) return ReceiveBy(&Transport::Receive, sources, index);
  for (;;) {  // Whoever wakes this thread has no message for it.
    absl::StatusOr<ReceivedFrame> frame = ReceiveUnlessWoken(sources, index);
    if (!frame.ok() || *frame != nullptr) return frame;
  }
}

absl::StatusOr<ReceivedFrame> Exchange::ReceiveUnlessWoken(
    absl::Span<const Incoming> sources, size_t* index) {
  return ReceiveBy(&Transport::ReceiveUnlessWoken, sources, index);
}

absl::StatusOr<ReceivedFrame> Exchange::ReceiveBy(
    ReceiveFunction receive, absl::Span<const Incoming> sources,
    size_t* index) {
  std::array<Source, 2> peers;  // Two directions of a ring, or parts.
  RF_CHECK(sources.size() <= peers.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    peers[i] = {group_->ranks[sources[i].from], sources[i].lane};
  }
  if (recorder_ != nullptr && !sources.empty()) {
    recorder_->WaitFor(peers[0].peer);
  }
  EndReceive();
  TraceEvent wait =
      Event(sources.empty() ? kWaitForRows : kWaitForFrame,
            TraceEvent::Kind::kWait, sources.empty() ? -1 : sources[0].from, 0);
  if (trace_ != nullptr) wait.begin_ns = TraceNow();
  absl::StatusOr<ReceivedFrame> frame = (transport_->*receive)(
      absl::MakeConstSpan(peers).subspan(0, sources.size()), deadline_, index);
  if (!frame.ok()) return NameOperation(frame.status());
  if (trace_ != nullptr) TraceReceived(wait, *frame, sources, *index);
  if (*frame == nullptr) return frame;
  const int peer = peers[*index].peer;
  if (recorder_ != nullptr) recorder_->Frame(peer);
  RF_RETURN_IF_ERROR(
      CheckSameOperation((*frame)->header, peer, sources[*index].lane));
  return frame;
}

absl::Status Exchange::CheckPlace(const FrameBody& frame, int from, Place place,
                                  uint64_t bytes) const {
  const FrameHeader& theirs = frame.header;
  if (theirs.step == place.step && theirs.offset_bytes == place.offset &&
      frame.payload_bytes == bytes) {
    return absl::OkStatus();
  }
  transport_->Blame(group_->ranks[from]);
  return absl::FailedPreconditionError(absl::StrFormat(
      "rank %d sends %d bytes at offset %d in step %d of %s, want %d at %d in "
      "step %d",
      group_->ranks[from], frame.payload_bytes, theirs.offset_bytes,
      theirs.step, OperationName(head_), bytes, place.offset, place.step));
}

absl::Status Exchange::NameOperation(const absl::Status& status) const {
  // Other errors may be the epoch's cause, which is the same on all ranks.
  if (!absl::IsDeadlineExceeded(status)) return status;
  return Annotate(status, OperationName(head_));
}

absl::Status Exchange::CheckSameOperation(const FrameHeader& theirs, int peer,
                                          Lane lane) const {
  if (theirs.group != head_.group || theirs.sequence != head_.sequence ||
      theirs.op_descriptor != WithLane(head_.op_descriptor, lane) ||
      theirs.count != head_.count) {
    transport_->Blame(peer);
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", peer, " is in ", OperationName(theirs),
                     ", this rank in ", OperationName(head_)));
  }
  if (theirs.check != head_.check) {
    transport_->Blame(peer);
    return absl::FailedPreconditionError(absl::StrFormat(
        "ranks chose different %s: in %s rank %d has check %016x, rank %d has "
        "%016x",
        CheckedText(OperationOf(head_)), OperationName(head_), peer,
        theirs.check, transport_->rank(), head_.check));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
