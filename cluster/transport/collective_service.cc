// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/collective_service.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

// Far above what a fleet of 16 can have waiting; bounds what strangers can.
constexpr size_t kMaxEarlyStreams = 256;

}  // namespace

void CollectiveService::Start(std::shared_ptr<CompletionPoller> poller) {
  poller_ = std::move(poller);
  Expect(StreamKind::kLink);
  Expect(StreamKind::kControl);
}

void CollectiveService::Expect(StreamKind kind) {
  ServerStream::Expect(poller_, kind, &service_, this, &OnArrival);
}

void CollectiveService::OnArrival(void* self,
                                  std::shared_ptr<ServerStream> stream) {
  auto* service = static_cast<CollectiveService*>(self);
  if (service->poller_->closed()) return;
  service->Expect(stream->kind());
  service->Offer(std::move(stream));
}

void CollectiveService::Offer(std::shared_ptr<ServerStream> stream) {
  if (stream->ended()) return;  // The caller has gone while it waited.
  const absl::StatusOr<StreamIdentity> caller = stream->Identity();
  if (!caller.ok()) return stream->Refuse(caller.status());
  if (stopped_) {
    return stream->Refuse(absl::UnavailableError("the worker is stopping"));
  }
  if (caller->epoch > epoch_) {
    std::erase_if(early_, [](const auto& early) { return early->ended(); });
    if (early_.size() >= kMaxEarlyStreams) {
      // A rank calls again, and is let in once its epoch is entered here.
      return stream->Refuse(absl::UnavailableError(absl::StrCat(
          early_.size(), " streams wait for later epochs than ", epoch_)));
    }
    early_.push_back(std::move(stream));
    return;
  }
  if (caller->epoch < epoch_ || links_ == nullptr) {
    std::string why =
        absl::StrCat("rank ", caller->source, " calls in epoch ", caller->epoch,
                     caller->epoch < epoch_ ? ", this rank is in epoch "
                                            : ", this rank has left epoch ",
                     epoch_);
    if (caller->epoch == epoch_ && !left_because_.ok()) {
      absl::StrAppend(&why, ": ", left_because_.message());
    }
    return stream->Refuse(absl::FailedPreconditionError(why));
  }
  links_->Admit(std::move(stream), *caller);
}

absl::Status CollectiveService::EnterEpoch(uint64_t epoch) {
  if (stopped_) return absl::CancelledError("the endpoint is shut down");
  if (epoch <= epoch_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "epoch ", epoch, " is over: this rank has been in epoch ", epoch_));
  }
  // Closing lets calls of the new epoch arrive; they wait like all early ones.
  if (links_ != nullptr) {
    links_->Close(absl::FailedPreconditionError(absl::StrCat(
        "epoch ", links_->epoch(), " is over: epoch ", epoch, " begins")));
  }
  epoch_ = epoch;
  return absl::OkStatus();
}

void CollectiveService::Attach(PeerLinks* links) {
  links_ = links;
  for (auto& stream : std::exchange(early_, {})) Offer(std::move(stream));
}

void CollectiveService::Detach() {
  left_because_ = links_->Cause();
  links_ = nullptr;
}

void CollectiveService::Stop() {
  stopped_ = true;
  if (links_ != nullptr) {
    links_->Close(absl::CancelledError("the endpoint is shut down"));
  }
  for (auto& stream : std::exchange(early_, {})) Offer(std::move(stream));
}

void CollectiveService::Housekeeping() {
  if (links_ != nullptr) links_->Housekeeping();
}

}  // namespace ringfleet::cluster
