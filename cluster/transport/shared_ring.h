// SPDX-License-Identifier: Apache-2.0
// Bytes from one process to another through shared memory: a ring with one
// writer and one reader. Each side keeps its own position and takes the other's
// only after a check, so that a peer that writes nonsense there costs an error,
// never an access outside of the ring. Neither function waits.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SHARED_RING_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SHARED_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace ringfleet::cluster {

inline constexpr size_t kLineBytes = 64;  // Of caches.

// In shared memory, all zeros at first. Each word has a cache line of its own.
struct RingControl {
  alignas(kLineBytes) std::atomic<uint64_t> head;  // Bytes written so far.
  alignas(kLineBytes) std::atomic<uint64_t> tail;  // Bytes read so far.
  // The writer found the ring full and wants to be told of room.
  alignas(kLineBytes) std::atomic<uint32_t> writer_waits;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A ring and where it lies in this process. `size` is a power of two.
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

  // Copies as much as there is room for, and returns how much that is. The
  // reader sees it after Publish.
  size_t Write(const char* bytes, size_t size);
  void Publish();

  // After a Write of less than everything: asks the reader to tell of room.
  // False when there is some by now.
  bool WaitForRoom();

  // The reader's position is impossible. Nothing is written any more.
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

  // Bytes to be read; 0 when the writer's position is impossible.
  size_t Available();
  // All three require that Available() has returned as many. Copies out, or
  // says where the bytes lie, the second part where the ring begins again.
  void Read(char* bytes, size_t size);
  std::array<absl::Span<const char>, 2> Peek(size_t size) const;
  void Skip(size_t size) { tail_ += size; }

  // Of the byte that is read next, counted from the first that ever was.
  uint64_t position() const { return tail_; }
  // Up to here the writer has its room back.
  uint64_t released() const { return released_; }
  // Gives the room before `position` back, which has been read. True when the
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
