// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/shared_ring.h"

#include <algorithm>
#include <cstring>

namespace ringfleet::cluster {

namespace {

// The lines of a small frame.
constexpr size_t kNextLines = 2;

// memcpy of nothing is a call all the same.
void Copy(const char* from, size_t size, char* to) {
  if (size > 0) std::memcpy(to, from, size);
}

}  // namespace

void RingWriter::LoadTail() {
  const uint64_t tail = ring_.control->tail.load(std::memory_order_seq_cst);
  // It only moves on, and never past what was written.
  corrupt_ |= tail < tail_ || tail > head_;
  if (!corrupt_) tail_ = tail;
}

size_t RingWriter::Write(const char* bytes, size_t size) {
  if (ring_.size - (head_ - tail_) < size) LoadTail();
  if (corrupt_) return 0;
  size = std::min<size_t>(size, ring_.size - (head_ - tail_));
  const size_t at = head_ & (ring_.size - 1);
  const size_t until_end = std::min(size, ring_.size - at);
  Copy(bytes, until_end, ring_.data + at);
  Copy(bytes + until_end, size - until_end, ring_.data);
  head_ += size;
  return size;
}

void RingWriter::Publish() {
  // In one order with the doorbell's flag, which is looked at next.
  ring_.control->head.store(head_, std::memory_order_seq_cst);
  // The reader's core has these from the last time round.
  for (size_t i = 0; i < kNextLines; ++i) {
    const size_t at = (head_ + i * kLineBytes) & (ring_.size - 1);
    __builtin_prefetch(ring_.data + at, /*rw=*/1);
  }
}

bool RingWriter::WaitForRoom() {
  // Both sides write before they read, in one order: either the reader sees
  // this after it has moved on, or its move is seen here.
  ring_.control->writer_waits.store(1, std::memory_order_seq_cst);
  LoadTail();
  return corrupt_ || head_ - tail_ == ring_.size;
}

size_t RingReader::Available() {
  const uint64_t head = ring_.control->head.load(std::memory_order_seq_cst);
  corrupt_ |=
      head - released_ > ring_.size || head - released_ < tail_ - released_;
  return corrupt_ ? 0 : head - tail_;
}

std::array<absl::Span<const char>, 2> RingReader::Peek(size_t size) const {
  const size_t at = tail_ & (ring_.size - 1);
  const size_t until_end = std::min(size, ring_.size - at);
  return {absl::MakeConstSpan(ring_.data + at, until_end),
          absl::MakeConstSpan(ring_.data, size - until_end)};
}

void RingReader::Read(char* bytes, size_t size) {
  const auto [first, second] = Peek(size);
  Copy(first.data(), first.size(), bytes);
  Copy(second.data(), second.size(), bytes + first.size());
  tail_ += size;
}

bool RingReader::Release(uint64_t position) {
  released_ = position;
  ring_.control->tail.store(position, std::memory_order_seq_cst);
  return ring_.control->writer_waits.load(std::memory_order_seq_cst) != 0 &&
         ring_.control->writer_waits.exchange(0) != 0;
}

}  // namespace ringfleet::cluster
