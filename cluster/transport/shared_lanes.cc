// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/shared_lanes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// Written and shown to the reader in pieces of this size, so that the two
// sides copy at the same time.
constexpr size_t kPieceBytes = size_t{8} << 10;
// Room is given back in pieces of this size: the writer looks for it rarely.
constexpr size_t kReleaseBytes = size_t{64} << 10;
// A smaller message is copied as fast as it is lent.
constexpr size_t kLeastLentBytes = size_t{8} << 10;
// The most of a ring that is lent, so that later messages can be read
// meanwhile.
constexpr size_t kMostLentBytes = kSharedRingBytes / 2;
constexpr char kNothing[kLineBytes] = {};

size_t Padding(size_t bytes) {
  return (kLineBytes - bytes % kLineBytes) % kLineBytes;
}

}  // namespace

SharedLanes::Outgoing& SharedLanes::Outgoing::operator=(
    Outgoing&& other) noexcept {
  Release();
  std::memcpy(head, other.head, sizeof(head));
  written = other.written;
  payload_bytes = other.payload_bytes;
  payload = other.payload;
  ledger = std::exchange(other.ledger, nullptr);
  frame = std::move(other.frame);
  return *this;
}

void SharedLanes::Outgoing::Release() {
  if (void* const held = std::exchange(ledger, nullptr)) {
    PayloadLedger::Drop(held);
  }
  frame.reset();
}

absl::StatusOr<std::unique_ptr<SharedLanes>> SharedLanes::Create(
    uint64_t epoch, int rank, int world_size, MessagePool* pool,
    Events* events) {
  RF_ASSIGN_OR_RETURN(SharedSegment own,
                      SharedSegment::Create(epoch, rank, world_size));
  return std::unique_ptr<SharedLanes>(
      new SharedLanes(std::move(own), epoch, rank, world_size, pool, events));
}

SharedLanes::SharedLanes(SharedSegment own, uint64_t epoch, int rank,
                         int world_size, MessagePool* pool, Events* events)
    : own_(std::move(own)),
      epoch_(epoch),
      rank_(rank),
      pool_(pool),
      events_(events),
      segments_(world_size),
      offers_(world_size),
      lanes_(static_cast<size_t>(world_size) * kLanes) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].peer = static_cast<int>(i) / kLanes;
    lanes_[i].lane = static_cast<Lane>(i % kLanes);
  }
}

bool SharedLanes::Listen(int peer, Lane lane) {
  OneLane& to = At(peer, lane);
  if (std::exchange(to.listened, true)) return false;
  to.reader = RingReader(own_.Ring(peer, lane));
  listening_.push_back(&to);
  return true;
}

absl::Status SharedLanes::Attach(int peer, Lane lane, absl::string_view offer) {
  SharedSegment& segment = segments_[peer];
  if (!segment.mapped()) {
    RF_ASSIGN_OR_RETURN(
        segment, SharedSegment::Open(offer, epoch_, peer, rank_,
                                     static_cast<int>(segments_.size())));
    offers_[peer] = std::string(offer);
  } else if (offers_[peer] != offer) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: rank ", peer, " offers ", offer,
                     ", but has lanes in ", offers_[peer]));
  }
  OneLane& to = At(peer, lane);
  RF_CHECK(!to.attached);
  to.attached = true;
  to.writer = RingWriter(segment.Ring(rank_, lane));
  sending_.push_back(&to);
  return absl::OkStatus();
}

void SharedLanes::Encode(const FrameHeader& header, size_t payload_bytes,
                         Outgoing* record) {
  const uint32_t message_bytes =
      static_cast<uint32_t>(kFrameHeaderBytes + payload_bytes);
  std::memcpy(record->head, &message_bytes, sizeof(message_bytes));
  EncodeFrameHeader(header, payload_bytes,
                    record->head + sizeof(message_bytes));
  record->payload_bytes = payload_bytes;
}

