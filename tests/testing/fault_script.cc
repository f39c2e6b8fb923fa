// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/fault_script.h"

#include <dirent.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "protos/collective.grpc.pb.h"
#include "tests/testing/connected_channel.h"

namespace ringfleet::testing {
namespace {

constexpr absl::string_view kNames[] = {
    "none",  "kill",      "stop",  "corrupt",   "stall", "reset",
    "stale", "duplicate", "abort", "misshapen", "skip"};

// Resets every TCP connection of this process, as a middlebox would: to
// disconnect a socket sends a reset where one is due.
void ResetConnections() {
  DIR* const folder = opendir("/proc/self/fd");
  RF_CHECK(folder != nullptr);
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
      continue;
    }
    if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
    const linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    const sockaddr nobody = {.sa_family = AF_UNSPEC};
    connect(fd, &nobody, sizeof(nobody));
  }
  closedir(folder);
}

void AddIdentity(grpc::ClientContext& context, uint64_t epoch, int source,
                 uint64_t config) {
  context.AddMetadata("rf-epoch", std::to_string(epoch));
  context.AddMetadata("rf-source", std::to_string(source));
  context.AddMetadata("rf-config", std::to_string(config));
  context.AddMetadata("rf-lane", "0");
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
}

}  // namespace

absl::string_view FaultName(FaultKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<FaultKind> ParseFault(absl::string_view name) {
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    if (kNames[kind] == name) return static_cast<FaultKind>(kind);
  }
  return absl::InvalidArgumentError(absl::StrCat("no fault '", name, "'"));
}

FaultScript::FaultScript(cluster::Transport* links,
                         std::vector<std::string> addresses, uint64_t config)
    : links_(links), addresses_(std::move(addresses)), config_(config) {}

void FaultScript::BeginOperation(int index) {
  operation_ = index;
  frames_ = 0;
}

bool FaultScript::Due() {
  const bool due =
      fault_.kind != FaultKind::kNone && fault_.kind != FaultKind::kMisshapen &&
      fault_.kind != FaultKind::kSkip &&
      (operation_ > fault_.operation ||
       (operation_ == fault_.operation && frames_ >= fault_.frame));
  ++frames_;
  return due;
}

bool FaultScript::operator()(OutgoingFrame& frame) {
  if (!Due()) return true;
  switch (std::exchange(fault_.kind, FaultKind::kNone)) {
    case FaultKind::kKill:
      raise(SIGKILL);
      break;
    case FaultKind::kStop:
      raise(SIGSTOP);
      break;
    case FaultKind::kStall:
      std::this_thread::sleep_for(absl::ToChronoMilliseconds(fault_.stall));
      break;
    case FaultKind::kReset:
      ResetConnections();
      break;
    case FaultKind::kStale:
      SendStale(frame);
      break;
    case FaultKind::kDuplicate:
      OpenDuplicates();
      break;
    case FaultKind::kAbort:
      links_->Abort(absl::InternalError("injected"));
      break;
    case FaultKind::kCorrupt:
      Corrupt(frame);
      break;
    case FaultKind::kNone:
    case FaultKind::kMisshapen:
    case FaultKind::kSkip:
      break;
  }
  return true;
}

void FaultScript::Corrupt(OutgoingFrame& frame) {
  if (frame.payload == nullptr || frame.payload->empty()) {
    frame.header.check ^= 1;
    return;
  }
  corrupt_.assign(frame.payload->begin(), frame.payload->end());
  corrupt_[corrupt_.size() / 2] ^= 0x10;
  *frame.payload = corrupt_;
  frame.ledger = &ledger_;
}

void FaultScript::SendStale(const OutgoingFrame& frame) {
  cluster::FrameHeader header = frame.header;
  header.epoch -= 1;
  header.crc32c = FrameCrc(header, 0, 0);
  const absl::Status status =
      links_->Send(frame.to, frame.lane, header, {}, ledger_);
  RF_CHECK(status.ok());
}

// Lower ranks do not call higher ones at all; that is refused as well.
void FaultScript::OpenDuplicates() {
  const int callee = links_->rank() == 0 ? 1 : 0;
  const auto stub =
      v1::Collective::NewStub(ConnectedChannel(addresses_[callee]));
  grpc::ClientContext link_context;
  AddIdentity(link_context, links_->epoch(), links_->rank(), config_);
  const auto link = stub->Link(&link_context);
  v1::Frame frame;
  RF_CHECK(!link->Read(&frame));
  RF_CHECK(!link->Finish().ok());
  grpc::ClientContext control_context;
  AddIdentity(control_context, links_->epoch(), links_->rank(), config_);
  const auto control = stub->Control(&control_context);
  v1::ControlMessage message;
  RF_CHECK(!control->Read(&message));
  RF_CHECK(!control->Finish().ok());
}

}  // namespace ringfleet::testing
