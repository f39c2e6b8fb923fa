// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/link_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/wire/crc32c.h"
#include "tests/testing/grpc_world.h"
#include "tests/testing/sockets.h"
#include "tests/testing/soon.h"

namespace ringfleet::cluster {
namespace {

using ::ringfleet::testing::DataPacketsSent;
using ::ringfleet::testing::GrpcWorld;
using ::ringfleet::testing::PayloadOf;
using ::ringfleet::testing::Soon;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Lane kAllLanes[] = {Lane::kDirect, Lane::kRight, Lane::kLeft};

FrameHeader Header(const Transport& transport, uint64_t sequence,
                   absl::Span<const char> payload) {
  FrameHeader header = {
      .source = static_cast<uint32_t>(transport.rank()),
      .epoch = transport.epoch(),
      .sequence = sequence,
      .op_descriptor = PackDescriptor({.operation = Operation::kBroadcast})};
  header.crc32c = FrameCrc(
      header, ExtendCrc32c(0, payload.data(), payload.size()), payload.size());
  return header;
}

absl::Status Send(Transport& transport, int peer, Lane lane, uint64_t sequence,
                  absl::Span<const char> payload, PayloadLedger& ledger) {
  return transport.Send(peer, lane, Header(transport, sequence, payload),
                        payload, ledger);
}

absl::StatusOr<ReceivedFrame> Receive(Transport& transport, int peer,
                                      Lane lane = Lane::kDirect,
                                      Deadline deadline = Soon()) {
  const Source source = {peer, lane};
  size_t index = 0;
  return transport.Receive({&source, 1}, deadline, &index);
}

// What `source` sends as its frame number `sequence` on `lane`.
std::string Text(int source, Lane lane, uint64_t sequence, size_t bytes) {
  std::string text(bytes, '\0');
  uint32_t state = static_cast<uint32_t>(source) * 64 +
                   static_cast<uint32_t>(lane) * 16 +
                   static_cast<uint32_t>(sequence) + 1;
  for (char& c : text) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

absl::Duration ThreadCpuTime() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

// What carries frames; kMixed: the last rank is on a host of its own.
enum class Kind { kStreams, kShared, kMixed };
constexpr Kind kKinds[] = {Kind::kStreams, Kind::kShared, Kind::kMixed};

std::string KindName(Kind kind) {
  constexpr const char* kNames[] = {"Streams", "Shared", "Mixed"};
  return kNames[static_cast<int>(kind)];
}

class KindWorld : public GrpcWorld {
 public:
  KindWorld(int size, Kind kind,
            Options options = {.spin = Spin::kNever, .warm_up_bytes = 0})
      : GrpcWorld(size, options,
                  kind == Kind::kStreams ? TransportKind::kGrpc
                                         : TransportKind::kAuto) {
    if (kind == Kind::kMixed) UseStreamsOnly(size - 1);
  }
};

class LinkTransportTest : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(, LinkTransportTest, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return KindName(info.param); });

class LinkWorldTest : public ::testing::TestWithParam<std::tuple<int, Kind>> {};

INSTANTIATE_TEST_SUITE_P(, LinkWorldTest,
                         ::testing::Combine(::testing::Values(2, 3, 5),
                                            ::testing::ValuesIn(kKinds)),
                         [](const auto& info) {
                           return KindName(std::get<1>(info.param)) +
                                  std::to_string(std::get<0>(info.param));
                         });

// One wake-up ends one wait, whether it comes before or during it.
TEST_P(LinkTransportTest, AWakeEndsOneWait) {
  KindWorld world(2, GetParam());
  world.RunConnected([&](Transport& transport) {
    const Source source = {1 - transport.rank(), Lane::kRight};
    size_t index = 0;
    const auto wait = [&](absl::Span<const Source> sources, Deadline deadline) {
      return transport.ReceiveUnlessWoken(sources, deadline, &index);
    };
    transport.Wake();
    absl::StatusOr<ReceivedFrame> woken = wait({}, Soon());
    ASSERT_TRUE(woken.ok()) << woken.status();
    EXPECT_EQ(*woken, nullptr);

    std::thread other([&] { transport.Wake(); });
    woken = wait({}, Soon());
    other.join();
    ASSERT_TRUE(woken.ok()) << woken.status();
    EXPECT_EQ(*woken, nullptr);

    PayloadLedger ledger;
    const std::string text = Text(transport.rank(), Lane::kRight, 1, 5000);
    ASSERT_TRUE(
        Send(transport, source.peer, Lane::kRight, 1, text, ledger).ok());
    absl::StatusOr<ReceivedFrame> frame = wait({&source, 1}, Soon());
    ASSERT_TRUE(frame.ok()) << frame.status();
    ASSERT_NE(*frame, nullptr);
    EXPECT_EQ(PayloadOf(**frame), Text(source.peer, Lane::kRight, 1, 5000));
    EXPECT_TRUE(transport.AwaitReleased(ledger, Soon()).ok());
  });
}

TEST_P(LinkWorldTest, EveryLaneCarriesItsFramesInOrder) {
  const auto [ranks, kind] = GetParam();
  const std::vector<size_t> sizes = {0,      1,     4095,   4096,
                                     100000, 28672, 262144, kMaxPayloadBytes};
  KindWorld world(ranks, kind);
  world.RunConnected([&, ranks = ranks, kind = kind](Transport& transport) {
    const int self = transport.rank();
    int shared = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      const bool neighbour =
          peer == (self + 1) % ranks || self == (peer + 1) % ranks;
      const bool same_host =
          kind == Kind::kShared ||
          (kind == Kind::kMixed && std::max(self, peer) < ranks - 1);
      if (peer != self && same_host) shared += neighbour ? 3 : 1;
    }
    EXPECT_EQ(world.endpoint(self).shared_lanes(), shared);
    const int next = (self + 1) % ranks;
    const int previous = (self + ranks - 1) % ranks;
    std::vector<Source> sources = {{previous, Lane::kRight},
                                   {next, Lane::kLeft}};
    std::vector<std::vector<std::string>> texts(kLanes);
    for (const Lane lane : kAllLanes) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        texts[static_cast<int>(lane)].push_back(Text(self, lane, i, sizes[i]));
      }
    }
    PayloadLedger ledger;
    for (size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_TRUE(
          Send(transport, next, Lane::kRight, i, texts[1][i], ledger).ok());
      ASSERT_TRUE(
          Send(transport, previous, Lane::kLeft, i, texts[2][i], ledger).ok());
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == self) continue;
        ASSERT_TRUE(
            Send(transport, peer, Lane::kDirect, i, texts[0][i], ledger).ok());
      }
    }
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != self) sources.push_back({peer, Lane::kDirect});
    }
    std::vector<uint64_t> received(sources.size());
    for (size_t i = 0; i < sources.size() * sizes.size(); ++i) {
      size_t index = 0;
      const auto frame = transport.Receive(sources, Soon(), &index);
      ASSERT_TRUE(frame.ok()) << frame.status();
      const Source& source = sources[index];
      const uint64_t sequence = received[index]++;
      ASSERT_EQ((*frame)->header.source, static_cast<uint32_t>(source.peer));
      ASSERT_EQ((*frame)->header.sequence, sequence);
      ASSERT_LT(sequence, sizes.size());
      ASSERT_EQ(PayloadOf(**frame),
                Text(source.peer, source.lane, sequence, sizes[sequence]));
    }
    EXPECT_TRUE(transport.AwaitReleased(ledger, Soon()).ok());
    EXPECT_TRUE(ledger.released());
  });
}

