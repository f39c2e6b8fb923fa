// SPDX-License-Identifier: Apache-2.0
#include "worker/service/membership_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "cluster/process/log.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "protos/host.grpc.pb.h"

namespace ringfleet::worker {
namespace {

constexpr std::chrono::seconds kCallTimeout{5};
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);
constexpr absl::Duration kLastRetry = absl::Seconds(2);
// Longest pause between attempts to connect. A coordinator that is back should
// find its workers before its users notice.
constexpr absl::Duration kLongestReconnect = absl::Milliseconds(100);

// A coordinator that gives no answer still knows its members: registering anew
// would end their epoch.
bool MayKnowUs(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsOutOfRange(status) ||
         absl::IsInvalidArgument(status);
}

// Says what listens at an address that does not know Membership.
absl::Status NoCoordinator(const std::string& address,
                           const std::shared_ptr<grpc::Channel>& channel) {
  const auto host = v1::Host::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  v1::ClockReading ignored;
  const bool worker =
      host->ReadClock(&context, v1::ReadClockRequest(), &ignored).ok();
  return absl::InvalidArgumentError(absl::StrCat(
      "--coordinator ", address, ": ",
      worker ? "a worker listens there" : "another gRPC server listens there",
      ", want the address of ringfleet-coordinator"));
}

}  // namespace

MembershipClient::MembershipClient(const std::string& coordinator,
                                   v1::RegisterRequest request, Hooks hooks)
    : coordinator_(coordinator),
      request_(std::move(request)),
      hooks_(std::move(hooks)),
      channel_(cluster::OpenChannel(
          coordinator, cluster::DirectArguments(kLongestReconnect))),
      stub_(v1::Membership::NewStub(channel_)),
      thread_([this] { Loop(); }) {}

MembershipClient::~MembershipClient() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.join();
}

void MembershipClient::BeatNow() {
  MutexLock lock(&mu_);
  beats_now_ = true;
  changed_.NotifyAll();
}

bool MembershipClient::Sleep(absl::Duration duration) {
  const auto until =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
  MutexLock lock(&mu_);
  while (!stopping_ && !beats_now_ && changed_.WaitUntil(&mu_, until)) {
  }
  beats_now_ = false;
  return !stopping_;
}

void MembershipClient::Loop() {
  absl::Duration retry = kFirstRetry;
  // Nothing before the first error, whose message may be empty.
  std::optional<std::string> last_message;
  do {
    const auto begun = std::chrono::steady_clock::now();
    absl::Status status = Serve();
    if (absl::IsUnimplemented(status)) {
      status = NoCoordinator(coordinator_, channel_);
    }
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
    }
    if (IsFinal(status)) {
      RF_LOG(kError, "this worker cannot join the fleet of ", coordinator_,
             ": ", status.message());
      if (hooks_.on_refused != nullptr) hooks_.on_refused(status);
      return;
    }
    if (status.message() != last_message) {
      LogRetry(status);
      last_message = std::string(status.message());
    }
    const bool was_member =
        absl::IsNotFound(status) ||
        std::chrono::steady_clock::now() - begun > kCallTimeout;
    retry = was_member ? kFirstRetry : std::min(retry * 2, kLastRetry);
  } while (Sleep(retry));
}

void MembershipClient::LogRetry(const absl::Status& status) const {
  RF_LOG(
      kWarning, "coordinator ", coordinator_, ": ",
      absl::IsDeadlineExceeded(status)
          ? absl::string_view("no gRPC server answers there")
      : absl::IsUnimplemented(status)
          ? absl::string_view("it is no coordinator, want the address of one")
          : status.message(),
      "; trying again");
}

absl::Status MembershipClient::Serve() {
  const auto call = [&](auto method, const auto& request,
                        auto* response) -> absl::Status {
    grpc::ClientContext context;
    // A channel only makes progress while a call waits on it.
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    {
      MutexLock lock(&mu_);
      if (stopping_) return absl::CancelledError("stopping");
      call_ = &context;
    }
    const grpc::Status status =
        (stub_.get()->*method)(&context, request, response);
    MutexLock lock(&mu_);
    call_ = nullptr;
    return cluster::FromGrpc(status);
  };
  v1::RegisterRequest registration = request_;
  if (hooks_.begin_registration != nullptr) {
    hooks_.begin_registration(&registration);
  }
  v1::RegisterResponse registered;
  const absl::Status answer =
      call(&v1::Membership::Stub::Register, registration, &registered);
  if (hooks_.end_registration != nullptr) {
    hooks_.end_registration(registered.coordinator_id());
  }
  RF_RETURN_IF_ERROR(answer);
  cluster::SetLogName(absl::StrCat("worker ", registered.rank()));
  RF_LOG(kInfo, "registered as rank ", registered.rank(), " of ",
         registered.world_size(), " with coordinator ",
         registered.coordinator_id().substr(0, 8));
  const absl::Duration interval = absl::Milliseconds(
      std::clamp<uint32_t>(registered.heartbeat_interval_ms(), 10, 60000));
  absl::Duration pause = interval;
  absl::Status last;
  while (Sleep(pause)) {
    v1::HeartbeatRequest heartbeat;
    heartbeat.set_member_id(registered.member_id());
    if (hooks_.add_figures != nullptr) {
      hooks_.add_figures(registered.rank(), &heartbeat);
    }
    v1::HeartbeatResponse response;
    const auto begun = std::chrono::steady_clock::now();
    const absl::Status status =
        call(&v1::Membership::Stub::Heartbeat, heartbeat, &response);
    if (status.ok()) {
      pause = interval;
    } else if (!MayKnowUs(status)) {
      return status;
    } else {
      if (last.ok()) LogRetry(status);
      // A call that ran into its deadline has waited for the connection.
      const bool waited =
          std::chrono::steady_clock::now() - begun >= kCallTimeout;
      pause =
          last.ok() || waited ? kFirstRetry : std::min(pause * 2, kLastRetry);
    }
    last = status;
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::worker
