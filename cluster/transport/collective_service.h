// SPDX-License-Identifier: Apache-2.0
// The called side of the Collective service: decides for every incoming stream
// whether it belongs to the epoch of this rank.
#ifndef RINGFLEET_CLUSTER_TRANSPORT_COLLECTIVE_SERVICE_H_
#define RINGFLEET_CLUSTER_TRANSPORT_COLLECTIVE_SERVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/transport/completion_poller.h"
#include "cluster/transport/peer_links.h"
#include "cluster/transport/peer_stream.h"

namespace ringfleet::cluster {

// Epochs only grow: a stream of an earlier epoch is refused, one of a later
// epoch waits until this rank enters it. Every function but the first requires
// the poller's role.
class CollectiveService {
 public:
  RawCollectiveService* grpc_service() { return &service_; }

  // Begins to take calls.
  void Start(std::shared_ptr<CompletionPoller> poller);

  // Ends the links of the epoch before, if they are still open.
  // FAILED_PRECONDITION unless `epoch` is later than all before.
  absl::Status EnterEpoch(uint64_t epoch);
  // From now on calls of the epoch entered last go to `links`.
  void Attach(PeerLinks* links);
  void Detach();
  // Refuses what waits and closes the links. Nothing is accepted afterwards.
  void Stop();

  void Housekeeping();
  PeerLinks* links() const { return links_; }

 private:
  static void OnArrival(void* self, std::shared_ptr<ServerStream> stream);
  void Expect(StreamKind kind);
  void Offer(std::shared_ptr<ServerStream> stream);

  RawCollectiveService service_;
  std::shared_ptr<CompletionPoller> poller_;
  uint64_t epoch_ = 0;  // The latest entered.
  PeerLinks* links_ = nullptr;
  absl::Status left_because_;  // Of that epoch, once it has no links.
  std::vector<std::shared_ptr<ServerStream>> early_;  // Of later epochs.
  bool stopped_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_COLLECTIVE_SERVICE_H_
