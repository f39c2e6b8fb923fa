// SPDX-License-Identifier: Apache-2.0
// A peer that speaks the protocol between ranks with generated gRPC code only.
// It is rank 1 of two ranks without rings. Rank 0 is under test.
#ifndef RINGFLEET_TESTS_TESTING_PLAIN_PEER_H_
#define RINGFLEET_TESTS_TESTING_PLAIN_PEER_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cluster/wire/crc32c.h"
#include "cluster/wire/frame.h"
#include "kernels/check.h"
#include "protos/collective.grpc.pb.h"
#include "tests/testing/connected_channel.h"

namespace ringfleet::testing {

class PlainPeer {
 public:
  // Opens both streams with rank 0 at `address`. Sends `headers` besides the
  // headers that the protocol requires.
  explicit PlainPeer(
      const std::string& address, uint64_t epoch = 1,
      const std::vector<std::pair<std::string, std::string>>& headers = {})
      : channel_(ConnectedChannel(address)),
        stub_(v1::Collective::NewStub(channel_)) {
    Identify(link_context_, epoch);
    Identify(*control_context_, epoch);
    link_context_.AddMetadata("rf-lane", "0");
    for (const auto& [name, value] : headers) {
      link_context_.AddMetadata(name, value);
    }
    link_ = stub_->Link(&link_context_);
    control_ = stub_->Control(control_context_.get());
  }
  ~PlainPeer() {
    control_context_->TryCancel();
    EndLink();
    control_->Finish();
  }

  // Breaks the link.
  void EndLink() {
    link_context_.TryCancel();
    if (!link_finished_) LinkStatus();
  }
  // Breaks the control stream of epoch 1 and opens a second control stream,
  // which ends after ten seconds.
  void ReopenControl() {
    control_context_->TryCancel();
    control_->Finish();
    control_.reset();
    control_context_ = std::make_unique<grpc::ClientContext>();
    control_context_->set_deadline(std::chrono::system_clock::now() +
                                   std::chrono::seconds(10));
    Identify(*control_context_, 1);
    control_ = stub_->Control(control_context_.get());
  }
  // Returns the status with which the link ended. Requires that the link has
  // ended.
  grpc::Status LinkStatus() {
    link_finished_ = true;
    return link_->Finish();
  }

  // Waits until rank 0 has accepted both streams and is ready.
  void Join() {
    link_->WaitForInitialMetadata();
    control_->WaitForInitialMetadata();
    v1::ControlMessage message = Control();
    message.mutable_ready();
    control_->Write(message);
    do {  // A slow rank 0 may send a heartbeat first.
      RF_CHECK(control_->Read(&message));
    } while (!message.has_ready());
  }

  static v1::ControlMessage Control() {
    v1::ControlMessage message;
    message.set_epoch(1);
    message.set_source(1);
    return message;
  }
  // Returns a frame of this peer in epoch 1, with its checksum.
  static v1::Frame Frame(uint64_t sequence, const std::string& payload) {
    v1::Frame frame;
    frame.set_source(1);
    frame.set_epoch(1);
    frame.set_sequence(sequence);
    frame.set_op_descriptor(cluster::PackDescriptor({}));
    frame.set_payload(payload);
    Seal(frame);
    return frame;
  }
  static void Seal(v1::Frame& frame) {
    const cluster::FrameHeader header = {.group = frame.group(),
                                         .source = frame.source(),
                                         .epoch = frame.epoch(),
                                         .sequence = frame.sequence(),
                                         .op_descriptor = frame.op_descriptor(),
                                         .step = frame.step(),
                                         .offset_bytes = frame.offset_bytes(),
                                         .check = frame.check(),
                                         .count = frame.count()};
    const std::string& payload = frame.payload();
    frame.set_crc32c(cluster::FrameCrc(
        header, cluster::ExtendCrc32c(0, payload.data(), payload.size()),
        payload.size()));
  }

  grpc::ClientReaderWriter<v1::Frame, v1::Frame>& link() { return *link_; }
  grpc::ClientReaderWriter<v1::ControlMessage, v1::ControlMessage>& control() {
    return *control_;
  }
  // The connection with rank 0, which carries both streams.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // The headers that rank 0 answered with. Requires Join().
  const grpc::ClientContext& link_context() const { return link_context_; }

 private:
  static void Identify(grpc::ClientContext& context, uint64_t epoch) {
    context.AddMetadata("rf-epoch", std::to_string(epoch));
    context.AddMetadata("rf-source", "1");
    context.AddMetadata("rf-config", "7");
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Collective::Stub> stub_;
  bool link_finished_ = false;
  grpc::ClientContext link_context_;
  std::unique_ptr<grpc::ClientContext> control_context_ =
      std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::ClientReaderWriter<v1::Frame, v1::Frame>> link_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::ControlMessage, v1::ControlMessage>>
      control_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_PLAIN_PEER_H_