void SharedLanes::Send(int peer, Lane lane, const FrameHeader& header,
                       absl::Span<const char> payload, PayloadLedger& ledger) {
  OneLane& to = At(peer, lane);
  Outgoing record;
  Encode(header, payload.size(), &record);
  record.payload = payload;
  if (to.queue.empty() && Write(to, record)) return;
  if (payload.size() >= kCopyBytes) {
    record.ledger = ledger.Hold();
  } else {
    record.frame = pool_->TakeFrame();
    char* const copy = record.frame->Reserve(payload.size());
    std::copy(payload.begin(), payload.end(), copy);
    record.payload = {copy, payload.size()};
  }
  to.queue.push_back(std::move(record));
}

void SharedLanes::Forward(int peer, Lane lane, const FrameHeader& header,
                          const LinkFrame& frame) {
  OneLane& to = At(peer, lane);
  Outgoing record;
  Encode(header, frame.payload_bytes, &record);
  record.frame.reset(frame.Share());
  if (to.queue.empty() && Write(to, record)) return;
  to.queue.push_back(std::move(record));
}

// Writes what is missing of `part`, which is at `begin` of the record.
bool SharedLanes::WritePart(OneLane& lane, Outgoing& record, uint64_t begin,
                            absl::Span<const char> part) {
  while (record.written < begin + part.size()) {
    const auto piece =
        part.subspan(record.written - begin).subspan(0, kPieceBytes);
    const size_t fits = lane.writer.Write(piece.data(), piece.size());
    record.written += fits;
    if (piece.size() == kPieceBytes && fits > 0) {
      lane.writer.Publish();
      segments_[lane.peer].RingDoorbell();
    }
    if (fits < piece.size() && lane.writer.WaitForRoom()) return false;
  }
  return true;
}

bool SharedLanes::Write(OneLane& lane, Outgoing& record) {
  if (lane.over) return true;  // Into the void, as a broken stream does.
  uint64_t begin = 0;
  const auto write = [&](absl::Span<const char> part) {
    const bool all = WritePart(lane, record, begin, part);
    begin += part.size();
    return all;
  };
  bool all = write({record.head, kHeadBytes});
  if (record.payload.data() == nullptr && record.frame != nullptr) {
    for (const auto piece : record.frame->payload) all = all && write(piece);
  } else {
    all = all && write(record.payload);
  }
  all = all && write({kNothing, Padding(kHeadBytes + record.payload_bytes)});
  lane.writer.Publish();
  segments_[lane.peer].RingDoorbell();
  return all;
}

bool SharedLanes::WriteQueue(OneLane& lane) {
  bool moved = false;
  while (!lane.queue.empty()) {
    const uint64_t before = lane.queue.front().written;
    const bool all = Write(lane, lane.queue.front());
    moved |= all || lane.queue.front().written > before;
    if (!all) break;
    lane.queue.pop_front();
  }
  return moved;
}

bool SharedLanes::BeginMessage(OneLane& lane, size_t available) {
  uint32_t message_bytes = 0;
  if (available < sizeof(message_bytes)) return false;
  lane.reader.Read(reinterpret_cast<char*>(&message_bytes),
                   sizeof(message_bytes));
  if (message_bytes < kFrameHeaderBytes ||
      message_bytes > kFrameHeaderBytes + kMaxPayloadBytes) {
    Fail(lane, absl::DataLossError(absl::StrCat("a message of ", message_bytes,
                                                " bytes in shared memory")));
    return false;
  }
  lane.partial = pool_->TakeFrame();
  lane.padding_left = Padding(sizeof(message_bytes) + message_bytes);
  if (Lends(lane, message_bytes, available - sizeof(message_bytes))) {
    Lend(lane, message_bytes);
  } else {
    lane.into = lane.partial->Reserve(message_bytes);
    lane.message_left = message_bytes;
  }
  return true;
}

// A message that is still being written is copied meanwhile, by two cores at a
// time. Those of a ring may have to wait until they can be passed on, which
// must not keep others from coming.
bool SharedLanes::Lends(const OneLane& lane, size_t message_bytes,
                        size_t available) const {
  const uint64_t lent = lane.reader.position() - lane.reader.released();
  return lane.lane == Lane::kDirect && message_bytes >= kLeastLentBytes &&
         message_bytes <= available && lent + message_bytes <= kMostLentBytes;
}