TEST_P(LinkTransportTest, TheFirstSourceThatHasAFrameIsServed) {
  KindWorld world(2, GetParam());
  world.RunConnected([](Transport& transport) {
    const int peer = 1 - transport.rank();
    PayloadLedger ledger;
    for (const Lane lane : {Lane::kLeft, Lane::kRight, Lane::kDirect}) {
      ASSERT_TRUE(Send(transport, peer, lane, 1, "x", ledger).ok());
    }
    std::vector<Source> sources = {{peer, Lane::kLeft}, {peer, Lane::kDirect}};
    std::vector<bool> seen(2);
    for (int i = 0; i < 2; ++i) {
      size_t index = 9;
      ASSERT_TRUE(transport.Receive(sources, Soon(), &index).ok());
      ASSERT_LT(index, 2u);
      EXPECT_FALSE(seen[index]);
      seen[index] = true;
    }
    // Both are empty; the third lane was not asked.
    size_t index = 0;
    EXPECT_EQ(
        transport
            .Receive(sources, Deadline::After(absl::Milliseconds(20)), &index)
            .status()
            .code(),
        absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Receive(transport, peer, Lane::kRight).ok());
  });
}

TEST_P(LinkTransportTest, AFrameIsForwardedRoundTheRing) {
  KindWorld world(3, GetParam());
  world.RunConnected([](Transport& transport) {
    const int self = transport.rank();
    const int next = (self + 1) % 3;
    const int previous = (self + 2) % 3;
    PayloadLedger ledger;
    uint64_t sequence = 0;
    for (const size_t size : {0, 10, 5000, 300000}) {
      const std::string mine = Text(self, Lane::kRight, 0, size);
      ASSERT_TRUE(
          Send(transport, next, Lane::kRight, sequence, mine, ledger).ok());
      for (int hop = 1; hop <= 2; ++hop) {
        auto frame = Receive(transport, previous, Lane::kRight);
        ASSERT_TRUE(frame.ok()) << frame.status();
        EXPECT_EQ((*frame)->header.sequence, sequence + hop - 1);
        EXPECT_EQ(PayloadOf(**frame),
                  Text((self + 3 - hop) % 3, Lane::kRight, 0, size));
        FrameHeader header = Header(transport, sequence + hop, {});
        header.crc32c =
            FrameCrc(header, (*frame)->payload_crc, (*frame)->payload_bytes);
        if (hop == 2) continue;
        ASSERT_TRUE(
            transport.Forward(next, Lane::kRight, header, **frame).ok());
      }
      ASSERT_TRUE(transport.AwaitReleased(ledger, Soon()).ok());
      sequence += 10;
    }
  });
}

