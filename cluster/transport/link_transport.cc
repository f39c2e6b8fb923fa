// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/link_transport.h"

#include <grpcpp/server_builder.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "cluster/transport/collective_service.h"
#include "cluster/transport/completion_poller.h"
#include "cluster/transport/peer_links.h"
#include "kernels/check.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {
namespace {

Spinning SpinningHere(Spin spin, int ranks_on_host) {
  return SpinningOf(spin, ranks_on_host, AvailableCpus());
}

absl::Status StoppingError() {
  return absl::UnavailableError("this worker is shutting down");
}

absl::Status CheckWorld(const CollectiveEndpoint::World& world, int rank) {
  const int size = static_cast<int>(world.addresses.size());
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " of a world of ", size, " addresses"));
  }
  for (const std::vector<int>& ring : world.rings) {
    for (const int member : ring) {
      if (member < 0 || member >= size) {
        return absl::InvalidArgumentError(
            absl::StrCat("a ring has rank ", member, " of a world of ", size));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct CollectiveEndpoint::Impl {
  Options options;
  CollectiveService service;  // Guarded by the poller's role.
  std::shared_ptr<CompletionPoller> poller;
  std::atomic<uint64_t> dropped_frames{0};

  Mutex mu;
  PeerLinks* links ABSL_GUARDED_BY(mu) = nullptr;  // Not yet closed.
  bool stopping ABSL_GUARDED_BY(mu) = false;

  void SetLinks(PeerLinks* value) {
    MutexLock lock(&mu);
    links = value;
    if (stopping && links != nullptr) links->Interrupt(StoppingError());
  }
};

CollectiveEndpoint::CollectiveEndpoint(Options options)
    : impl_(new Impl{.options = options}) {}

CollectiveEndpoint::~CollectiveEndpoint() {
  RF_CHECK(impl_->poller == nullptr || impl_->poller->closed());
}

void CollectiveEndpoint::Register(grpc::ServerBuilder& builder) {
  RF_CHECK(impl_->poller == nullptr);
  builder.RegisterService(impl_->service.grpc_service());
  for (const char* argument : kReadBufferArguments) {
    builder.AddChannelArgument(argument, kReadBufferBytes);
  }
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Peers ping every 10 s; the default takes that for an attack.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  impl_->poller = std::make_shared<CompletionPoller>(
      builder.AddCompletionQueue(), SpinningHere(impl_->options.spin, 1),
      [impl = impl_.get()] { impl->service.Housekeeping(); });
}

void CollectiveEndpoint::Start() {
  RF_CHECK(impl_->poller != nullptr);
  {
    CompletionPoller::Role role(impl_->poller.get());
    impl_->service.Start(impl_->poller);
  }
  impl_->poller->Start();
}

FlightRecorder* CollectiveEndpoint::recorder() const {
  return impl_->options.recorder;
}

void CollectiveEndpoint::SetRanksOnHost(int ranks, std::optional<Spin> spin) {
  CompletionPoller::Role role(impl_->poller.get());
  impl_->poller->set_spinning(
      SpinningHere(spin.value_or(impl_->options.spin), ranks));
}

absl::StatusOr<std::unique_ptr<Transport>> CollectiveEndpoint::Connect(
    uint64_t epoch, int rank, const World& world, Deadline deadline) {
  RF_RETURN_IF_ERROR(CheckWorld(world, rank));
  std::unique_ptr<PeerLinks> links;
  absl::Status status;
  {
    CompletionPoller::Role role(impl_->poller.get());
    RF_RETURN_IF_ERROR(impl_->service.EnterEpoch(epoch));
    LinkConfig config;
    config.self.epoch = epoch;
    config.self.source = rank;
    config.self.config = world.config_hash;
    config.world = world;
    config.warm_up_bytes = impl_->options.warm_up_bytes;
    config.max_queued_bytes = impl_->options.max_queued_bytes;
    config.recorder = impl_->options.recorder;
    config.round_trips = impl_->options.round_trips;
    links = std::make_unique<PeerLinks>(
        impl_->poller, std::move(config), [impl = impl_.get()] {
          impl->dropped_frames += impl->service.links()->dropped_frames();
          impl->service.Detach();
          impl->SetLinks(nullptr);
        });
    impl_->SetLinks(links.get());
    impl_->service.Attach(links.get());
    links->Dial();
    status = links->AwaitConnected(deadline);
  }
  if (!status.ok()) return status;  // Destroying the links takes the role.
  return links;
}

void CollectiveEndpoint::Interrupt(const absl::Status& cause) {
  MutexLock lock(&impl_->mu);
  if (impl_->links != nullptr) impl_->links->Interrupt(cause);
}

void CollectiveEndpoint::StopLinks() {
  if (impl_->poller == nullptr || impl_->poller->closed()) return;
  {
    // Whoever waits for a frame has the role and must first let go of it.
    MutexLock lock(&impl_->mu);
    impl_->stopping = true;
    if (impl_->links != nullptr) impl_->links->Interrupt(StoppingError());
  }
  CompletionPoller::Role role(impl_->poller.get());
  impl_->service.Stop();
}

void CollectiveEndpoint::Shutdown() {
  if (impl_->poller == nullptr) return;
  StopLinks();
  impl_->poller->Drain();
}

int CollectiveEndpoint::shared_lanes() const {
  CompletionPoller::Role role(impl_->poller.get());
  const PeerLinks* links = impl_->service.links();
  return links != nullptr ? links->shared_lanes() : 0;
}

uint64_t CollectiveEndpoint::dropped_frames() const {
  CompletionPoller::Role role(impl_->poller.get());
  const PeerLinks* links = impl_->service.links();
  return impl_->dropped_frames + (links ? links->dropped_frames() : 0);
}

}  // namespace ringfleet::cluster
