// SPDX-License-Identifier: Apache-2.0
// The shared memory segment of one rank. For every other rank and every lane it
// has a ring, which the other rank writes. It has a doorbell that wakes the
// owner. The segment is a memfd that peers open through /proc. So nothing stays
// behind if a process is killed, and the segment cannot shrink.
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

// Size of a ring. It holds about one full frame, and stays in a cache that two
// cores share. Exchanges of 1.8 and 7.3 MB take 0.31 and 1.37 ms. With rings of
// a quarter of the size they take 0.40 and 1.7 ms, with rings of twice the size
// 0.23 and 1.46 ms.
inline constexpr size_t kSharedRingBytes = size_t{1} << 20;

// The beginning of a segment. Fields before `doorbell` never change.
struct SegmentHeader {
  uint64_t magic;
  uint64_t nonce[2];
  uint64_t epoch;
  uint32_t rank;
  uint32_t world_size;
  alignas(64) std::atomic<uint32_t> doorbell;  // A futex; counts calls.
  alignas(64) std::atomic<uint32_t> sleeping;  // 1: the owner sleeps.
};

// A mapping of this rank's own segment or of a peer's. Movable. Only
// RingDoorbell is thread-safe.
class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;

  // Creates this rank's own segment for one epoch. A ring takes no memory until
  // it is used. RESOURCE_EXHAUSTED: the system refuses.
  static absl::StatusOr<SharedSegment> Create(uint64_t epoch, int rank,
                                              int world_size);
  // Returns the text by which a peer on this host opens the segment:
  // BOOT-ID/PID/FD/NONCE.
  const std::string& offer() const { return offer_; }

  // Opens the segment that rank `owner` offers. Maps the rings that rank `self`
  // writes.
  //
  // Errors: UNAVAILABLE: the segment belongs to another machine, or this
  // process cannot open it. INVALID_ARGUMENT: the segment does not belong to
  // the offer.
  static absl::StatusOr<SharedSegment> Open(absl::string_view offer,
                                            uint64_t epoch, int owner, int self,
                                            int world_size);

  bool mapped() const { return header_ != nullptr; }
  // Returns the ring that rank `writer` writes. In a peer's segment `writer`
  // must be this rank.
  SharedRing Ring(int writer, Lane lane) const;

  // Wakes the owner if it sleeps. Call it after writes that the owner must
  // notice. Does nothing if !mapped().
  void RingDoorbell() const;
  // Sleeps until a peer calls RingDoorbell or `timeout` has passed. Calls
  // idle() at a point from which no RingDoorbell can be missed. Returns at once
  // if idle() is false. Only for this rank's own segment.
  void Sleep(absl::Duration timeout, absl::FunctionRef<bool()> idle) const;

 private:
  void Unmap();

  SegmentHeader* header_ = nullptr;
  char* rings_ = nullptr;  // First ring: of `first_writer_`.
  size_t rings_bytes_ = 0;
  int first_writer_ = 0;
  int fd_ = -1;  // The own segment's; peers open it.
  std::string offer_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_SHARED_SEGMENT_H_