TEST_P(LinkTransportTest, OnlyNeighboursOfARingHaveItsLanes) {
  KindWorld world(4, GetParam());
  world.RunConnected([](Transport& transport) {
    PayloadLedger ledger;
    const int opposite = (transport.rank() + 2) % 4;
    for (const Lane lane : {Lane::kRight, Lane::kLeft}) {
      const absl::Status status =
          Send(transport, opposite, lane, 1, "x", ledger);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("rank ", opposite)));
    }
    EXPECT_TRUE(Send(transport, opposite, Lane::kDirect, 1, "x", ledger).ok());
    EXPECT_TRUE(Receive(transport, opposite).ok());
  });
}

TEST_P(LinkTransportTest, RingsMayOverlap) {
  KindWorld world(4, GetParam());
  world.world().rings = {{0, 1}, {2, 3}, {0, 2}, {3, 1}};
  world.RunConnected([](Transport& transport) {
    PayloadLedger ledger;
    for (const int peer : {transport.rank() ^ 1, transport.rank() ^ 2}) {
      for (const Lane lane : kAllLanes) {
        ASSERT_TRUE(Send(transport, peer, lane, 1, "x", ledger).ok());
        ASSERT_TRUE(Receive(transport, peer, lane).ok());
      }
    }
    EXPECT_FALSE(
        Send(transport, transport.rank() ^ 3, Lane::kRight, 1, "x", ledger)
            .ok());
  });
}

TEST_P(LinkTransportTest, RanksThatDisagreeInTheirRingsAreRefused) {
  KindWorld world(2, GetParam());
  GrpcWorld::World without = world.world();
  without.rings.clear();
  world.Run([&](int rank) {
    const absl::Status status =
        world.endpoint(rank)
            .Connect(1, rank, rank == 0 ? without : world.world(), Soon())
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rings"));
  });
}

