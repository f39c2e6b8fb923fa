// SPDX-License-Identifier: Apache-2.0
// A ring of bytes in shared memory, with one writer and one reader in different
// processes. Each side keeps its own position and checks the other's before it
// takes it. So a peer that writes a wrong position costs an error, never an
// access outside of the ring. No function waits.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SHARED_RING_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SHARED_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace ringfleet::cluster {

inline constexpr size_t kLineBytes = 64;  // A cache line.

// The shared words of a ring, all zeros at first. Each has a cache line of its
// own.
struct RingControl {
  alignas(kLineBytes) std::atomic<uint64_t> head;  // Bytes written so far.
  alignas(kLineBytes) std::atomic<uint64_t> tail;  // Bytes read so far.
  // The writer found the ring full and wants to be told of room.
  alignas(kLineBytes) std::atomic<uint32_t> writer_waits;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A ring's addresses in this process. `size` is a power of two.
struct SharedRing {
  RingControl* control = nullptr;
  char* data = nullptr;
  size_t size = 0;
};

// The only writer of a ring. Not thread-safe.
class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(const SharedRing& ring) : ring_(ring) {}

  // Copies as many bytes as there is room for, and returns their number. The
  // reader sees them after Publish.
  size_t Write(const char* bytes, size_t size);
  void Publish();

  // Asks the reader to tell of room, after a Write that found too little.
  // Returns false when there is room by now.
  bool WaitForRoom();

  // True when the reader's position is impossible. Nothing is written any more.
  bool corrupt() const { return corrupt_; }

 private:
  void LoadTail();

  SharedRing ring_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;  // As last seen.
  bool corrupt_ = false;
};

// The only reader of a ring. Not thread-safe.
class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(const SharedRing& ring) : ring_(ring) {}

  // Returns the bytes to be read; 0 when the writer's position is impossible.
  size_t Available();
  // Read copies bytes out. Peek returns where they lie; the second part begins
  // at the start of the ring. Skip passes over them. All three require that
  // Available() has returned at least `size`.
  void Read(char* bytes, size_t size);
  std::array<absl::Span<const char>, 2> Peek(size_t size) const;
  void Skip(size_t size) { tail_ += size; }

  // Returns the position of the next byte, counted from the ring's first.
  uint64_t position() const { return tail_; }
  // Returns the position up to which the writer has its room back.
  uint64_t released() const { return released_; }
  // Gives the room before `position`, which has been read, back. True when the
  // writer waits for it.
  bool Release(uint64_t position);

  bool corrupt() const { return corrupt_; }

 private:
  SharedRing ring_;
  uint64_t tail_ = 0;
  uint64_t released_ = 0;
  bool corrupt_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SHARED_RING_H_
