// SPDX-License-Identifier: Apache-2.0
// Something terrible that happens at one frame of one operation.
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
  // At a frame that this rank is about to send:
  kKill,       // The process dies.
  kStop,       // The process is stopped, as by SIGSTOP.
  kCorrupt,    // A bit of the frame flips behind its checksum.
  kStall,      // The thread that runs the operations sleeps.
  kReset,      // All TCP connections of the process are reset.
  kStale,      // A frame of the epoch before is sent in front of it.
  kDuplicate,  // A second Link and Control with this rank's identity.
  kAbort,      // The rank gives up.
  // The caller of the operations does these to an operation as a whole:
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

// A FrameScript for the frames that one rank sends. Not thread-safe.
class FaultScript {
 public:
  // `links` are those of the rank; `addresses` and `config` are those of the
  // epoch.
  FaultScript(cluster::Transport* links, std::vector<std::string> addresses,
              uint64_t config);

  // The operation `index` begins.
  void BeginOperation(int index);
  void set_fault(const Fault& fault) { fault_ = fault; }

  // Loses no frame.
  bool operator()(OutgoingFrame& frame);

 private:
  // Counts a frame; true when it is the one of the fault.
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
  cluster::PayloadLedger ledger_;  // Of corrupt_.
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FAULT_SCRIPT_H_
