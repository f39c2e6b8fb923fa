// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_RPC_READ_AHEAD_H_
#define RINGFLEET_CLUSTER_RPC_READ_AHEAD_H_

#include <grpcpp/support/sync_stream.h>

#include <deque>
#include <thread>
#include <utility>

#include "kernels/mutex.h"

namespace ringfleet::cluster {

// Reads the messages of a stream in a thread of its own, whatever its caller
// does meanwhile, such as writing to a pipe that nobody reads. A channel makes
// progress only while a thread waits on it, and a server whose answers to pings
// are not read seems to have vanished (channel.h). Messages wait in memory, so
// the stream must be one of bounded length.
template <typename Message>
class ReadAhead {
 public:
  // `stream` must outlive this object.
  explicit ReadAhead(grpc::ClientReader<Message>* stream)
      : stream_(stream), thread_([this] { Loop(); }) {}
  ~ReadAhead() { thread_.join(); }  // Waits for the end of the stream.
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Waits for the next message. False: the stream has ended, so that Finish()
  // may be called on it.
  bool Read(Message* message) {
    MutexLock lock(&mu_);
    while (messages_.empty() && !ended_) changed_.Wait(&mu_);
    if (messages_.empty()) return false;
    *message = std::move(messages_.front());
    messages_.pop_front();
    return true;
  }

 private:
  void Loop() {
    Message message;
    while (stream_->Read(&message)) {
      MutexLock lock(&mu_);
      messages_.push_back(std::move(message));
      changed_.NotifyAll();
    }
    MutexLock lock(&mu_);
    ended_ = true;
    changed_.NotifyAll();
  }

  grpc::ClientReader<Message>* const stream_;

  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RPC_READ_AHEAD_H_
