// SPDX-License-Identifier: Apache-2.0
// Frames in shared memory against peers that are honest, hostile or killed.
#include "cluster/transport/shared_lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cluster/transport/link_transport.h"
#include "cluster/wire/crc32c.h"
#include "tests/testing/count_allocations.h"
#include "tests/testing/grpc_world.h"
#include "tests/testing/plain_peer.h"
#include "tests/testing/process.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::AllocationCount;
using ::ringfleet::testing::CountsAllocations;
using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::PayloadOf;
using ::ringfleet::testing::PlainPeer;
using ::ringfleet::testing::Process;
using ::ringfleet::testing::Soon;
using ::testing::HasSubstr;

// Rank 1, with a segment of its own and its end of the ring to rank 0, where
// it may write anything.
class SharedPeer {
 public:
  SharedPeer()
      : world_(2, {.spin = Spin::kNever, .warm_up_bytes = 0},
               TransportKind::kAuto),
        own_(*SharedSegment::Create(1, 1, 2)),
        plain_(world_.addresses()[0], 1, {{"rf-shm", own_.offer()}}) {
    world_.world().rings.clear();
    std::thread connecting([this] { transport_ = *world_.Connect(0); });
    plain_.Join();
    connecting.join();
    const auto& headers = plain_.link_context().GetServerInitialMetadata();
    const auto answer = headers.find("rf-shm");
    if (answer == headers.end()) return;
    auto theirs = SharedSegment::Open(
        {answer->second.data(), answer->second.size()}, 1, 0, 1, 2);
    EXPECT_TRUE(theirs.ok()) << theirs.status();
    theirs_ = *std::move(theirs);
  }

  SharedSegment& own() { return own_; }
  SharedSegment& theirs() { return theirs_; }
  SharedRing to_rank_0() const { return theirs_.Ring(1, Lane::kDirect); }
  SharedRing from_rank_0() const { return own_.Ring(0, Lane::kDirect); }
  Transport& rank_0() { return *transport_; }
  PlainPeer& plain() { return plain_; }

  absl::StatusOr<ReceivedFrame> ReceiveAtRank0(Deadline deadline = Soon()) {
    const Source source = {1, Lane::kDirect};
    size_t index = 0;
    return transport_->Receive({&source, 1}, deadline, &index);
  }
  void Put(absl::string_view bytes) {
    EXPECT_EQ(writer().Write(bytes.data(), bytes.size()), bytes.size());
    writer().Publish();
    theirs_.RingDoorbell();
  }
  RingWriter& writer() {
    if (!writer_.has_value()) writer_.emplace(to_rank_0());
    return *writer_;
  }

 private:
  GrpcWorld world_;
  SharedSegment own_;
  PlainPeer plain_;
  std::unique_ptr<Transport> transport_;
  SharedSegment theirs_;
  std::optional<RingWriter> writer_;
};

std::string Record(const std::string& payload, uint64_t epoch = 1,
                   uint32_t source = 1) {
  FrameHeader header = {
      .source = source, .epoch = epoch, .sequence = 3, .op_descriptor = 1};
  header.crc32c = FrameCrc(
      header, ExtendCrc32c(0, payload.data(), payload.size()), payload.size());
  const uint32_t bytes =
      static_cast<uint32_t>(kFrameHeaderBytes + payload.size());
  std::string record(sizeof(bytes) + kFrameHeaderBytes, '\0');
  std::memcpy(record.data(), &bytes, sizeof(bytes));
  EncodeFrameHeader(header, payload.size(), record.data() + sizeof(bytes));
  record += payload;
  record.resize((record.size() + 63) / 64 * 64);
  return record;
}

TEST(SharedLanesTest, ARecordIsLengthMessageAndZeros) {
  SharedPeer peer;
  for (const size_t size : {0, 1, 1000, 100000}) {
    const std::string payload(size, 'x');
    peer.Put(Record(payload));
    const auto frame = peer.ReceiveAtRank0();
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ((*frame)->header.sequence, 3u);
    EXPECT_EQ((*frame)->payload_bytes, size);
    // Copied to a line's beginning, or where the record has it.
    if (size > 0) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>((*frame)->payload[0].data()) % 64,
                size < 8192 ? 0u : 4 + kFrameHeaderBytes - 64);
    }
  }
}

