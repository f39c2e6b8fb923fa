// SPDX-License-Identifier: Apache-2.0
// Injects a fault at one frame of one operation.
#ifndef RINGFLEET_TESTS_TESTING_FAULT_SCRIPT_H_
#define RINGFLEET_TESTS_TESTING_FAULT_SCRIPT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/transport/transport.h"
#include "tests/testing/scripted_transport.h"

namespace ringfleet::testing {

enum class FaultKind {
  kNone,
  // Faults just before this rank sends a frame:
  kKill,       // The process is killed.
  kStop,       // The process is stopped, like by SIGSTOP.
  kCorrupt,    // A bit of the payload flips after its checksum was made.
  kStall,      // The thread that runs the operations sleeps.
  kReset,      // All TCP connections of the process are reset.
  kStale,      // A frame of the previous epoch is sent before the frame.
  kDuplicate,  // A second Link and Control open with this rank's identity.
  kAbort,      // The rank aborts.
  // Faults of a whole operation, which the caller of the operations carries
  // out:
  kMisshapen,  // The rank has one element more than the other ranks.
  kSkip,       // The rank skips the operation.
};

// Returns the name of a kind, such as "kill" or "stop".
absl::string_view FaultName(FaultKind kind);
// Returns the kind of a name. Errors: INVALID_ARGUMENT: the name is unknown.
absl::StatusOr<FaultKind> ParseFault(absl::string_view name);

// A fault, with the frame at which it happens.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  int operation = 0;  // Index of the operation, from 0.
  // Index of the frame that the rank sends in the operation, from 0. If the
  // operation sends fewer frames, frames of the next operations count.
  int frame = 0;
  absl::Duration stall;  // Length of kStall.
};

// A FrameScript for the frames that one rank sends. Not thread-safe.
class FaultScript {
 public:
  // `links` are the links of the rank. `addresses` and `config` are those of
  // the epoch.
  FaultScript(cluster::Transport* links, std::vector<std::string> addresses,
              uint64_t config);

  // Marks the begin of operation `index`.
  void BeginOperation(int index);
  void set_fault(const Fault& fault) { fault_ = fault; }

  // Carries out the fault if `frame` is its frame. Returns true: no frame is
  // lost.
  bool operator()(OutgoingFrame& frame);

 private:
  // Counts a frame. Returns whether the frame is that of the fault.
  bool Due();
  void Corrupt(OutgoingFrame& frame);
  void SendStale(const OutgoingFrame& frame);
  void OpenDuplicates();

  cluster::Transport* const links_;
  const std::vector<std::string> addresses_;
  const uint64_t config_;
  Fault fault_;
  int operation_ = -1;
  int frames_ = 0;
  std::string corrupt_;
  cluster::PayloadLedger ledger_;  // Ledger of corrupt_.
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FAULT_SCRIPT_H_
