// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

constexpr uint64_t kMagic = 0x31676e6972666572;  // Changes with the layout.
constexpr size_t kHeaderBytes = 4096;
static_assert(sizeof(SegmentHeader) <= kHeaderBytes);
static_assert(sizeof(RingControl) <= kHeaderBytes);
// Control and data; pages, so that a peer can map its rings alone.
constexpr size_t kRingStride = kHeaderBytes + kSharedRingBytes;

size_t SegmentBytes(int world_size) {
  return kHeaderBytes + static_cast<size_t>(world_size) * kLanes * kRingStride;
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

absl::Status SystemError(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory: ", what, ": ", std::strerror(errno)));
}

char* Map(int fd, size_t offset, size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        static_cast<off_t>(offset));
  return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
}

long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value,
           const timespec* timeout) {
  // Not private: the word is shared between processes.
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

struct Offer {
  int pid = 0;
  int fd = 0;
  uint64_t nonce[2] = {0, 0};
};

absl::StatusOr<Offer> ParseOffer(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  Offer offer;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[1], &offer.pid) ||
      !absl::SimpleAtoi(parts[2], &offer.fd) || offer.pid <= 0 ||
      offer.fd < 0 || parts[3].size() != 32 ||
      !absl::SimpleHexAtoi(parts[3].substr(0, 16), &offer.nonce[0]) ||
      !absl::SimpleHexAtoi(parts[3].substr(16), &offer.nonce[1])) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory: offer '", text, "', want BOOT-ID/PID/FD/NONCE"));
  }
  if (parts[0] != BootId()) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: of the machine ", parts[0]));
  }
  return offer;
}

// Checks that the file is such a memfd as Create makes.
absl::Status CheckFile(int fd, int world_size) {
  struct stat file = {};
  if (fstat(fd, &file) != 0) return SystemError("fstat");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (!S_ISREG(file.st_mode) || file.st_uid != geteuid() || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<size_t>(file.st_size) != SegmentBytes(world_size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory: a file of user ", file.st_uid, ", ", file.st_size,
        " bytes and seals ", seals, ", want user ", geteuid(), ", ",
        SegmentBytes(world_size), " bytes that cannot shrink"));
  }
  return absl::OkStatus();
}

}  // namespace

SharedSegment::~SharedSegment() { Unmap(); }

SharedSegment::SharedSegment(SharedSegment&& other) noexcept {
  *this = std::move(other);
}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  Unmap();
  header_ = std::exchange(other.header_, nullptr);
  rings_ = std::exchange(other.rings_, nullptr);
  rings_bytes_ = other.rings_bytes_;
  first_writer_ = other.first_writer_;
  fd_ = std::exchange(other.fd_, -1);
  offer_ = std::move(other.offer_);
  return *this;
}

void SharedSegment::Unmap() {
  if (header_ != nullptr) munmap(header_, kHeaderBytes);
  if (rings_ != nullptr) munmap(rings_, rings_bytes_);
  if (fd_ >= 0) close(fd_);
  header_ = nullptr;
  rings_ = nullptr;
  fd_ = -1;
}

absl::StatusOr<SharedSegment> SharedSegment::Create(uint64_t epoch, int rank,
                                                    int world_size) {
  SharedSegment segment;
  segment.fd_ =
      memfd_create("ringfleet-links", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd_ < 0) return SystemError("memfd_create");
  const size_t bytes = SegmentBytes(world_size);
  if (ftruncate(segment.fd_, static_cast<off_t>(bytes)) != 0 ||
      fcntl(segment.fd_, F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError(absl::StrCat(bytes, " bytes"));
  }
  segment.header_ =
      reinterpret_cast<SegmentHeader*>(Map(segment.fd_, 0, kHeaderBytes));
  segment.rings_bytes_ = bytes - kHeaderBytes;
  segment.rings_ = Map(segment.fd_, kHeaderBytes, segment.rings_bytes_);
  SegmentHeader* const header = segment.header_;
  if (header == nullptr || segment.rings_ == nullptr)
    return SystemError("mmap");
  if (getrandom(header->nonce, sizeof(header->nonce), 0) !=
      sizeof(header->nonce)) {
    return SystemError("getrandom");
  }
  header->magic = kMagic;
  header->epoch = epoch;
  header->rank = static_cast<uint32_t>(rank);
  header->world_size = static_cast<uint32_t>(world_size);
  segment.offer_ =
      absl::StrFormat("%s/%d/%d/%016x%016x", BootId(), getpid(), segment.fd_,
                      header->nonce[0], header->nonce[1]);
  return segment;
}

absl::StatusOr<SharedSegment> SharedSegment::Open(absl::string_view text,
                                                  uint64_t epoch, int owner,
                                                  int self, int world_size) {
  const absl::StatusOr<Offer> offer = ParseOffer(text);
  if (!offer.ok()) return offer.status();
  const std::string path =
      absl::StrCat("/proc/", offer->pid, "/fd/", offer->fd);
  // Whatever it names: opening it must neither wait nor take a terminal over.
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: ", path, ": ", std::strerror(errno)));
  }
  SharedSegment segment;
  absl::Status status = CheckFile(fd, world_size);
  if (status.ok()) {
    segment.header_ =
        reinterpret_cast<SegmentHeader*>(Map(fd, 0, kHeaderBytes));
    segment.first_writer_ = self;
    segment.rings_bytes_ = kLanes * kRingStride;
    segment.rings_ =
        Map(fd, kHeaderBytes + static_cast<size_t>(self) * segment.rings_bytes_,
            segment.rings_bytes_);
    if (segment.header_ == nullptr || segment.rings_ == nullptr) {
      status = SystemError("mmap");
    }
  }
  close(fd);
  if (!status.ok()) return status;
  const SegmentHeader& header = *segment.header_;
  if (header.magic != kMagic || header.nonce[0] != offer->nonce[0] ||
      header.nonce[1] != offer->nonce[1] || header.epoch != epoch ||
      header.rank != static_cast<uint32_t>(owner) ||
      header.world_size != static_cast<uint32_t>(world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: ", path, " is not the segment of rank ",
                     owner, " in epoch ", epoch));
  }
  return segment;
}

SharedRing SharedSegment::Ring(int writer, Lane lane) const {
  const size_t index = static_cast<size_t>(writer - first_writer_) * kLanes +
                       static_cast<size_t>(lane);
  RF_CHECK(writer >= first_writer_ &&
           (index + 1) * kRingStride <= rings_bytes_);
  char* const at = rings_ + index * kRingStride;
  return {.control = reinterpret_cast<RingControl*>(at),
          .data = at + kHeaderBytes,
          .size = kSharedRingBytes};
}

void SharedSegment::RingDoorbell() const {
  if (header_ == nullptr) return;
  // Either the owner sees what was written before, or it is seen to sleep.
  if (header_->sleeping.load(std::memory_order_seq_cst) == 0) return;
  if (header_->sleeping.exchange(0) == 0) return;  // Somebody else wakes it.
  header_->doorbell.fetch_add(1);
  Futex(&header_->doorbell, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedSegment::Sleep(absl::Duration timeout,
                          absl::FunctionRef<bool()> idle) const {
  const uint32_t rings = header_->doorbell.load();
  header_->sleeping.store(1, std::memory_order_seq_cst);
  if (idle()) {
    const timespec span = absl::ToTimespec(timeout);
    Futex(&header_->doorbell, FUTEX_WAIT, rings, &span);
  }
  header_->sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace ringfleet::cluster
