// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/streamed_jobs.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/mutex.h"
#include "tests/testing/process.h"

namespace ringfleet::integration {

std::ostream& operator<<(std::ostream& out, const StreamedResult& result) {
  out << "code " << result.code << " (" << result.message << "), "
      << result.ids.size() << " tokens";
  if (!result.ids.empty()) {
    out << ", last " << result.ids.back() << " with " << result.logprobs.back();
  }
  return out;
}

class StreamedJobs::Stream final
    : public grpc::ClientReadReactor<v1::GenerateEvent> {
 public:
  explicit Stream(bool held) : held_(held) {
    context_.set_wait_for_ready(true);
  }

  void Generate(v1::Coordinator::Stub& stub,
                const v1::GenerateRequest& request) {
    generate_ = request;
    stub.async()->Generate(&context_, &generate_, this);
    Begin();
  }
  void Watch(v1::Coordinator::Stub& stub, const std::string& id) {
    watch_.set_id(id);
    stub.async()->WatchJob(&context_, &watch_, this);
    Begin();
  }

  // Asks for the next event unless one is asked for.
  void Read() {
    {
      MutexLock lock(&mu_);
      if (reading_ || drained_) return;
      reading_ = true;
    }
    StartRead(&event_);
  }

  void Cancel() {
    context_.TryCancel();
    {
      MutexLock lock(&mu_);
      held_ = false;
    }
    Read();  // A stream that is read to its end can end.
  }

  void OnReadDone(bool ok) override {
    {
      MutexLock lock(&mu_);
      reading_ = false;
      drained_ = !ok;
      if (ok) Take();
    }
    if (!ok) {
      RemoveHold();
    } else if (!held()) {
      Read();
    }
  }

  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mu_);
    result_.code = status.error_code();
    result_.message = status.error_message();
    ended_ = true;
  }

  bool accepted() const {
    MutexLock lock(&mu_);
    return accepted_ || ended_;
  }
  bool ended() const {
    MutexLock lock(&mu_);
    return ended_;
  }
  bool held() const {
    MutexLock lock(&mu_);
    return held_;
  }
  size_t tokens() const {
    MutexLock lock(&mu_);
    return result_.ids.size();
  }
  std::string id() const {
    MutexLock lock(&mu_);
    return id_;
  }
  int waits() const {
    MutexLock lock(&mu_);
    return waits_;
  }
  StreamedResult result() const {
    MutexLock lock(&mu_);
    return result_;
  }

 private:
  void Begin() {
    AddHold();  // Until OnReadDone has seen the end: reads begin outside too.
    Read();
    StartCall();
  }

  void Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    accepted_ = true;
    if (event_.has_accepted()) id_ = event_.accepted().id();
    if (event_.has_waiting() && !event_.waiting().reason().empty()) ++waits_;
    if (!event_.has_token()) return;
    result_.ids.push_back(event_.token().id());
    result_.logprobs.push_back(event_.token().logprob());
  }

  grpc::ClientContext context_;
  v1::GenerateRequest generate_;
  v1::WatchJobRequest watch_;
  v1::GenerateEvent event_;  // Of the read that goes on.

  mutable Mutex mu_;
  bool held_ ABSL_GUARDED_BY(mu_);
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool drained_ ABSL_GUARDED_BY(mu_) = false;
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  int waits_ ABSL_GUARDED_BY(mu_) = 0;
  std::string id_ ABSL_GUARDED_BY(mu_);
  StreamedResult result_ ABSL_GUARDED_BY(mu_);
};

StreamedJobs::StreamedJobs(int port, int connections) {
  grpc::ChannelArguments arguments;
  // Equal channels would share a connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  for (int i = 0; i < connections; ++i) {
    stubs_.push_back(v1::Coordinator::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(),
        arguments)));
  }
}

StreamedJobs::~StreamedJobs() { Cancel(); }

v1::Coordinator::Stub& StreamedJobs::NextStub() {
  return *stubs_[streams_.size() % stubs_.size()];
}

void StreamedJobs::Generate(const v1::GenerateRequest& request, bool held) {
  streams_.push_back(std::make_unique<Stream>(held));
  streams_.back()->Generate(NextStub(), request);
}

void StreamedJobs::Watch(const std::string& id, bool held) {
  streams_.push_back(std::make_unique<Stream>(held));
  streams_.back()->Watch(NextStub(), id);
}

void StreamedJobs::ReadOne() {
  for (const auto& stream : streams_) {
    if (stream->held()) stream->Read();
  }
}

size_t StreamedJobs::accepted() const {
  return std::count_if(streams_.begin(), streams_.end(),
                       [](const auto& stream) { return stream->accepted(); });
}

size_t StreamedJobs::ended() const {
  return std::count_if(streams_.begin(), streams_.end(),
                       [](const auto& stream) { return stream->ended(); });
}

size_t StreamedJobs::least_tokens() const {
  size_t least = SIZE_MAX;
  for (const auto& stream : streams_) {
    least = std::min(least, stream->tokens());
  }
  return least;
}

std::string StreamedJobs::id(size_t stream) const {
  return streams_[stream]->id();
}

int StreamedJobs::waits(size_t stream) const {
  return streams_[stream]->waits();
}

std::vector<StreamedResult> StreamedJobs::Wait(double seconds) {
  const bool all = testing::WaitUntil(
      seconds, [this] { return ended() == streams_.size(); });
  if (!all) {
    ADD_FAILURE() << streams_.size() - ended() << " of " << streams_.size()
                  << " streams have not ended";
    Cancel();
  }
  std::vector<StreamedResult> results;
  for (const auto& stream : streams_) results.push_back(stream->result());
  return results;
}

void StreamedJobs::Cancel() {
  for (const auto& stream : streams_) stream->Cancel();
  RF_CHECK(
      testing::WaitUntil(60, [this] { return ended() == streams_.size(); }));
}

}  // namespace ringfleet::integration