TEST(SharedLanesTest, WhatHasComeWholeIsReadWhereItLies) {
  SharedPeer peer;
  const std::atomic<uint64_t>& tail = peer.to_rank_0().control->tail;
  uint64_t written = 0;
  for (int i = 0; i < 12; ++i) {  // More than once round the ring.
    const std::string payload(200000 + i, static_cast<char>('a' + i));
    const std::string record = Record(payload);
    peer.Put(record);
    auto frame = peer.ReceiveAtRank0();
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(PayloadOf(**frame), payload);
    const auto look = [&] {
      return peer.ReceiveAtRank0(Deadline::After(absl::ZeroDuration()));
    };
    EXPECT_FALSE(look().ok());
    EXPECT_EQ(tail.load(), written + sizeof(uint32_t));
    frame->reset();
    EXPECT_FALSE(look().ok());
    written += record.size();
    EXPECT_EQ(tail.load(), written);
  }
}

TEST(SharedLanesTest, BehindAFrameThatIsHeldHalfTheRingIsLeft) {
  SharedPeer peer;
  std::vector<std::string> payloads;
  std::vector<ReceivedFrame> held;
  for (const size_t size : {400000, 300000, 200000}) {
    payloads.emplace_back(size, static_cast<char>('a' + held.size()));
    peer.Put(Record(payloads.back()));
    auto frame = peer.ReceiveAtRank0();
    ASSERT_TRUE(frame.ok()) << frame.status();
    held.push_back(*std::move(frame));
  }
  // A larger one than there is room for overwrites nothing, and comes once they
  // are given up.
  const std::string record = Record(std::string(kMaxPayloadBytes, 'x'));
  size_t written = peer.writer().Write(record.data(), record.size());
  EXPECT_LT(written, kSharedRingBytes - 900000);
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(PayloadOf(*held[i]), payloads[i]);
  }
  std::thread writing([&] {
    const Deadline deadline = Soon();
    while (written < record.size() && !deadline.Expired()) {
      peer.writer().Publish();
      peer.theirs().RingDoorbell();
      std::this_thread::yield();
      written +=
          peer.writer().Write(record.data() + written, record.size() - written);
    }
    peer.writer().Publish();
    peer.theirs().RingDoorbell();
  });
  held.clear();
  const auto frame = peer.ReceiveAtRank0();
  writing.join();
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ((*frame)->payload_bytes, kMaxPayloadBytes);
}

TEST(SharedLanesTest, ARecordMayArriveByteByByte) {
  SharedPeer peer;
  const std::string record = Record("slow");
  for (size_t i = 0; i < sizeof(uint32_t) + kFrameHeaderBytes + 4; ++i) {
    const auto early =
        peer.ReceiveAtRank0(Deadline::After(absl::ZeroDuration()));
    ASSERT_EQ(early.status().code(), absl::StatusCode::kDeadlineExceeded);
    peer.Put({&record[i], 1});
  }
  const auto frame = peer.ReceiveAtRank0();
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ((*frame)->payload_bytes, 4u);
}

// What must end the epoch on rank 0 when it stands in its ring.
void ExpectDataLoss(SharedPeer& peer) {
  const auto frame = peer.ReceiveAtRank0();
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kDataLoss)
      << frame.status();
  EXPECT_THAT(std::string(frame.status().message()), HasSubstr("rank 1"));
}

TEST(SharedLanesTest, ALengthThatNoMessageHasIsDataLoss) {
  for (const uint32_t bytes :
       {uint32_t{0}, uint32_t{kFrameHeaderBytes - 1},
        static_cast<uint32_t>(kFrameHeaderBytes + kMaxPayloadBytes + 1),
        ~uint32_t{0}}) {
    SharedPeer peer;
    std::string record = Record("payload");
    std::memcpy(record.data(), &bytes, sizeof(bytes));
    peer.Put(record);
    ExpectDataLoss(peer);
  }
}

