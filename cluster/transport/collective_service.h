// SPDX-License-Identifier: Apache-2.0
// The server of the Collective service. Decides for every incoming stream
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

// Epochs only grow. A stream of an earlier epoch is refused, and a stream of a
// later epoch waits until this rank enters that epoch. Every function but the
// first requires the poller's role.
class CollectiveService {
 public:
  RawCollectiveService* grpc_service() { return &service_; }

  // Begins to take calls.
  void Start(std::shared_ptr<CompletionPoller> poller);

  // Ends the links of the earlier epoch, if they are still open.
  // FAILED_PRECONDITION: `epoch` is not later than all entered before.
  absl::Status EnterEpoch(uint64_t epoch);
  // Passes calls of the epoch entered last to `links`.
  void Attach(PeerLinks* links);
  void Detach();
  // Closes the links, refuses the waiting streams and all later ones.
  void Stop();

  void Housekeeping();
  PeerLinks* links() const { return links_; }

 private:
  static void OnArrival(void* self, std::shared_ptr<ServerStream> stream);
  void Expect(StreamKind kind);
  void Offer(std::shared_ptr<ServerStream> stream);

  RawCollectiveService service_;
  std::shared_ptr<CompletionPoller> poller_;
  uint64_t epoch_ = 0;  // Entered last.
  PeerLinks* links_ = nullptr;
  absl::Status left_because_;  // Why epoch_ has no links any more.
  std::vector<std::shared_ptr<ServerStream>> early_;  // For later epochs.
  bool stopped_ = false;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_TRANSPORT_COLLECTIVE_SERVICE_H_
