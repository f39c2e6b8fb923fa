// SPDX-License-Identifier: Apache-2.0
// Jobs whose events a test receives itself, over gRPC. They need neither
// processes nor threads of their own, so a test may have a thousand of them.
#ifndef RINGFLEET_TESTS_INTEGRATION_STREAMED_JOBS_H_
#define RINGFLEET_TESTS_INTEGRATION_STREAMED_JOBS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "protos/coordinator.grpc.pb.h"

namespace ringfleet::integration {

// The tokens of a job and its end.
struct StreamedResult {
  std::vector<uint32_t> ids;
  std::vector<float> logprobs;
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;
  std::string message;

  bool operator==(const StreamedResult&) const = default;
};

// Prints the end, the number of tokens, and the last of them.
std::ostream& operator<<(std::ostream& out, const StreamedResult& result);

// Clients of one coordinator with any number of open streams. Streams are
// numbered in the order of their calls. Use from one thread.
class StreamedJobs {
 public:
  // The streams are dealt out to `connections`.
  explicit StreamedJobs(int port, int connections = 1);
  // Cancels the streams that are open.
  ~StreamedJobs();

  // Begins a call, which waits for the coordinator. `held`: events after the
  // first are received by ReadOne() only.
  void Generate(const v1::GenerateRequest& request, bool held = false);
  void Watch(const std::string& id, bool held = false);

  // Lets every held stream receive one more event.
  void ReadOne();

  // Number of streams that have received an event, or have ended.
  size_t accepted() const;
  size_t ended() const;
  // Fewest tokens that a stream has received.
  size_t least_tokens() const;
  // Returns the id of a job. Empty before its first event.
  std::string id(size_t stream) const;
  // Number of events of a stream that said what the job waits for.
  int waits(size_t stream) const;

  // Returns the results of all streams, in order. A stream that has not ended
  // after `seconds` (times kSlowdown) fails the test and is cancelled.
  std::vector<StreamedResult> Wait(double seconds = 60);
  // Cancels the streams that are open, and waits until they have ended.
  void Cancel();

 private:
  class Stream;

  v1::Coordinator::Stub& NextStub();

  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace ringfleet::integration

#endif  // RINGFLEET_TESTS_INTEGRATION_STREAMED_JOBS_H_