TEST(SharedLanesTest, APositionThatCannotBeIsDataLoss) {
  for (const uint64_t head : {uint64_t{kSharedRingBytes + 1}, ~uint64_t{0}}) {
    SharedPeer peer;
    peer.to_rank_0().control->head = head;
    ExpectDataLoss(peer);
  }
  for (const uint64_t tail : {uint64_t{3 * kSharedRingBytes}, ~uint64_t{0}}) {
    SharedPeer peer;
    peer.from_rank_0().control->tail = tail;
    const std::string payload(kMaxPayloadBytes, 'x');
    PayloadLedger ledger;
    // The second does not fit; by then the position may have been seen.
    for (int i = 0; i < 2; ++i) {
      const absl::Status sent =
          peer.rank_0().Send(1, Lane::kDirect, {.epoch = 1}, payload, ledger);
      EXPECT_TRUE(sent.ok() || absl::IsDataLoss(sent)) << sent;
    }
    ExpectDataLoss(peer);
    EXPECT_TRUE(ledger.released());
  }
}

TEST(SharedLanesTest, ACorruptByteIsDataLoss) {
  SharedPeer peer;
  std::string record = Record("payload");
  record[4 + kFrameHeaderBytes] ^= 1;
  peer.Put(record);
  ExpectDataLoss(peer);
}

TEST(SharedLanesTest, AFrameInTheNameOfAnotherRankIsDataLoss) {
  SharedPeer peer;
  peer.Put(Record("x", 1, 0));
  ExpectDataLoss(peer);
}

TEST(SharedLanesTest, FramesOfAnotherEpochAreDropped) {
  SharedPeer peer;
  peer.Put(Record("late", 0) + Record("early", 2) + Record("right"));
  const auto frame = peer.ReceiveAtRank0();
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ((*frame)->payload_bytes, 5u);
}

// Whatever lies in the ring, rank 0 gives a status and reads nothing beyond.
TEST(SharedLanesTest, NoiseNeverDoesWorseThanAnError) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SharedPeer peer;
    std::mt19937 random(seed);
    std::string noise = Record(std::string(random() % 5000, 'x')) +
                        Record(std::string(random() % 5000, 'y'));
    for (uint32_t flips = random() % 20; flips > 0; --flips) {
      noise[random() % std::min<size_t>(noise.size(), 400)] =
          static_cast<char>(random());
    }
    const SharedRing ring = peer.to_rank_0();
    std::memcpy(ring.data, noise.data(), noise.size());
    ring.control->head =
        seed % 4 == 0 ? random() % (2 * kSharedRingBytes) : noise.size();
    ring.control->writer_waits = random();
    peer.theirs().RingDoorbell();
    for (int i = 0; i < 3; ++i) {
      const auto frame =
          peer.ReceiveAtRank0(Deadline::After(absl::Milliseconds(2)));
      if (!frame.ok()) continue;
      EXPECT_LE((*frame)->payload_bytes, kMaxPayloadBytes);
    }
  }
}

TEST(SharedLanesTest, APeerThatDoesNotReadNeverHoldsTheSender) {
  SharedPeer peer;
  const std::string payload(kMaxPayloadBytes, 'x');
  PayloadLedger ledger;
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(peer.rank_0()
                    .Send(1, Lane::kDirect, {.epoch = 1, .sequence = i},
                          payload, ledger)
                    .ok());
  }
  EXPECT_EQ(peer.rank_0()
                .AwaitReleased(ledger, Deadline::After(absl::Milliseconds(20)))
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  // It begins to read, and is told of every byte.
  RingReader reader(peer.from_rank_0());
  std::thread reading([&] {
    std::vector<char> bytes(kSharedRingBytes);
    size_t left =
        20 * ((kFrameHeaderBytes + 4 + payload.size() + 63) / 64 * 64);
    while (left > 0) {
      const size_t size = reader.Available();
      reader.Read(bytes.data(), size);
      left -= size;
      if (reader.Release(reader.position())) peer.theirs().RingDoorbell();
    }
  });
  EXPECT_TRUE(peer.rank_0().AwaitReleased(ledger, Soon()).ok());
  reading.join();
}

TEST(SharedLanesTest, AnAbortGivesMemoryBackAtOnce) {
  SharedPeer peer;
  const std::string payload(kMaxPayloadBytes, 'x');
  PayloadLedger ledger;
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(peer.rank_0()
                    .Send(1, Lane::kDirect, {.epoch = 1, .sequence = i},
                          payload, ledger)
                    .ok());
  }
  EXPECT_FALSE(ledger.released());
  peer.rank_0().Abort(absl::InternalError("enough"));
  EXPECT_TRUE(ledger.released());
  EXPECT_EQ(peer.rank_0().AwaitReleased(ledger, Deadline::Infinite()),
            absl::InternalError("enough"));
}