TEST_P(LinkTransportTest, WarmUpBytesNeverReachAReceiver) {
  KindWorld world(3, GetParam(),
                  {.spin = Spin::kNever, .warm_up_bytes = 700000});
  world.RunConnected([](Transport& transport) {
    PayloadLedger ledger;
    const int next = (transport.rank() + 1) % 3;
    const int previous = (transport.rank() + 2) % 3;
    const std::string text = "first";
    for (const Lane lane : kAllLanes) {
      ASSERT_TRUE(Send(transport, next, lane, 5, text, ledger).ok());
      const auto frame = Receive(transport, previous, lane);
      ASSERT_TRUE(frame.ok()) << frame.status();
      EXPECT_EQ((*frame)->header.sequence, 5u);
      EXPECT_EQ(PayloadOf(**frame), text);
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world.endpoint(rank).dropped_frames(), 0u);
  }
}

// The waiting thread and the background thread take turns many times.
TEST_P(LinkTransportTest, PausesBetweenExchangesLoseNothing) {
  KindWorld world(2, GetParam(), {.spin = Spin::kAlways, .warm_up_bytes = 0});
  world.RunConnected([&](Transport& transport) {
    const int self = transport.rank();
    PayloadLedger ledger;
    for (uint64_t round = 0; round < 60; ++round) {
      if (round % 3 == 0) {  // Longer than the background thread waits.
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::milliseconds(15);
        while (std::chrono::steady_clock::now() < until) {
          std::this_thread::yield();
        }
      }
      const std::string mine = Text(self, Lane::kDirect, round, 400000);
      ASSERT_TRUE(
          Send(transport, 1 - self, Lane::kDirect, round, mine, ledger).ok());
      const auto frame = Receive(transport, 1 - self);
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(PayloadOf(**frame),
                Text(1 - self, Lane::kDirect, round, 400000));
      ASSERT_TRUE(transport.AwaitReleased(ledger, Soon()).ok());
    }
  });
}

// Ranks that share cores yield while they wait, and block after a while.
TEST_P(LinkTransportTest, RanksThatShareCoresExchangeAndBlockInTheEnd) {
  KindWorld world(3, GetParam(), {.warm_up_bytes = 0});
  for (int rank = 0; rank < 3; ++rank) {
    world.endpoint(rank).SetRanksOnHost(1 << 20);
  }
  world.RunConnected([&](Transport& transport) {
    const int next = (transport.rank() + 1) % 3;
    const int previous = (transport.rank() + 2) % 3;
    PayloadLedger ledger;
    for (uint64_t round = 0; round < 60; ++round) {
      const std::string text =
          Text(transport.rank(), Lane::kRight, round, round % 2 ? 4 : 90000);
      ASSERT_TRUE(
          Send(transport, next, Lane::kRight, round, text, ledger).ok());
      const auto frame = Receive(transport, previous, Lane::kRight);
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(PayloadOf(**frame),
                Text(previous, Lane::kRight, round, text.size()));
      ASSERT_TRUE(transport.AwaitReleased(ledger, Soon()).ok());
    }
    if (transport.rank() != 0) return;
    const absl::Duration before = ThreadCpuTime();
    const Source source = {previous, Lane::kRight};
    size_t index = 0;
    const auto nothing = transport.Receive(
        {&source, 1}, Deadline::After(absl::Milliseconds(400)), &index);
    EXPECT_TRUE(absl::IsDeadlineExceeded(nothing.status()));
    EXPECT_LT(ThreadCpuTime() - before, absl::Milliseconds(200));
  });
}

// What nobody has received yet is held back at the limit, and comes through
// in the end; neither sender waits for it.
TEST_P(LinkTransportTest, AFloodBothWaysIsHeldAndThenResumed) {
  KindWorld world(
      2, GetParam(),
      {.spin = Spin::kNever, .max_queued_bytes = 300000, .warm_up_bytes = 0});
  world.RunConnected([](Transport& transport) {
    const int self = transport.rank();
    const std::vector<size_t> sizes = {262144, 100, kMaxPayloadBytes, 0};
    std::vector<std::string> texts;
    for (size_t i = 0; i < sizes.size(); ++i) {
      texts.push_back(Text(self, Lane::kRight, i, sizes[i]));
    }
    PayloadLedger ledger;
    for (uint64_t i = 0; i < 40; ++i) {
      ASSERT_TRUE(
          Send(transport, 1 - self, Lane::kRight, i, texts[i % 4], ledger)
              .ok());
    }
    for (uint64_t i = 0; i < 40; ++i) {
      const auto frame = Receive(transport, 1 - self, Lane::kRight);
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ((*frame)->header.sequence, i);
      ASSERT_EQ(PayloadOf(**frame),
                Text(1 - self, Lane::kRight, i % 4, sizes[i % 4]));
    }
    ASSERT_TRUE(transport.AwaitReleased(ledger, Soon()).ok());
  });
}

TEST_P(LinkTransportTest, NamesTheRankThatNeverJoins) {
  KindWorld world(3, GetParam());
  world.Run([&](int rank) {
    if (rank == 2) return;
    const auto transport = world.Connect(rank, 1, absl::Milliseconds(300));
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(transport.status().message()),
                HasSubstr("rank 2 (" + world.addresses()[2] + ")"));
  });
}

