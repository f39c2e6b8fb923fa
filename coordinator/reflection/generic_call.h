// SPDX-License-Identifier: Apache-2.0
// Calls any gRPC method with serialized messages, any number in each direction:
// on the wire every kind of call is a stream each way.
#ifndef RINGFLEET_COORDINATOR_REFLECTION_GENERIC_CALL_H_
#define RINGFLEET_COORDINATOR_REFLECTION_GENERIC_CALL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/process/deadline.h"

namespace ringfleet::coordinator {

// The state of a source of messages.
enum class Pull {
  kMessage,  // One message was stored.
  kNotYet,   // No message yet; ask again. The source must not block.
  kEnd,      // No more messages. The source is not asked again.
};
using MessageSource =
    absl::FunctionRef<absl::StatusOr<Pull>(std::string* message)>;
using MessageSink = absl::FunctionRef<absl::Status(const std::string& message)>;

// Calls `method` ("/package.Service/Method"). Sends the messages of `requests`,
// and hands each reply to `replies` as it arrives. Both run in the calling
// thread, also while the other direction waits. An error of either cancels the
// call and is returned unchanged. An error of the call has its code and the
// message "CODE: text". UNAVAILABLE: no connection.
absl::Status CallSerialized(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method,
                            cluster::Deadline deadline, MessageSource requests,
                            MessageSink replies);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_REFLECTION_GENERIC_CALL_H_