TEST(SharedLanesTest, ABadOfferLeavesTheLaneWithItsStream) {
  const SharedSegment other_epoch = *SharedSegment::Create(2, 1, 2);
  for (const std::string& offer :
       {other_epoch.offer(), "other-machine" + other_epoch.offer(),
        std::string("nonsense")}) {
    GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0},
                    TransportKind::kAuto);
    world.world().rings.clear();
    PlainPeer peer(world.addresses()[0], 1, {{"rf-shm", offer}});
    std::unique_ptr<Transport> transport;
    std::thread connecting([&] { transport = *world.Connect(0); });
    peer.Join();
    connecting.join();
    EXPECT_EQ(world.endpoint(0).shared_lanes(), 0);
    EXPECT_EQ(peer.link_context().GetServerInitialMetadata().count("rf-shm"),
              0u);
    peer.link().Write(PlainPeer::Frame(1, "by stream"));
    const Source source = {1, Lane::kDirect};
    size_t index = 0;
    EXPECT_TRUE(transport->Receive({&source, 1}, Soon(), &index).ok());
    PayloadLedger ledger;
    const std::string text = "back";
    FrameHeader header = {.epoch = 1, .sequence = 2, .op_descriptor = 1};
    ASSERT_TRUE(transport->Send(1, Lane::kDirect, header, text, ledger).ok());
    v1::Frame frame;
    ASSERT_TRUE(peer.link().Read(&frame));
    EXPECT_EQ(frame.payload(), text);
  }
}

// Peers are seldom in the epoch at the same moment.
// Frames for a process that took the place of another must not go to a segment
// that nobody reads any more.
TEST(SharedLanesTest, AnotherOfferOfTheSamePeerLeavesItsLanesWithTheirStreams) {
  class NoEvents : public SharedLanes::Events {
    bool WantsFrame(int, Lane) override { return true; }
    void OnSharedFrame(int, Lane, LinkFramePtr) override {}
    void OnSharedError(int, const absl::Status&) override {}
  };
  NoEvents events;
  MessagePool pool;
  const auto lanes = *SharedLanes::Create(1, 0, 2, &pool, &events);
  const SharedSegment before = *SharedSegment::Create(1, 1, 2);
  const SharedSegment after = *SharedSegment::Create(1, 1, 2);
  EXPECT_TRUE(lanes->Attach(1, Lane::kDirect, before.offer()).ok());
  EXPECT_EQ(lanes->Attach(1, Lane::kRight, after.offer()).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(lanes->attached(1, Lane::kRight));
  EXPECT_TRUE(lanes->Attach(1, Lane::kLeft, before.offer()).ok());
}

TEST(SharedLanesTest, AnOfferMayWaitForTheEpoch) {
  GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0},
                  TransportKind::kAuto);
  world.world().rings.clear();
  const SharedSegment own = *SharedSegment::Create(1, 1, 2);
  PlainPeer peer(world.addresses()[0], 1, {{"rf-shm", own.offer()}});
  // Calls of a connection are taken in order: when this one is refused, the
  // peer's has come.
  grpc::ClientContext context;
  EXPECT_EQ(v1::Collective::NewStub(peer.channel())
                ->Link(&context)
                ->Finish()
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  std::unique_ptr<Transport> transport;
  std::thread connecting([&] { transport = *world.Connect(0); });
  peer.Join();
  connecting.join();
  EXPECT_EQ(world.endpoint(0).shared_lanes(), 1);
}

TEST(SharedLanesTest, GrpcCanBeAskedFor) {
  GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0},
                  TransportKind::kAuto);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    world.world().transport =
        epoch == 2 ? TransportKind::kGrpc : TransportKind::kAuto;
    world.RunConnected(
        [&](Transport& transport) {
          EXPECT_EQ(world.endpoint(transport.rank()).shared_lanes(),
                    epoch == 2 ? 0 : 3);
        },
        epoch);
  }
}