TEST_P(LinkTransportTest, WaitsForALatePeer) {
  KindWorld world(2, GetParam());
  std::unique_ptr<Transport> first;
  std::thread early([&] { first = *world.Connect(0); });
  std::unique_ptr<Transport> second = *world.Connect(1);
  early.join();
  EXPECT_EQ(first->world_size(), 2);
}

TEST_P(LinkTransportTest, AbortReleasesEveryRankWithTheFirstCause) {
  KindWorld world(4, GetParam());
  world.RunConnected([&](Transport& transport) {
    if (transport.rank() == 3) {
      return transport.Abort(absl::DataLossError("the disk is on fire"));
    }
    const absl::Status status =
        Receive(transport, 3, Lane::kDirect, Deadline::Infinite()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "rank 3: the disk is on fire");
    PayloadLedger ledger;
    EXPECT_EQ(Send(transport, 3, Lane::kDirect, 1, "x", ledger), status);
    EXPECT_EQ(transport.AwaitReleased(ledger, Deadline::Infinite()), status);
  });
}

TEST_P(LinkTransportTest, AbortFromAnotherThreadWakesTheWaiter) {
  KindWorld world(2, GetParam());
  world.RunConnected([&](Transport& transport) {
    std::thread other;
    if (transport.rank() == 0) {
      other =
          std::thread([&] { transport.Abort(absl::CancelledError("enough")); });
    }
    const auto frame = Receive(transport, 1 - transport.rank(), Lane::kDirect,
                               Deadline::Infinite());
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kCancelled);
    if (other.joinable()) other.join();
  });
}

TEST_P(LinkTransportTest, AKilledPeerIsReportedByAllOthers) {
  KindWorld world(3, GetParam());
  world.RunConnected([&](Transport& transport) {
    if (transport.rank() == 2) return world.Kill(2);
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status =
        Receive(transport, 1 - transport.rank()).status();
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(5));
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
  });
}

TEST_P(LinkTransportTest, APeerThatLeavesIsNotWaitedFor) {
  KindWorld world(2, GetParam());
  std::vector<std::unique_ptr<Transport>> transports(2);
  world.Run([&](int rank) { transports[rank] = *world.Connect(rank); });
  transports[1].reset();
  const auto frame =
      Receive(*transports[0], 1, Lane::kLeft, Deadline::Infinite());
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(frame.status().message()),
              HasSubstr("has left epoch 1"));
}

// What an operation has sent when it returns OK, its peers get, however soon
// the rank leaves after it.
TEST_P(LinkTransportTest, ARankThatLeavesHasSentEverythingBefore) {
  constexpr uint64_t kFrames = 16;
  KindWorld world(2, GetParam());
  for (const int leaver : {0, 1}) {
    const uint64_t epoch = 1 + static_cast<uint64_t>(leaver);
    std::vector<std::unique_ptr<Transport>> transports(2);
    world.Run(
        [&](int rank) { transports[rank] = *world.Connect(rank, epoch); });
    world.Run([&](int rank) {
      std::unique_ptr<Transport> transport = std::move(transports[rank]);
      if (rank == leaver) {
        const std::string text = Text(leaver, Lane::kDirect, 0, 1 << 20);
        PayloadLedger ledger;
        for (uint64_t i = 0; i < kFrames; ++i) {
          for (const Lane lane : kAllLanes) {
            ASSERT_TRUE(Send(*transport, 1 - rank, lane, i, text, ledger).ok());
          }
        }
        transport.reset();
        EXPECT_TRUE(ledger.released());
        return;
      }
      for (const Lane lane : kAllLanes) {
        for (uint64_t i = 0; i < kFrames; ++i) {
          const auto frame = Receive(*transport, leaver, lane);
          ASSERT_TRUE(frame.ok()) << frame.status() << ", frame " << i;
          ASSERT_EQ((*frame)->header.sequence, i);
          ASSERT_EQ((*frame)->payload_bytes, size_t{1} << 20);
        }
        const absl::Status status =
            Receive(*transport, leaver, lane, Deadline::Infinite()).status();
        EXPECT_THAT(std::string(status.message()), HasSubstr("has left"));
      }
    });
  }
}

