// SPDX-License-Identifier: Apache-2.0
// The memory through which the other ranks of a host reach one rank: for every
// peer and lane a ring that the peer writes, and a doorbell to wake the rank
// by. It is a memfd that peers open through /proc, so that nothing is left
// behind whoever is killed, and it cannot shrink under them.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_SHARED_SEGMENT_H_
#define RINGFLEET_CLUSTER_TRANSPORT_SHARED_SEGMENT_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/transport/shared_ring.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {

// About one full frame, yet little enough to stay in a cache that two cores
// share. Exchanges of 1.8 and 7.3 MB take 0.40 and 1.7 ms with a quarter of it,
// 0.31 and 1.37 with this, 0.23 and 1.46 with twice as much.
inline constexpr size_t kSharedRingBytes = size_t{1} << 20;

// In shared memory, at the beginning of a segment. What stands before the
// doorbell never changes.
struct SegmentHeader {
  uint64_t magic;
  uint64_t nonce[2];
  uint64_t epoch;
  uint32_t rank;
  uint32_t world_size;
  alignas(64) std::atomic<uint32_t> doorbell;  // A futex: counts rings.
  alignas(64) std::atomic<uint32_t> sleeping;  // The owner waits for a ring.
};

// A mapping of the own segment or a peer's. Movable; not thread-safe but for
// the doorbell.
class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;

  // The own segment of one epoch. Its rings take no memory before they are
  // used. RESOURCE_EXHAUSTED: the system refuses.
  static absl::StatusOr<SharedSegment> Create(uint64_t epoch, int rank,
                                              int world_size);
  // What a peer of this host needs to open it: BOOT-ID/PID/FD/NONCE.
  const std::string& offer() const { return offer_; }

  // The segment that rank `owner` offers, for the rings that `self` writes.
  //
  // Errors: UNAVAILABLE: it is of another machine, or cannot be opened from
  // here. INVALID_ARGUMENT: it is not what it claims to be.
  static absl::StatusOr<SharedSegment> Open(absl::string_view offer,
                                            uint64_t epoch, int owner, int self,
                                            int world_size);

  bool mapped() const { return header_ != nullptr; }
  // The ring that `writer` fills. Of a peer's segment, the own rings only.
  SharedRing Ring(int writer, Lane lane) const;

  // Wakes the owner if it sleeps. Call it after what it is to see is written;
  // nothing happens when !mapped().
  void RingDoorbell() const;
  // Of the own segment: returns when somebody rings, after `timeout`, or at
  // once when idle(), asked when a ring would no longer be missed, is false.
  void Sleep(absl::Duration timeout, absl::FunctionRef<bool()> idle) const;

 private:
  void Unmap();

  SegmentHeader* header_ = nullptr;
  char* rings_ = nullptr;  // Mapped from the ring of `first_writer_` on.
  size_t rings_bytes_ = 0;
  int first_writer_ = 0;
  int fd_ = -1;  // Of the own segment, for peers to open.
  std::string offer_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SHARED_SEGMENT_H_