TEST(SharedLanesTest, AFrameCostsNoAllocationOnceThingsAreWarm) {
  if (!CountsAllocations()) {
    GTEST_SKIP() << "a sanitizer has the allocator";
  }
  GrpcWorld world(2, {.spin = Spin::kAlways}, TransportKind::kAuto);
  size_t least = ~size_t{0};
  world.RunConnected([&](Transport& transport) {
    const uint32_t rank = static_cast<uint32_t>(transport.rank());
    const int peer = 1 - transport.rank();
    const std::string payload(kMaxPayloadBytes, 'x');
    PayloadLedger ledger;
    const Source source = {peer, Lane::kRight};
    size_t index = 0;
    for (int round = 0; round < 30; ++round) {
      const size_t before = AllocationCount();
      for (const size_t size : {4, 28672, 300000, 1048576}) {
        const auto part = absl::MakeConstSpan(payload).subspan(0, size);
        FrameHeader header = {.source = rank, .epoch = 1, .op_descriptor = 1};
        const uint32_t crc = ExtendCrc32c(0, part.data(), size);
        header.crc32c = FrameCrc(header, crc, size);
        ASSERT_TRUE(
            transport.Send(peer, Lane::kRight, header, part, ledger).ok());
        const auto frame = transport.Receive({&source, 1}, Soon(), &index);
        ASSERT_TRUE(frame.ok()) << frame.status();
        ASSERT_TRUE(
            transport.Forward(peer, Lane::kRight, header, **frame).ok());
        ASSERT_TRUE(transport.Receive({&source, 1}, Soon(), &index).ok());
        ASSERT_TRUE(transport.AwaitReleased(ledger, Soon()).ok());
      }
      if (rank == 0) least = std::min(least, AllocationCount() - before);
    }
  });
  EXPECT_EQ(least, 0u);
}

constexpr char kRank0[] = "RINGFLEET_TEST_RANK_0";

// Rank 1 in a process of its own, for the test below: sends until it is killed.
TEST(SharedPeerProcess, DISABLED_SendsForever) {
  const char* const address = getenv(kRank0);
  ASSERT_NE(address, nullptr);
  CollectiveEndpoint endpoint({.warm_up_bytes = 0});
  grpc::ServerBuilder builder;
  endpoint.Register(builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  endpoint.Start();
  const auto transport = endpoint.Connect(
      1, 1, {.addresses = {address, "self"}, .config_hash = 7}, Soon());
  ASSERT_TRUE(transport.ok()) << transport.status();
  ASSERT_EQ(endpoint.shared_lanes(), 1);
  const std::string payload(300000, 'x');
  PayloadLedger ledger;
  FrameHeader header = {.source = 1, .epoch = 1, .op_descriptor = 1};
  header.crc32c = FrameCrc(
      header, ExtendCrc32c(0, payload.data(), payload.size()), payload.size());
  while ((*transport)->Send(0, Lane::kDirect, header, payload, ledger).ok() &&
         (*transport)->AwaitReleased(ledger, Soon()).ok()) {
  }
}

TEST(SharedLanesTest, AKilledPeerIsNoticedAndLeavesNothing) {
  GrpcWorld world(2, {.spin = Spin::kNever, .warm_up_bytes = 0},
                  TransportKind::kAuto);
  world.world().rings.clear();
  Process peer(
      {.command = {"/proc/self/exe", "--gtest_filter=SharedPeerProcess.*",
                   "--gtest_also_run_disabled_tests"},
       // Whatever shard this test is in, that one is the child's only one.
       .environment = {{kRank0, world.addresses()[0]},
                       {"GTEST_TOTAL_SHARDS", "1"},
                       {"GTEST_SHARD_INDEX", "0"}}});
  auto transport = world.Connect(0);
  ASSERT_TRUE(transport.ok()) << transport.status();
  ASSERT_EQ(world.endpoint(0).shared_lanes(), 1);
  const Source source = {1, Lane::kDirect};
  size_t index = 0;
  for (int i = 0; i < 20; ++i) {
    const auto frame = (*transport)->Receive({&source, 1}, Soon(), &index);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ((*frame)->payload_bytes, 300000u);
  }
  peer.Signal(SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  absl::Status status;
  while (status.ok()) {  // What had arrived is still delivered.
    status = (*transport)->Receive({&source, 1}, Soon(), &index).status();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace ringfleet::cluster
