// SPDX-License-Identifier: Apache-2.0
#include "cluster/exchange.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/status_macros.h"

namespace ringfleet::cluster {
namespace {

std::string OperationName(const FrameHeader& h) {
  return absl::StrCat(DescriptorName(h.op_descriptor), " #", h.sequence, " of ",
                      h.count, " elements in group ", h.group);
}

}  // namespace

Exchange::Exchange(Transport* transport, const Group* group, int rank,
                   FrameHeader head, Deadline deadline)
    : transport_(transport),
      group_(group),
      rank_(rank),
      head_(head),
      deadline_(deadline) {
  head_.source = static_cast<uint32_t>(transport->rank());
  head_.epoch = transport->epoch();
}

FrameHeader Exchange::Seal(uint32_t step, uint64_t offset,
                           absl::Span<const char> chunk) const {
  FrameHeader header = head_;
  header.step = step;
  header.offset_bytes = offset;
  header.crc32c = FrameCrc(header, chunk);
  return header;
}

absl::Status Exchange::Send(int to, uint32_t step,
                            absl::Span<const char> payload) {
  size_t offset = 0;
  do {
    const auto chunk = payload.subspan(offset, kMaxPayloadBytes);
    RF_RETURN_IF_ERROR(
        transport_->Send(group_->ranks[to], Seal(step, offset, chunk), chunk));
    offset += chunk.size();
  } while (offset < payload.size());
  return absl::OkStatus();
}

absl::Status Exchange::SendToOthers(uint32_t step,
                                    absl::Span<const char> payload) {
  size_t offset = 0;
  do {
    const auto chunk = payload.subspan(offset, kMaxPayloadBytes);
    const FrameHeader header = Seal(step, offset, chunk);  // Summed once.
    for (int distance = 1; distance < size(); ++distance) {
      RF_RETURN_IF_ERROR(transport_->Send(group_->ranks[Wrap(rank_ + distance)],
                                          header, chunk));
    }
    offset += chunk.size();
  } while (offset < payload.size());
  return absl::OkStatus();
}

absl::Status Exchange::Receive(
    int from, uint32_t step, uint64_t bytes,
    absl::FunctionRef<void(absl::Span<const char>)> consume) {
  const int peer = group_->ranks[from];
  uint64_t received = 0;
  do {
    absl::StatusOr<ReceivedFrame> frame = transport_->Receive(peer, deadline_);
    if (!frame.ok()) return NameOperation(frame.status());
    RF_RETURN_IF_ERROR(CheckSameOperation(frame->header, peer));
    const bool fits = frame->payload_bytes <= bytes - received &&
                      (frame->payload_bytes > 0 || bytes == 0);
    if (frame->header.step != step || frame->header.offset_bytes != received ||
        !fits) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "rank %d sends %d bytes at offset %d in step %d of %s, want at most "
          "%d at %d in step %d",
          peer, frame->payload_bytes, frame->header.offset_bytes,
          frame->header.step, OperationName(head_), bytes - received, received,
          step));
    }
    for (const auto piece : frame->payload) consume(piece);
    received += frame->payload_bytes;
  } while (received < bytes);
  return absl::OkStatus();
}

absl::Status Exchange::Flush() {
  return NameOperation(transport_->Flush(deadline_));
}

absl::Status Exchange::NameOperation(const absl::Status& status) const {
  // Other errors may be the epoch's cause, which is the same on all ranks.
  if (!absl::IsDeadlineExceeded(status)) return status;
  return Annotate(status, OperationName(head_));
}

absl::Status Exchange::CheckSameOperation(const FrameHeader& theirs,
                                          int peer) const {
  if (theirs.group != head_.group || theirs.sequence != head_.sequence ||
      theirs.op_descriptor != head_.op_descriptor ||
      theirs.count != head_.count) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", peer, " is in ", OperationName(theirs),
                     ", this rank in ", OperationName(head_)));
  }
  if (theirs.check != head_.check) {
    const bool experts = (head_.op_descriptor & 0xff) ==
                         static_cast<uint32_t>(Operation::kAllReduce);
    return absl::FailedPreconditionError(absl::StrFormat(
        "ranks chose different %s: in %s rank %d has check %016x, rank %d has "
        "%016x",
        experts ? "experts" : "segments", OperationName(head_), peer,
        theirs.check, transport_->rank(), head_.check));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
