// SPDX-License-Identifier: Apache-2.0
// A ring of bytes in shared memory, with one writer and one reader in different
// processes. Each side keeps its own position and checks the other side's
// position before using it. So a wrong position from a peer is an error and
// never leads to an access outside the ring. No function waits.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SHARED_RING_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SHARED_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace ringfleet::cluster {

inline constexpr size_t kLineBytes = 64;  // A cache line.

// The shared words of a ring, initially zero. Each has its own cache line.
struct RingControl {
  alignas(kLineBytes) std::atomic<uint64_t> head;  // Bytes written so far.
  alignas(kLineBytes) std::atomic<uint64_t> tail;  // Bytes read so far.
  // 1 if the writer has found the ring full and waits for room.
  alignas(kLineBytes) std::atomic<uint32_t> writer_waits;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The addresses of a ring in this process. `size` is a power of two.
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

  // Copies as many bytes as the ring has room for, and returns their number.
  // The reader sees the bytes after Publish.
  size_t Write(const char* bytes, size_t size);
  void Publish();

  // Sets RingControl::writer_waits, after a Write that found too little room.
  // Returns false if the ring has room in the meantime.
  bool WaitForRoom();

  // Returns true if the reader's position is impossible. Write then writes
  // nothing.
  bool corrupt() const { return corrupt_; }

 private:
  void LoadTail();

  SharedRing ring_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;  // Last value of RingControl::tail.
  bool corrupt_ = false;
};

// The only reader of a ring. Not thread-safe.
class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(const SharedRing& ring) : ring_(ring) {}

  // Returns the number of bytes that can be read, or 0 if the writer's position
  // is impossible.
  size_t Available();
  // Read copies `size` bytes out and passes over them. Peek returns their
  // memory in one or two parts; the second part begins at the start of the
  // ring. Skip passes over them. All three require that Available() has
  // returned at least `size`.
  void Read(char* bytes, size_t size);
  std::array<absl::Span<const char>, 2> Peek(size_t size) const;
  void Skip(size_t size) { tail_ += size; }

  // Returns the number of bytes read since the ring began.
  uint64_t position() const { return tail_; }
  // Returns the position up to which room was given back to the writer.
  uint64_t released() const { return released_; }
  // Gives the room before `position` back to the writer. The bytes before it
  // must have been read. Returns true if the writer waits for room.
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