void SharedLanes::Lend(OneLane& lane, size_t message_bytes) {
  // The header is looked at more than once, which a copy stands.
  char* const header = lane.partial->Reserve(kFrameHeaderBytes);
  lane.loans.push_back(
      {LinkFramePtr(lane.partial->Share()), lane.reader.position()});
  lane.reader.Read(header, kFrameHeaderBytes);
  const size_t rest = message_bytes - kFrameHeaderBytes;
  const auto [first, second] = lane.reader.Peek(rest);
  lane.reader.Skip(rest);
  lane.partial->Borrow(
      {absl::MakeConstSpan(header, kFrameHeaderBytes), first, second});
}

void SharedLanes::EndMessage(OneLane& lane) {
  LinkFramePtr frame = std::move(lane.partial);
  const absl::Status status = frame->ParseMessage();
  if (!status.ok()) return Fail(lane, status);
  events_->OnSharedFrame(lane.peer, lane.lane, std::move(frame));
}

bool SharedLanes::Read(OneLane& lane) {
  if (lane.over) return false;
  if (!lane.loans.empty()) Release(lane);
  bool moved = false;
  bool ended = false;
  while (size_t available = lane.reader.Available()) {
    if (lane.message_left > 0) {
      const size_t size =
          std::min({available, lane.message_left, kReleaseBytes});
      lane.reader.Read(lane.into, size);
      lane.into += size;
      lane.message_left -= size;
      ended = lane.message_left == 0;
      if (size == kReleaseBytes) Release(lane);
    } else if (lane.padding_left > 0) {
      const size_t size = std::min(available, lane.padding_left);
      lane.reader.Skip(size);
      lane.padding_left -= size;
    } else if (ended || !events_->WantsFrame(lane.peer, lane.lane) ||
               !BeginMessage(lane, available)) {
      break;
    } else {
      ended = lane.message_left == 0;
    }
    moved = true;
  }
  if (moved) Release(lane);
  if (ended) EndMessage(lane);
  if (lane.reader.corrupt()) {
    Fail(lane, absl::DataLossError("an impossible position in shared memory"));
  }
  return moved;
}

bool SharedLanes::has_unread(int peer, Lane lane) {
  OneLane& from = At(peer, lane);
  return from.listened && !from.over && from.reader.Available() > 0;
}

void SharedLanes::Release(OneLane& lane) {
  while (!lane.loans.empty() && lane.loans.front().frame->unshared()) {
    lane.loans.pop_front();
  }
  const uint64_t until =
      lane.loans.empty() ? lane.reader.position() : lane.loans.front().begin;
  if (until != lane.reader.released() && lane.reader.Release(until)) {
    segments_[lane.peer].RingDoorbell();
  }
}

void SharedLanes::Fail(OneLane& lane, const absl::Status& status) {
  if (std::exchange(lane.over, true)) return;
  events_->OnSharedError(lane.peer, status);
}

bool SharedLanes::Poll() {
  bool moved = false;
  for (OneLane* const lane : listening_) moved |= Read(*lane);
  for (OneLane* const lane : sending_) {
    if (!lane->queue.empty()) moved |= WriteQueue(*lane);
    if (lane->writer.corrupt()) {
      Fail(*lane,
           absl::DataLossError("an impossible position in shared memory"));
    }
  }
  return moved;
}

// Nothing has come, and nothing that waits for room can go on.
bool SharedLanes::Idle() {
  if (woken_.exchange(false)) return false;
  for (OneLane* const lane : listening_) {
    if (!lane->over && lane->reader.Available() > 0 &&
        (lane->message_left > 0 ||
         events_->WantsFrame(lane->peer, lane->lane))) {
      return false;
    }
  }
  for (OneLane* const lane : sending_) {
    if (!lane->queue.empty() && !lane->writer.WaitForRoom()) return false;
  }
  return true;
}

void SharedLanes::Sleep(absl::Duration timeout) {
  own_.Sleep(timeout, [this] { return Idle(); });
}

void SharedLanes::Wake() {
  woken_.store(true);
  own_.RingDoorbell();
}

}  // namespace ringfleet::cluster
