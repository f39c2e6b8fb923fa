// SPDX-License-Identifier: Apache-2.0
// The server of the Collective service. Decides whether each incoming stream
// belongs to the epoch of this rank.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_COLLECTIVE_SERVICE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_COLLECTIVE_SERVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/transport/completion_poller.h"
#include "cluster/transport/peer_links.h"
#include "cluster/transport/peer_stream.h"

namespace ringfleet::cluster {

// Each entered epoch is later than the previous epoch. Refuses a stream of an
// earlier epoch. Keeps a stream of a later epoch until this rank enters the
// later epoch. Every function but grpc_service requires the poller's role.
class CollectiveService {
 public:
  RawCollectiveService* grpc_service() { return &service_; }

  // Begins to accept calls.
  void Start(std::shared_ptr<CompletionPoller> poller);

  // Enters `epoch`. Closes the links of the previous epoch, if they are still
  // open. FAILED_PRECONDITION: `epoch` is not later than all epochs entered
  // before.
  absl::Status EnterEpoch(uint64_t epoch);
  // Passes calls of the last entered epoch to `links`, until Detach.
  void Attach(PeerLinks* links);
  void Detach();
  // Closes the links. Refuses the streams that wait and all later streams.
  void Stop();

  void Housekeeping();
  PeerLinks* links() const { return links_; }

 private:
  static void OnArrival(void* self, std::shared_ptr<ServerStream> stream);
  void Expect(StreamKind kind);
  void Offer(std::shared_ptr<ServerStream> stream);

  RawCollectiveService service_;
  std::shared_ptr<CompletionPoller> poller_;
  uint64_t epoch_ = 0;  // The last entered.
  PeerLinks* links_ = nullptr;
  absl::Status left_because_;  // Reason why epoch_ has no links.
  std::vector<std::shared_ptr<ServerStream>> early_;  // In later epochs.
  bool stopped_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_COLLECTIVE_SERVICE_H_
