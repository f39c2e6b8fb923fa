// SPDX-License-Identifier: Apache-2.0
// Calls any gRPC method with serialized messages. Every method is called as a
// stream of messages in each direction, because on the wire unary calls are
// streams, too.
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

// The answer of a source of messages.
enum class Pull {
  kMessage,  // The source has stored one message.
  kNotYet,   // The source has no message yet. It is called again.
  kEnd,      // There are no more messages. The source is not called again.
};
// Stores the next message in `message`. Must not block.
using MessageSource =
    absl::FunctionRef<absl::StatusOr<Pull>(std::string* message)>;
// Receives one message.
using MessageSink = absl::FunctionRef<absl::Status(const std::string& message)>;

// Calls `method`, such as "/package.Service/Method". Sends the messages of
// `requests`, and passes each reply to `replies` as it arrives. Calls both
// functions on the calling thread. Sends requests while it waits for replies.
// An error from `requests` or `replies` cancels the call and is returned
// unchanged.
// Errors: an error of the server has the server's code and the message "CODE:
// text". UNAVAILABLE: no connection.
absl::Status CallSerialized(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method,
                            cluster::Deadline deadline, MessageSource requests,
                            MessageSink replies);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_REFLECTION_GENERIC_CALL_H_
