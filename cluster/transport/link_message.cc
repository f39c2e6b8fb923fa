// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/link_message.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

// Where a message begins in a frame's own memory, so that its payload starts
// a cache line.
constexpr size_t kAlignment = 64;
constexpr size_t kMessageOffset =
    (kAlignment - kFrameHeaderBytes % kAlignment) % kAlignment;
// Own memory comes in multiples of this, so that frames of about the same size
// can follow each other in it.
constexpr size_t kBlockBytes = size_t{64} << 10;

}  // namespace

void DumpPieces(const grpc::ByteBuffer& message,
                std::vector<grpc::Slice>* slices,
                std::vector<absl::Span<const char>>* pieces) {
  // An empty message has no slices, and Dump may then fail.
  if (!message.Dump(slices).ok()) slices->clear();
  pieces->clear();
  for (const grpc::Slice& slice : *slices) {
    pieces->push_back(
        {reinterpret_cast<const char*>(slice.begin()), slice.size()});
  }
}

LinkFrame::~LinkFrame() { std::free(memory_); }

absl::Status LinkFrame::Parse(const grpc::ByteBuffer& message) {
  constexpr size_t kMost =
      kFrameHeaderBytes + kMaxPayloadBytes + kHeaderSlackBytes;
  message_bytes_ = message.Length();
  if (message_bytes_ > kMost) {
    return absl::DataLossError(absl::StrCat("a message of ", message_bytes_,
                                            " bytes, want at most ", kMost));
  }
  DumpPieces(message, &slices_, &pieces_);
  return ParseFrame(pieces_, this);
}

char* LinkFrame::Reserve(size_t message_bytes) {
  const size_t needed = kMessageOffset + message_bytes;
  if (memory_bytes_ < needed) {
    memory_bytes_ = (needed + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    std::free(memory_);
    memory_ = static_cast<char*>(std::aligned_alloc(kAlignment, memory_bytes_));
    RF_CHECK(memory_ != nullptr);
  }
  message_bytes_ = message_bytes;
  char* const message = memory_ + kMessageOffset;
  pieces_.assign({absl::MakeConstSpan(message, message_bytes)});
  return message;
}

void LinkFrame::Borrow(absl::Span<const absl::Span<const char>> pieces) {
  pieces_.assign(pieces.begin(), pieces.end());
  message_bytes_ = 0;
  for (const auto piece : pieces) message_bytes_ += piece.size();
}

absl::Status LinkFrame::ParseMessage() { return ParseFrame(pieces_, this); }

bool LinkFrame::AppendPayload(std::vector<grpc::Slice>* slices) const {
  if (slices_.empty() || !copy.empty()) return false;
  size_t skip = kFrameHeaderBytes;
  for (const grpc::Slice& slice : slices_) {
    const size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    if (skipped == slice.size()) continue;
    slices->push_back(skipped == 0 ? slice : slice.sub(skipped, slice.size()));
  }
  return true;
}

LinkFrame* LinkFrame::Share() const {
  holders_.fetch_add(1, std::memory_order_relaxed);
  return const_cast<LinkFrame*>(this);
}

void LinkFrame::Recycle() {
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  slices_.clear();
  payload.clear();
  payload_bytes = 0;
  std::string().swap(copy);  // Frames in the pool hold none.
  pool_->Return(this);
}

LinkFramePtr MessagePool::TakeFrame() {
  LinkFrame* const frame = state_->frames.Take();
  frame->pool_ = &state_->frames;
  frame->holders_.store(1, std::memory_order_relaxed);
  return LinkFramePtr(frame);
}

bool MessagePool::Receipt::released() const {
  return opening_ != nullptr &&
         opening_->releases.load(std::memory_order_acquire) >= uses_;
}

grpc::Slice MessagePool::OpeningOf(const FrameHeader& header,
                                   size_t payload_bytes, size_t room,
                                   char** rest, Receipt* receipt) {
  Opening* const opening = state_->openings.Take();
  opening->state = state_;
  ++opening->uses;
  state_->references.fetch_add(1, std::memory_order_relaxed);
  EncodeFrameHeader(header, payload_bytes, opening->bytes);
  *rest = opening->bytes + kFrameHeaderBytes;
  if (receipt != nullptr) {
    receipt->opening_ = opening;
    receipt->uses_ = opening->uses;
  }
  return grpc::Slice(opening->bytes, kFrameHeaderBytes + room, &ReleaseOpening,
                     opening);
}

void MessagePool::ReleaseOpening(void* opening) {
  auto* const self = static_cast<Opening*>(opening);
  State* const state = self->state;
  self->releases.fetch_add(1, std::memory_order_release);
  state->openings.Return(self);
  state->Drop();
}

grpc::Slice MessagePool::SliceOf(absl::Span<const char> payload, void* ledger,
                                 LinkFrame* frame) {
  Hold* const hold = state_->holds.Take();
  *hold = {.state = state_, .ledger = ledger, .frame = frame};
  state_->references.fetch_add(1, std::memory_order_relaxed);
  return grpc::Slice(const_cast<char*>(payload.data()), payload.size(),
                     &Release, hold);
}

grpc::ByteBuffer MessagePool::Write(const FrameHeader& header,
                                    absl::Span<const char> payload,
                                    PayloadLedger& ledger, Receipt* receipt) {
  const bool copy = payload.size() < kCopyBytes;
  char* rest = nullptr;
  grpc::Slice slices[2] = {OpeningOf(header, payload.size(),
                                     copy ? payload.size() : 0, &rest, receipt),
                           {}};
  if (copy) {
    std::copy(payload.begin(), payload.end(), rest);
  } else {
    slices[1] = SliceOf(payload, ledger.Hold(), nullptr);
  }
  return grpc::ByteBuffer(slices, copy ? 1 : 2);
}

grpc::ByteBuffer MessagePool::Forward(const FrameHeader& header,
                                      const LinkFrame& frame) {
  const bool copy = frame.payload_bytes < kCopyBytes;
  char* rest = nullptr;
  slices_.clear();
  slices_.push_back(OpeningOf(header, frame.payload_bytes,
                              copy ? frame.payload_bytes : 0, &rest,
                              /*receipt=*/nullptr));
  if (copy || !frame.AppendPayload(&slices_)) {
    for (const auto piece : frame.payload) {
      if (copy) {
        rest = std::copy(piece.begin(), piece.end(), rest);
      } else {
        slices_.push_back(SliceOf(piece, nullptr, frame.Share()));
      }
    }
  }
  grpc::ByteBuffer message(slices_.data(), slices_.size());
  slices_.clear();
  return message;
}

void MessagePool::Release(void* hold) {
  auto* const self = static_cast<Hold*>(hold);
  State* const state = self->state;
  if (self->ledger != nullptr) PayloadLedger::Drop(self->ledger);
  if (self->frame != nullptr) self->frame->Recycle();
  state->holds.Return(self);
  state->Drop();
}

void MessagePool::State::Drop() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

}  // namespace ringfleet::cluster
