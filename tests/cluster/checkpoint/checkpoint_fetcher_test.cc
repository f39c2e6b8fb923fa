// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/checkpoint_fetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/file_servers.h"
#include "tests/testing/process.h"

namespace ringfleet::cluster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LoopbackServer;
using testing::ScriptedFiles;

constexpr size_t kTestChunk = 1000;

std::string RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class CheckpointFetcherTest : public ::testing::Test {
 protected:
  // Two sources of the same bytes, "a" and "b".
  CheckpointFetcherTest()
      : content_(RandomBytes(10'000, 1)),
        files_a_({{"f", content_}}, kTestChunk),
        files_b_({{"f", content_}}, kTestChunk) {
    options_.first_pause = absl::Milliseconds(1);
  }

  absl::StatusOr<std::unique_ptr<CheckpointFetcher>> Open(
      const std::vector<CheckpointFetcher::Source>& sources, int first = 0) {
    return CheckpointFetcher::Open("m", sources, first, &calls_, options_);
  }
  CheckpointFetcher::Source A() const { return {"a", server_a_.address()}; }
  CheckpointFetcher::Source B() const { return {"b", server_b_.address()}; }

  // Reads the whole file and compares; the error if there is one.
  absl::Status ReadAndCompare(const CheckpointFetcher& fetcher) {
    std::string got(content_.size(), '\0');
    const absl::Status status =
        fetcher.Read("f", 0, got.size(), 0, 1, got.data());
    if (status.ok()) {
      EXPECT_EQ(got, content_);
    }
    return status;
  }

  static std::vector<uint64_t> Froms(const ScriptedFiles& files) {
    std::vector<uint64_t> froms;
    for (const auto& request : files.requests()) {
      froms.push_back(request.from());
    }
    return froms;
  }

  const std::string content_;
  CheckpointFetcher::Options options_;
  CancellableCalls calls_;
  ScriptedFiles files_a_, files_b_;
  LoopbackServer server_a_{&files_a_}, server_b_{&files_b_};
};

TEST_F(CheckpointFetcherTest, RangesComePutTogether) {
  const auto fetcher = Open({A()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_EQ((*fetcher)->fingerprint(), "f00d");
  EXPECT_EQ((*fetcher)->SourceNames(), "a");
  uint64_t bytes = 0;
  for (const auto& [offset, size, stride, count] :
       std::vector<std::tuple<int, int, int, int>>{{0, 1, 1, 1},
                                                   {9999, 1, 0, 1},
                                                   {17, 3000, 0, 1},
                                                   {5, 7, 31, 300},
                                                   {0, 999, 1001, 9},
                                                   {1, 1001, 2003, 4}}) {
    std::string want;
    for (int i = 0; i < count; ++i) {
      want += content_.substr(offset + i * stride, size);
    }
    std::string got(want.size(), '\0');
    ASSERT_TRUE(
        (*fetcher)->Read("f", offset, size, stride, count, got.data()).ok());
    EXPECT_EQ(got, want) << offset << " " << size << " " << stride;
    bytes += want.size();
  }
  EXPECT_EQ((*fetcher)->bytes_fetched(), bytes);
  EXPECT_EQ(*(*fetcher)->ReadWhole("f", 10'000), content_);
  EXPECT_EQ((*fetcher)->ReadWhole("f", 9999).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*fetcher)->ReadWhole("g", 10).status().code(),
            absl::StatusCode::kNotFound);
}

// A call stays small whatever is asked for.
TEST_F(CheckpointFetcherTest, LargeReadsAreManyCalls) {
  const std::string large = RandomBytes((5 << 20) + 77, 2);
  ScriptedFiles files({{"f", large}}, 256 << 10);
  const LoopbackServer server(&files);
  const auto fetcher = Open({{"large", server.address()}});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  std::string got(large.size(), '\0');
  ASSERT_TRUE((*fetcher)->Read("f", 0, got.size(), 0, 1, got.data()).ok());
  EXPECT_EQ(got, large);
  // Two rows, each larger than a call; then many that are smaller.
  got.assign(2 * 2'000'000, '\0');
  ASSERT_TRUE(
      (*fetcher)->Read("f", 1, 2'000'000, 3'000'000, 2, got.data()).ok());
  EXPECT_EQ(got,
            large.substr(1, 2'000'000) + large.substr(3'000'001, 2'000'000));
  got.assign(50'000 * 30, '\0');
  ASSERT_TRUE((*fetcher)->Read("f", 3, 30, 100, 50'000, got.data()).ok());
  for (int i = 0; i < 50'000; i += 991) {
    ASSERT_EQ(got.substr(i * 30, 30), large.substr(3 + i * 100, 30)) << i;
  }
  for (const v1::ReadFileRequest& request : files.requests()) {
    EXPECT_LE(request.size() * request.count(), uint64_t{1} << 20);
  }
}

TEST_F(CheckpointFetcherTest, ADamagedChunkIsAskedForAgain) {
  files_a_.SetHook([](int call, v1::FileChunk* chunk, grpc::ServerContext*) {
    if (call == 0 && chunk->offset() == 3000)
      (*chunk->mutable_data())[500] ^= 4;
    // Bytes of another place, with a checksum that is right.
    if (call == 1 && chunk->offset() == 5000) chunk->set_offset(6000);
    return grpc::Status::OK;
  });
  const auto fetcher = Open({A()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  EXPECT_THAT(Froms(files_a_), ElementsAre(0, 3000, 5000));
  EXPECT_EQ((*fetcher)->bytes_fetched(), content_.size());
}

TEST_F(CheckpointFetcherTest, ABrokenStreamIsResumedWhereItBroke) {
  files_a_.SetHook([](int call, v1::FileChunk* chunk, grpc::ServerContext*) {
    // Ten times: as often as it takes, as long as each call brings something.
    if (call < 9 && chunk->offset() == uint64_t(call + 1) * kTestChunk) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the cable");
    }
    return grpc::Status::OK;
  });
  const auto fetcher = Open({A()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  EXPECT_THAT(Froms(files_a_), ElementsAre(0, 1000, 2000, 3000, 4000, 5000,
                                           6000, 7000, 8000, 9000));
}

TEST_F(CheckpointFetcherTest, AnEarlyEndIsNoEnd) {
  files_a_.SetHook([](int call, v1::FileChunk* chunk, grpc::ServerContext*) {
    if (call == 0 && chunk->offset() == 4000) chunk->clear_data();
    return grpc::Status::OK;
  });
  const auto fetcher = Open({A()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  EXPECT_THAT(Froms(files_a_), ElementsAre(0, 4000));
}

TEST_F(CheckpointFetcherTest, TheNextSourceGoesOnWhereOneFell) {
  files_a_.SetHook([](int, v1::FileChunk* chunk, grpc::ServerContext*) {
    return chunk->offset() < 4000
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  });
  const auto fetcher = Open({A(), B()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  EXPECT_THAT(Froms(files_a_), ElementsAre(0, 4000, 4000, 4000, 4000, 4000));
  EXPECT_THAT(Froms(files_b_), ElementsAre(4000));
  // And is not asked again.
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  EXPECT_EQ(files_a_.requests().size(), 6u);
}

TEST_F(CheckpointFetcherTest, AnAnswerThatWillNotChangeIsNotAskedForAgain) {
  files_a_.SetHook([](int, v1::FileChunk*, grpc::ServerContext*) {
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "f: changed");
  });
  const auto fetcher = Open({A(), B()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  EXPECT_EQ(files_a_.requests().size(), 1u);
}

TEST_F(CheckpointFetcherTest, WithoutASourceTheErrorNamesAll) {
  const auto fetcher = Open({A(), B()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  files_a_.SetHook([this](int, v1::FileChunk* chunk, grpc::ServerContext*) {
    return chunk->offset() < 2000
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::DATA_LOSS, "ends at byte 9");
  });
  server_b_.Stop();
  const absl::Status status = ReadAndCompare(**fetcher);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("byte 2000 of f"),
            HasSubstr("a at " + server_a_.address()),
            HasSubstr("ends at byte 9"),
            HasSubstr("b at " + server_b_.address()), HasSubstr("5 attempts")));
}

TEST_F(CheckpointFetcherTest, ASourceThatStallsIsGivenUpInTime) {
  options_.no_progress = absl::Milliseconds(300);
  files_a_.SetHook([](int, v1::FileChunk* chunk, grpc::ServerContext* context) {
    if (chunk->offset() < 2000) return grpc::Status::OK;
    testing::WaitUntil(20, [context] { return context->IsCancelled(); });
    return grpc::Status::CANCELLED;
  });
  const auto fetcher = Open({A(), B()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  const Deadline limit = Deadline::After(absl::Seconds(15));
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  EXPECT_FALSE(limit.Expired());
  EXPECT_THAT(Froms(files_b_), ElementsAre(2000));
}

TEST_F(CheckpointFetcherTest, ABusySourceIsWaitedFor) {
  std::atomic<int> refusals = 12;  // More than the attempts of a failure.
  files_a_.SetHook([&](int, v1::FileChunk*, grpc::ServerContext*) {
    return refusals-- > 0
               ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy")
               : grpc::Status::OK;
  });
  const auto fetcher = Open({A()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
}

TEST_F(CheckpointFetcherTest, CancelEndsWhatHangsAndWhatWaits) {
  files_a_.SetHook([](int, v1::FileChunk*, grpc::ServerContext* context) {
    testing::WaitUntil(20, [context] { return context->IsCancelled(); });
    return grpc::Status::CANCELLED;
  });
  const auto fetcher = Open({A()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  std::vector<std::thread> readers;
  std::atomic<int> cancelled = 0;
  for (int i = 0; i < 12; ++i) {  // More than a source gets calls.
    readers.emplace_back([&] {
      if (absl::IsCancelled(ReadAndCompare(**fetcher))) ++cancelled;
    });
  }
  EXPECT_TRUE(
      testing::WaitUntil(20, [&] { return files_a_.requests().size() >= 8; }));
  calls_.Cancel();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(cancelled, 12);
  EXPECT_EQ(files_a_.requests().size(), 8u);
  EXPECT_TRUE(absl::IsCancelled(Open({A()}).status()));
}

TEST_F(CheckpointFetcherTest, CallsAtATimeGoToAllSources) {
  const auto both_asked = [this] {
    return !files_a_.requests().empty() && !files_b_.requests().empty();
  };
  const auto wait = [&](int, v1::FileChunk*, grpc::ServerContext*) {
    return testing::WaitUntil(20, both_asked)
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::DATA_LOSS, "only one is asked");
  };
  files_a_.SetHook(wait);
  files_b_.SetHook(wait);
  const auto fetcher = Open({A(), B()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  std::thread other([&] { EXPECT_TRUE(ReadAndCompare(**fetcher).ok()); });
  EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  other.join();
  EXPECT_THAT(Froms(files_a_), ElementsAre(0));
  EXPECT_THAT(Froms(files_b_), ElementsAre(0));
}

// So that hosts without files do not all begin with the same one.
TEST_F(CheckpointFetcherTest, RanksBeginWithDifferentSources) {
  for (int rank = 0; rank < 4; ++rank) {
    const auto fetcher = Open({A(), B()}, rank);
    ASSERT_TRUE(fetcher.ok()) << fetcher.status();
    EXPECT_TRUE(ReadAndCompare(**fetcher).ok());
  }
  EXPECT_EQ(files_a_.requests().size(), 2u);
  EXPECT_EQ(files_b_.requests().size(), 2u);
}

TEST_F(CheckpointFetcherTest, OnlySourcesOfOneCheckpointAreUsed) {
  ScriptedFiles other({{"f", content_}}, kTestChunk, "0ther");
  const LoopbackServer server(&other);
  ScriptedFiles escaping({{"../f", content_}}, kTestChunk);
  const LoopbackServer escaping_server(&escaping);
  const auto fetcher = Open({{"gone", "127.0.0.1:1"},
                             {"escaping", escaping_server.address()},
                             B(),
                             {"other", server.address()},
                             A()});
  ASSERT_TRUE(fetcher.ok()) << fetcher.status();
  EXPECT_EQ((*fetcher)->SourceNames(), "b, a");
  const auto none =
      Open({{"gone", "127.0.0.1:1"}, {"escaping", escaping_server.address()}});
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("nobody to fetch it from"),
                    HasSubstr("gone at 127.0.0.1:1"), HasSubstr("../f")));
}

}  // namespace
}  // namespace ringfleet::cluster
