// SPDX-License-Identifier: Apache-2.0
// A transport that does something terrible at one frame of one operation.
#ifndef RINGFLEET_TESTS_TESTING_FAULT_TRANSPORT_H_
#define RINGFLEET_TESTS_TESTING_FAULT_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/transport/transport.h"

namespace ringfleet::testing {

enum class FaultKind {
  kNone,
  // At a frame that this rank is about to send:
  kKill,       // The process dies.
  kStop,       // The process is stopped, as by SIGSTOP.
  kCorrupt,    // A bit of the frame flips behind its checksum.
  kStall,      // The thread that runs the operations sleeps.
  kReset,      // All TCP connections of the process are reset.
  kStale,      // A frame of the epoch before is sent in front of it.
  kDuplicate,  // A second Link and Control with this rank's identity.
  kAbort,      // The rank gives up.
  // Of the operation as a whole; the caller of the operations does these:
  kMisshapen,  // One element more than the others have.
  kSkip,       // The rank goes on to the next one.
};

// "kill", "stop", ...; in the order of the kinds.
absl::string_view FaultName(FaultKind kind);
// INVALID_ARGUMENT for an unknown name.
absl::StatusOr<FaultKind> ParseFault(absl::string_view name);

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int operation = 0;
  int frame = 0;  // Sent in the operation; if it sends fewer, the next one's.
  absl::Duration stall;
};

// Not thread-safe.
class FaultTransport final : public cluster::Transport {
 public:
  // `addresses` and `config` are those of the epoch.
  FaultTransport(std::unique_ptr<cluster::Transport> links, Fault fault,
                 std::vector<std::string> addresses, uint64_t config);

  // The operation `index` begins.
  void BeginOperation(int index);
  void set_fault(const Fault& fault) { fault_ = fault; }

  int rank() const override { return links_->rank(); }
  int world_size() const override { return links_->world_size(); }
  uint64_t epoch() const override { return links_->epoch(); }
  absl::Status Send(int peer, cluster::Lane lane,
                    const cluster::FrameHeader& header,
                    absl::Span<const char> payload,
                    cluster::PayloadLedger& ledger) override;
  absl::Status Forward(int peer, cluster::Lane lane,
                       const cluster::FrameHeader& header,
                       const cluster::FrameBody& frame) override;
  absl::StatusOr<cluster::ReceivedFrame> Receive(
      absl::Span<const cluster::Source> sources, cluster::Deadline deadline,
      size_t* index) override {
    return links_->Receive(sources, deadline, index);
  }
  absl::StatusOr<cluster::ReceivedFrame> ReceiveUnlessWoken(
      absl::Span<const cluster::Source> sources, cluster::Deadline deadline,
      size_t* index) override {
    return links_->ReceiveUnlessWoken(sources, deadline, index);
  }
  void Wake() override { links_->Wake(); }
  absl::Status AwaitReleased(const cluster::PayloadLedger& ledger,
                             cluster::Deadline deadline) override {
    return links_->AwaitReleased(ledger, deadline);
  }
  void Blame(int peer) override { links_->Blame(peer); }
  void Abort(const absl::Status& cause) override { links_->Abort(cause); }

 private:
  // Counts a frame; true when it is the one of the fault.
  bool Due();
  // Does what needs no payload.
  void Fire(int peer, cluster::Lane lane, const cluster::FrameHeader& header);
  void SendStale(int peer, cluster::Lane lane, cluster::FrameHeader header);
  void OpenDuplicates();

  Fault fault_;
  const std::vector<std::string> addresses_;
  const uint64_t config_;
  int operation_ = -1;
  int frames_ = 0;
  std::string corrupt_;
  cluster::PayloadLedger ledger_;
  const std::unique_ptr<cluster::Transport> links_;  // Ends before its payload.
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FAULT_TRANSPORT_H_
