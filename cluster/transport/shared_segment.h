// SPDX-License-Identifier: Apache-2.0
// The shared memory segment of one rank. It has a ring for every peer of the
// host and every lane, which the peer writes, and a doorbell that wakes the
// rank. The segment is a memfd that peers open through /proc: nothing is left
// behind when a process is killed, and the segment cannot shrink.
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

// Holds about one full frame, and stays in a cache that two cores share.
// Exchanges of 1.8 and 7.3 MB take 0.31 and 1.37 ms; with a quarter of the size
// 0.40 and 1.7 ms, with twice the size 0.23 and 1.46 ms.
inline constexpr size_t kSharedRingBytes = size_t{1} << 20;

// The beginning of a segment. The fields before the doorbell never change.
struct SegmentHeader {
  uint64_t magic;
  uint64_t nonce[2];
  uint64_t epoch;
  uint32_t rank;
  uint32_t world_size;
  alignas(64) std::atomic<uint32_t> doorbell;  // A futex: counts rings.
  alignas(64) std::atomic<uint32_t> sleeping;  // The owner waits for a ring.
};

// A mapping of the own segment or a peer's. Movable. Only the doorbell is
// thread-safe.
class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;

  // Creates the own segment of one epoch. Its rings take no memory before they
  // are used. RESOURCE_EXHAUSTED: the system refuses.
  static absl::StatusOr<SharedSegment> Create(uint64_t epoch, int rank,
                                              int world_size);
  // Returns the text by which a peer of this host opens the segment:
  // BOOT-ID/PID/FD/NONCE.
  const std::string& offer() const { return offer_; }

  // Opens the segment that rank `owner` offers, for the rings that `self`
  // writes.
  //
  // Errors: UNAVAILABLE: the segment is of another machine, or cannot be opened
  // from here. INVALID_ARGUMENT: it does not belong to the offer.
  static absl::StatusOr<SharedSegment> Open(absl::string_view offer,
                                            uint64_t epoch, int owner, int self,
                                            int world_size);

  bool mapped() const { return header_ != nullptr; }
  // Returns the ring that `writer` fills. A peer's segment has the own rings
  // only.
  SharedRing Ring(int writer, Lane lane) const;

  // Wakes the owner if it sleeps. Call it after the writes that the owner is to
  // see. Does nothing when !mapped().
  void RingDoorbell() const;
  // Sleeps until a peer rings or `timeout` has passed. Asks idle() once no ring
  // can be missed any more, and returns at once when it is false. Requires the
  // own segment.
  void Sleep(absl::Duration timeout, absl::FunctionRef<bool()> idle) const;

 private:
  void Unmap();

  SegmentHeader* header_ = nullptr;
  char* rings_ = nullptr;  // Mapped from the ring of `first_writer_` on.
  size_t rings_bytes_ = 0;
  int first_writer_ = 0;
  int fd_ = -1;  // The own segment's; peers open it.
  std::string offer_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SHARED_SEGMENT_H_