TEST_P(LinkTransportTest, ANewEpochFormsInTheSameProcesses) {
  KindWorld world(3, GetParam());
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    world.RunConnected(
        [&](Transport& transport) {
          EXPECT_EQ(transport.epoch(), epoch);
          PayloadLedger ledger;
          const int next = (transport.rank() + 1) % 3;
          const int previous = (transport.rank() + 2) % 3;
          if (epoch % 2 == 0 && transport.rank() == 1) {
            return transport.Abort(absl::InternalError("test"));
          }
          Send(transport, next, Lane::kRight, 1, "x", ledger).IgnoreError();
          if (epoch % 2 == 1) {
            EXPECT_TRUE(Receive(transport, previous, Lane::kRight).ok());
          } else {
            EXPECT_EQ(Receive(transport, 1).status().code(),
                      absl::StatusCode::kInternal);
          }
        },
        epoch);
  }
}

TEST_P(LinkTransportTest, EnteringAnEpochEndsTheOneBefore) {
  KindWorld world(2, GetParam());
  std::vector<std::unique_ptr<Transport>> old(2);
  world.Run([&](int rank) { old[rank] = *world.Connect(rank, 1); });
  world.RunConnected([](Transport&) {}, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto frame =
        Receive(*old[rank], 1 - rank, Lane::kDirect, Deadline::Infinite());
    EXPECT_FALSE(frame.ok());
  }
}

TEST_P(LinkTransportTest, AStaleEpochIsRefused) {
  KindWorld world(2, GetParam());
  world.RunConnected([](Transport&) {}, 5);
  // Its own endpoint remembers.
  EXPECT_EQ(world.Connect(0, 5).status().code(),
            absl::StatusCode::kFailedPrecondition);
  // A rank whose process restarted does not, but its peer does.
  CollectiveEndpoint zombie({});
  grpc::ServerBuilder builder;
  zombie.Register(builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  zombie.Start();
  const auto transport = zombie.Connect(4, 1, world.world(), Soon());
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(transport.status().message()),
              AllOf(HasSubstr("epoch 4"), HasSubstr("epoch 5")));
  server->Shutdown();
  zombie.Shutdown();
}

TEST_P(LinkTransportTest, AnotherConfigurationIsRefused) {
  KindWorld world(2, GetParam());
  world.Run([&](int rank) {
    GrpcWorld::World own = world.world();
    own.config_hash = 100 + rank;
    const absl::Status status =
        world.endpoint(rank).Connect(1, rank, own, Soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("100"), HasSubstr("101")));
  });
}

TEST_P(LinkTransportTest, AnImpossibleRankIsInvalid) {
  KindWorld world(2, GetParam());
  EXPECT_EQ(
      world.endpoint(0).Connect(1, 2, world.world(), Soon()).status().code(),
      absl::StatusCode::kInvalidArgument);
  world.world().rings = {{0, 2}};
  EXPECT_EQ(world.Connect(0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// gRPC's updates of its windows travel with the answers, not by themselves.
TEST(LinkPacketsTest, SmallFramesToAndFroTakeOnePacketEach) {
  constexpr uint64_t kRounds = 200;
  KindWorld world(2, Kind::kStreams);
  std::atomic<uint64_t> packets{0};
  world.RunConnected([&](Transport& transport) {
    const int peer = 1 - transport.rank();
    const auto send = [&](uint64_t sequence) {
      PayloadLedger ledger;
      ASSERT_TRUE(Send(transport, peer, Lane::kDirect, sequence,
                       Text(transport.rank(), Lane::kDirect, sequence, 1000),
                       ledger)
                      .ok());
    };
    const auto receive = [&](uint64_t sequence) {
      const auto frame = Receive(transport, peer);
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(PayloadOf(**frame), Text(peer, Lane::kDirect, sequence, 1000));
    };
    for (uint64_t round = 0; round <= kRounds; ++round) {
      if (transport.rank() == 1) {
        receive(round);
        send(round);
        continue;
      }
      if (round == 1) packets = DataPacketsSent();
      send(round);
      receive(round);
    }
    if (transport.rank() == 0) packets = DataPacketsSent() - packets;
  });
  // Heartbeats and gRPC's own pings are among them.
  EXPECT_GE(packets, 2 * kRounds);
  EXPECT_LT(packets, 3 * kRounds);
}

}  // namespace
}  // namespace ringfleet::cluster
