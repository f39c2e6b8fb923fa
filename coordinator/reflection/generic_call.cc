// SPDX-License-Identifier: Apache-2.0
#include "coordinator/reflection/generic_call.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status.h"

namespace ringfleet::coordinator {
namespace {

// How often a source that has nothing yet is asked again; a person who types
// does not notice it.
constexpr std::chrono::milliseconds kPullInterval(20);

void* Tag(int value) { return reinterpret_cast<void*>(intptr_t{value}); }
enum Event { kStarted = 1, kWritten, kWritesDone, kRead, kFinished };

absl::Status ToString(const grpc::ByteBuffer& buffer, std::string* out) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) {
    return absl::DataLossError("a reply cannot be decompressed");
  }
  out->clear();
  for (const grpc::Slice& slice : slices) {
    out->append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return absl::OkStatus();
}

absl::Status WithCodeName(const grpc::Status& status) {
  const absl::Status converted = cluster::FromGrpc(status);
  if (converted.ok()) return converted;
  return absl::Status(
      converted.code(),
      absl::StrCat(
          absl::StatusCodeToString(converted.code()), ": ",
          converted.message().empty() ? "(no message)" : converted.message()));
}

}  // namespace

absl::Status CallSerialized(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method,
                            cluster::Deadline deadline, MessageSource requests,
                            MessageSink replies) {
  grpc::ClientContext context;
  if (!deadline.infinite()) {
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoMicroseconds(deadline.Remaining()));
  }
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(Tag(kStarted));

  // One operation of each kind is in flight at most. The queue must have
  // returned all of them before `call` goes, hence the count.
  int in_flight = 1;
  bool may_write = false;
  bool reads_ended = false;
  bool finishing = false;
  grpc::ByteBuffer incoming;
  grpc::Status finished;
  absl::Status first_error;  // From the source or the sink.
  const auto fail = [&](const absl::Status& error) {
    if (first_error.ok()) first_error = error;
    may_write = false;
    context.TryCancel();
  };

  while (!finishing || in_flight > 0) {
    if (may_write && !reads_ended) {
      std::string message;
      const absl::StatusOr<Pull> pulled = requests(&message);
      if (!pulled.ok()) {
        fail(pulled.status());
      } else if (*pulled == Pull::kMessage) {
        const grpc::Slice slice(message);
        call->Write(grpc::ByteBuffer(&slice, 1), Tag(kWritten));
        may_write = false;
        ++in_flight;
      } else if (*pulled == Pull::kEnd) {
        call->WritesDone(Tag(kWritesDone));
        may_write = false;
        ++in_flight;
      }
    }
    if (reads_ended && !finishing) {
      call->Finish(&finished, Tag(kFinished));
      finishing = true;
      ++in_flight;
    }

    void* tag = nullptr;
    bool ok = false;
    if (may_write) {
      const auto until = std::chrono::system_clock::now() + kPullInterval;
      if (queue.AsyncNext(&tag, &ok, until) !=
          grpc::CompletionQueue::GOT_EVENT) {
        continue;
      }
    } else {
      queue.Next(&tag, &ok);
    }
    --in_flight;
    switch (static_cast<Event>(reinterpret_cast<intptr_t>(tag))) {
      case kStarted:
        may_write = ok;
        reads_ended = !ok;
        break;
      case kWritten:
        may_write = ok && first_error.ok();
        continue;
      case kRead:
        reads_ended = !ok;
        if (ok && first_error.ok()) {
          std::string reply;
          absl::Status status = ToString(incoming, &reply);
          if (status.ok()) status = replies(reply);
          if (!status.ok()) fail(status);
        }
        break;
      case kWritesDone:
      case kFinished:
        continue;
    }
    if (!reads_ended) {  // After the start and after each reply.
      call->Read(&incoming, Tag(kRead));
      ++in_flight;
    }
  }
  return first_error.ok() ? WithCodeName(finished) : first_error;
}

}  // namespace ringfleet::coordinator
