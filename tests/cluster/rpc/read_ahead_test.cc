// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/read_ahead.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "protos/cluster.grpc.pb.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

constexpr int kMessages = 64;
// More in all than flow control lets a server write to a client that does not
// read.
constexpr size_t kMessageBytes = size_t{1} << 20;

// Writes a bounded stream, and says when it is written.
class Writer final : public v1::Membership::Service {
 public:
  grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::ClusterState>* writer) override {
    v1::ClusterState state;
    state.set_error(std::string(kMessageBytes, 'x'));
    for (int i = 0; i < kMessages; ++i) {
      state.set_epoch(i);
      writer->Write(state);
    }
    MutexLock lock(&mu_);
    written_ = true;
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  bool AwaitWritten() {
    const Deadline deadline = testing::Soon();
    MutexLock lock(&mu_);
    while (!written_ && changed_.WaitUntil(&mu_, deadline.when())) {
    }
    return written_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool written_ ABSL_GUARDED_BY(mu_) = false;
};

TEST(ReadAheadTest, ReadsWhileItsCallerDoesNot) {
  Writer writer;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&writer);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto stub = v1::Membership::NewStub(
      testing::ConnectedChannel(absl::StrCat("127.0.0.1:", port)));
  grpc::ClientContext context;
  const auto stream = stub->Watch(&context, v1::WatchRequest());
  {
    ReadAhead<v1::ClusterState> ahead(stream.get());
    EXPECT_TRUE(writer.AwaitWritten());
    v1::ClusterState state;
    int count = 0;
    while (ahead.Read(&state)) {
      EXPECT_EQ(state.epoch(), static_cast<uint64_t>(count++));
    }
    EXPECT_EQ(count, kMessages);
    EXPECT_FALSE(ahead.Read(&state));
  }
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace ringfleet::cluster
